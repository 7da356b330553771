"""A hospital's own table: one row per image, with its report and the answers of one or more steps.

Every cell is text: a cell that a spreadsheet would run as a formula is read literally.
"""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import ImageLocator, normalise_image_path
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord
from stepcot_jax.data.sources.csv_columns import (
    CHAIN_NAME,
    PATIENT_COLUMN,
    TABLE_NAME,
    Columns,
    find_columns,
    known_columns,
    read_chain,
)
from stepcot_jax.data.sources.delimited import Row, read_age, read_table
from stepcot_jax.data.sources.findings import DIAGNOSES, NORMAL, Answers, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import Intake
from stepcot_jax.host.errors import BadInput

_SEXES = {"": "", "f": "F", "female": "F", "m": "M", "male": "M", "o": "O", "other": "O"}
_MAX_AGE = 150
_LOG = logging.getLogger(__name__)


def read_csv_table(
    root: Path,
    *,
    step_names: Sequence[str] = PUBLISHED_STEP_NAMES,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
) -> Collection:
    """Read `cases.csv`: image, report, patient_id, origin, sex, age, view and one column per step.

    Column names ignore letter case, spacing, "_" and "-". Only image and one column with answers are required. Answers
    are letters or texts of the options; an empty cell is not annotated. The chain comes from `chain.json` beside the
    table, else it is `DEFAULT_CHAIN`. If only the diagnosis of `DEFAULT_CHAIN` is answered, `findings` adds the answers
    that follow from it. Without patient_id each image counts as a patient of its own, with a warning.

    Args:
      root: folder with `cases.csv`, or a table of any name.
      step_names: name of each step of the chain; the published names are accepted with any chain.
      on_bad_record: as in `layouts.read_source`.
      require_images: whether a row without its image file is bad.

    Raises:
      BadInput: the table cannot be used, no row is good, or a row is bad and `on_bad_record` is "stop".
    """
    path = Path(root) / TABLE_NAME if Path(root).is_dir() else Path(root)
    folder = path.parent
    chain = _find_chain(folder, step_names=step_names)
    header, rows = read_table(path, known_columns=known_columns(chain))
    columns = find_columns(header, chain=chain, path=path)
    if PATIENT_COLUMN not in columns.texts:
        _LOG.warning("%s: no column patient_id: each image counts as a patient of its own", path)
    reader = _RowReader(folder, columns=columns, chain=chain, require_images=require_images)
    intake = Intake(folder, file=path.name, layout="csv", on_bad_record=on_bad_record)
    for row in rows:
        try:
            case, real_path = reader.read(row)
        except BadInput as error:
            image_path, patient_id = reader.identify(row)
            intake.refuse(f"row {row.number}: {error}", image_path=image_path, patient_id=patient_id)
        else:
            intake.keep(case, real_path=real_path, place=f"row {row.number}")
    return intake.finish(chain)


def _find_chain(folder: Path, *, step_names: Sequence[str]) -> Chain:
    path = folder / CHAIN_NAME
    chain = read_chain(path) if path.exists() else DEFAULT_CHAIN
    expected = tuple(step.name for step in chain.steps)
    if tuple(step_names) not in (expected, PUBLISHED_STEP_NAMES):
        where = path if path.exists() else f"{folder}: without {CHAIN_NAME}"
        raise BadInput(f"{where}: step_names {list(step_names)} do not match the chain's {list(expected)}")
    return chain


class _RowReader:
    """Reads single rows; caches answers, which repeat in nearly every row."""

    def __init__(self, folder: Path, *, columns: Columns, chain: Chain, require_images: bool) -> None:
        self._locator = ImageLocator(folder, require_images=require_images)
        self._columns = columns
        self._chain = chain
        self._read_label = functools.cache(self._parse_label)
        self._derives = chain == DEFAULT_CHAIN and all(place is None for place in columns.steps[:-1])

    def identify(self, row: Row) -> tuple[str, str]:
        """Return image and patient of a bad row, each "" where the row is too short."""
        cells = dict(enumerate(row.cells))
        return cells.get(self._columns.image, ""), cells.get(self._columns.texts.get(PATIENT_COLUMN, -1), "")

    def read(self, row: Row) -> tuple[Case, str]:
        """Return the case of a row, and the real path of its image.

        Raises:
          BadInput: the row has too few or too many cells, or one of them is not acceptable; names the column.
        """
        num_columns = self._columns.num_columns
        if len(row.cells) < num_columns or any(row.cells[num_columns:]):
            raise BadInput(f"{len(row.cells)} cells instead of {num_columns} as in the header")
        if any("\0" in cell for cell in row.cells):
            raise BadInput("a cell has a NUL byte; expected text")
        image = row.cells[self._columns.image]
        try:
            real_path = self._locator.locate(image)
        except BadInput as error:
            raise BadInput(f"column image: {error}") from error
        texts = {name: row.cells[place] for name, place in self._columns.texts.items()}
        # Messages end up in logs: they must not quote a patient's cells.
        if not texts.get(PATIENT_COLUMN, image):
            raise BadInput("column patient_id: is empty; expected a patient's identifier")
        sex = _SEXES.get(texts.get("sex", "").casefold())
        if sex is None:
            raise BadInput("column sex: is not F, M, O or empty")
        age = read_age(texts.get("age", ""), most=_MAX_AGE)
        if texts.get("age") and age is None:
            raise BadInput(f"column age: is not a number of years from 0 to {_MAX_AGE} or empty")
        labels, reasoning = self._answer(row)
        case = Case(
            patient_id=texts.get(PATIENT_COLUMN, normalise_image_path(image)),
            image_path=normalise_image_path(image),
            origin=texts.get("origin", ""),
            report=texts.get("report", ""),
            labels=labels,
            reasoning=reasoning,
            sex=sex,
            age=age,
            view=texts.get("view", ""),
        )
        return case, real_path

    def _answer(self, row: Row) -> Answers:
        labels = tuple(
            NOT_ANNOTATED if place is None else self._read_label(index, row.cells[place])
            for index, place in enumerate(self._columns.steps)
        )
        if not self._derives or labels[-1] == NOT_ANNOTATED:
            return labels, ("",) * len(labels)
        diagnosis = self._chain.steps[-1].options[labels[-1]]
        reason = f"Follows from the diagnosis {diagnosis}."
        if diagnosis == NORMAL:
            return answer_normal(reason)
        return answer_findings([DIAGNOSES[diagnosis]], diagnosis=diagnosis, reason=reason)

    def _parse_label(self, index: int, written: str) -> int:
        try:
            return self._chain.steps[index].read_answer(written)
        except BadInput as error:
            raise BadInput(f"column {self._chain.steps[index].name}: {error}") from error
