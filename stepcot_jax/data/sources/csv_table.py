"""A hospital's table: one row per image, with its report and the answers of one or more steps.

Every cell is text: a cell that a spreadsheet would run as a formula is read literally.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step, fold, read_options
from stepcot_jax.data.delimited import Row, fold_column, read_age
from stepcot_jax.data.identities import normalise_image_path, read_patient, read_split
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.data.sources.findings import DIAGNOSES, NORMAL, Answers, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import ImagePaths, find_file, list_named
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.splits.split_resolver import UNCOMPUTED, read_sheet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.host.untrusted import read_limits
from stepcot_jax.record import Record

TABLE_NAMES, CHAIN_NAME = ("cases.csv", "cases.xlsx"), "chain.json"
IMAGE_COLUMNS = ("image", "image path")
PATIENT_COLUMN = "patient id"
SPLIT_COLUMN = "split"
TEXT_COLUMNS = (PATIENT_COLUMN, "report", "origin", "sex", "age", "view", SPLIT_COLUMN)
LABEL_COLUMN = "label"
_SEXES = {"": "", "f": "F", "female": "F", "m": "M", "male": "M", "o": "O", "other": "O"}
_MAX_AGE = 150
_LOG = logging.getLogger(__name__)
_MAX_CHAIN_BYTES = 1_000_000
_EXPECTED_CHAIN = 'expected a JSON array of {"name": ..., "question": ..., "options": [...]} in UTF-8'


@dataclasses.dataclass(frozen=True)
class Columns:
    """Position of each column in a row, from 0."""

    image: int
    texts: dict[str, int]  # those of `TEXT_COLUMNS` that the table has
    steps: tuple[int | None, ...]  # the answers of each step of the chain; None without a column
    num_columns: int


def list_csv(root: Path, how: How) -> Source:
    """List `cases.csv`, `cases.xlsx`: image, report, patient_id, origin, sex, age, view, split, one column per step.

    Column names ignore letter case, spacing, "_" and "-". Only image and one column with answers are required. Answers
    are letters or texts of the options, with "?" after one that is uncertain; an empty cell is not annotated. The chain
    comes from `chain.json` next to the table, else it is `DEFAULT_CHAIN`. If only the diagnosis of `DEFAULT_CHAIN` is
    answered, `findings` adds the answers that follow from it. Without patient_id each image counts as one patient, with
    a warning.
    """
    path = (find_file(root, *TABLE_NAMES) or root / TABLE_NAMES[0]) if root.is_dir() else root
    folder = path.parent
    chain_path = folder / CHAIN_NAME
    chain = read_chain(chain_path) if chain_path.exists() else DEFAULT_CHAIN
    names = tuple(step.name for step in chain.steps)
    if how.step_names not in (names, PUBLISHED_STEP_NAMES):
        where = chain_path if chain_path.exists() else f"{folder}: without {CHAIN_NAME}"
        raise BadInput(f"{where}: step_names {list(how.step_names)} do not match the chain's {list(names)}")
    header, rows = read_sheet(path, known_columns=known_columns(chain))
    columns = find_columns(header, chain=chain, path=path)
    if PATIENT_COLUMN not in columns.texts:
        _LOG.warning("%s: no column patient_id: each image counts as a patient of its own", path)
    reader = _RowReader(folder, columns=columns, chain=chain, require_images=how.require_images)
    return Source(folder, path.name, map(reader.read, rows), chain)


class _RowReader:
    def __init__(self, folder: Path, *, columns: Columns, chain: Chain, require_images: bool) -> None:
        self._paths = ImagePaths(folder, require_images=require_images)
        self._columns = columns
        self._chain = chain
        self._read_label = functools.cache(self._parse_label)
        self._derives = chain == DEFAULT_CHAIN and all(column is None for column in columns.steps[:-1])

    def read(self, row: Row) -> Listed:
        where = f"row {row.number}"
        try:
            record = self._read(row)
        except BadInput as error:
            cells = dict(enumerate(row.cells))  # the row may be too short
            patient = cells.get(self._columns.texts.get(PATIENT_COLUMN, -1), "")
            return refused(where, f"{where}: {error}", image=cells.get(self._columns.image, ""), patient=patient)
        return list_named(where, record, self._paths.locate, where=f"{where}: column image")

    def _read(self, row: Row) -> Record:
        num_columns = self._columns.num_columns
        if len(row.cells) < num_columns or any(row.cells[num_columns:]):
            raise BadInput(f"{len(row.cells)} cells instead of {num_columns} as in the header")
        if any("\0" in cell for cell in row.cells):
            raise BadInput("a cell has a NUL byte; expected text")
        used = (self._columns.image, *self._columns.texts.values(), *self._columns.steps)
        if any(row.cells[column] == UNCOMPUTED for column in used if column is not None):
            raise BadInput(f"a cell is a {UNCOMPUTED}; open and save the table in a spreadsheet program")
        image = row.cells[self._columns.image]
        texts = {name: row.cells[column] for name, column in self._columns.texts.items()}
        for name in (PATIENT_COLUMN, "origin", "view"):
            if len(texts.get(name, "")) > (most := read_limits().name):
                raise BadInput(f"column {name}: has {len(texts[name])} characters; at most {most} are accepted")
        # Messages end up in logs: they must not quote a patient's cells.
        patient = read_patient(texts[PATIENT_COLUMN]) if PATIENT_COLUMN in texts else normalise_image_path(image)
        if not patient:
            raise BadInput("column patient_id: is empty; expected a patient's identifier")
        sex = _SEXES.get(texts.get("sex", "").casefold())
        if sex is None:
            raise BadInput("column sex: is not F, M, O or empty")
        age = read_age(texts.get("age", ""), most=_MAX_AGE)
        if texts.get("age") and age is None:
            raise BadInput(f"column age: is not a number of years from 0 to {_MAX_AGE} or empty")
        labels, reasoning, doubts = self._answer(row)
        case = Record(
            patient=patient,
            image=image,
            origin=texts.get("origin", ""),
            report=texts.get("report", ""),
            answers=labels,
            reasoning=reasoning,
            sex=sex,
            age=age,
            view=texts.get("view", ""),
            split=read_split(texts[SPLIT_COLUMN]) if SPLIT_COLUMN in texts else "",
        )
        return case.with_stated(labels, doubts) if any(doubts) else case

    def _answer(self, row: Row) -> tuple[tuple[int, ...], tuple[str, ...], tuple[bool, ...]]:
        answers = [
            (NOT_ANNOTATED, False) if column is None else self._read_label(index, row.cells[column])
            for index, column in enumerate(self._columns.steps)
        ]
        labels, doubts = tuple(label for label, _ in answers), tuple(doubt for _, doubt in answers)
        if not self._derives or labels[-1] == NOT_ANNOTATED:
            return labels, ("",) * len(labels), doubts
        # Answers that follow from an uncertain diagnosis are uncertain too.
        return *self._derive(self._chain.steps[-1].options[labels[-1]]), (doubts[-1],) * len(labels)

    def _derive(self, diagnosis: str) -> Answers:
        reason = f"Follows from the diagnosis {diagnosis}."
        if diagnosis == NORMAL:
            return answer_normal(reason)
        return answer_findings([DIAGNOSES[diagnosis]], diagnosis=diagnosis, reason=reason)

    def _parse_label(self, index: int, written: str) -> tuple[int, bool]:
        """Return a cell's label, and whether a "?" that belongs to no option marks it uncertain."""
        step = self._chain.steps[index]
        is_marked = written.endswith("?") and fold(written) not in map(fold, step.options)
        try:
            label = step.read_answer(written.removesuffix("?") if is_marked else written)
            if is_marked and label == NOT_ANNOTATED:
                raise BadInput("'?' without an answer; expected the possible answer before it")
            return label, is_marked
        except BadInput as error:
            own = "; options that are not the published ones go into chain.json beside the table (docs/sources.md)"
            is_published = self._chain == DEFAULT_CHAIN
            raise BadInput(f"column {step.name}: {error}{own if is_published else ''}") from error


def known_columns(chain: Chain) -> set[str]:
    """Return the folded names of all columns that are read."""
    return {*IMAGE_COLUMNS, *TEXT_COLUMNS, LABEL_COLUMN, *(fold_column(step.name) for step in chain.steps)}


def find_columns(header: Sequence[str], *, chain: Chain, path: Path) -> Columns:
    """Find the columns by their names; a warning lists unknown names."""
    while header and not header[-1]:  # spreadsheets save empty columns at the end
        header = header[:-1]
    folded = [fold_column(name) for name in header]
    known = known_columns(chain)
    # A table without a header has patients where the names should be: messages must not repeat these.
    names = [name[:40] for name in header]
    of_sheet = " of the first sheet's first row" if path.suffix.lower() == ".xlsx" else ""
    shown = names[:30] if known.intersection(folded) else f"{len(header)} unknown columns{of_sheet}"
    expected = (
        f"expected image, one or more of {', '.join(step.name for step in chain.steps)} (or label for the last), "
        "and optionally patient_id, report, origin, sex, age, view, split"
    )
    expected += f"; steps of your own go into {CHAIN_NAME} beside the table" if chain == DEFAULT_CHAIN else ""
    repeated = sorted({name for name in folded if name in known and folded.count(name) > 1})
    if repeated:
        raise BadInput(f"{path}: column {repeated[0]!r} occurs more than once in {shown}; {expected}")
    positions = {name: position for position, name in enumerate(folded) if name in known}
    images = [positions[name] for name in IMAGE_COLUMNS if name in positions]
    if len(images) != 1:
        raise BadInput(f"{path}: {len(images) or 'no'} image columns in {shown}; {expected}")
    step_names = [fold_column(step.name) for step in chain.steps]
    steps = [positions.get(name) for name in step_names]
    label = None if LABEL_COLUMN in step_names else positions.get(LABEL_COLUMN)
    if label is not None and steps[-1] is not None:
        raise BadInput(f"{path}: columns label and {chain.steps[-1].name} exclude each other")
    steps[-1] = label if steps[-1] is None else steps[-1]
    if all(column is None for column in steps):
        raise BadInput(f"{path}: no column with answers in {shown}; {expected}")
    unknown = [name for name, key in zip(names, folded, strict=True) if key not in known]
    if any(unknown):
        _LOG.warning("%s: ignored columns: %s; %s", path, ", ".join(map(repr, unknown[:20])), expected)
    texts = {name: positions[name] for name in TEXT_COLUMNS if name in positions}
    return Columns(images[0], texts, tuple(steps), len(header))


class _FileStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    question: str
    options: tuple[str, ...]


def read_chain(path: str | Path) -> Chain:
    """Read a `chain.json`: a list of steps with name, question and options.

    Options come with or without letters; "N/A" moves to the end.

    Raises:
      BadInput: the file is not such a list, a step's options cannot be used, or another step or column has a step's
        name.
    """
    entries = read_json(path, list[_FileStep], accepted=_EXPECTED_CHAIN, max_bytes=_MAX_CHAIN_BYTES)
    try:
        chain = Chain(tuple(Step(entry.name, entry.question, read_options(entry.options)) for entry in entries))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    names = [fold_column(step.name) for step in chain.steps]
    if len(set(names)) != len(names) or "" in names or not {*IMAGE_COLUMNS, *TEXT_COLUMNS}.isdisjoint(names):
        shown = [step.name[:80] for step in chain.steps]
        raise BadInput(f"{path}: step names {shown} must be distinct and differ from the other columns' names")
    return chain
