"""Draw a sample of cases for readers: for each reader a folder with a form and images, and the key.

A form is a CSV for any spreadsheet.
"""

import collections
import dataclasses
import hashlib
import io
import json
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Int32
from PIL import Image

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_sheet_rows
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, make_workdir, read_json, write_whole
from stepcot_jax.reading.cases import CaseSource

# The key of a sample: the case and true answers of each number, and the form of each reader. Readers never get it.
#
# It is one JSON file next to the readers' folders. Its digests detect changed images and record the form as given.


KEY_NAME = "key.json"
FORM_NAME = "form.csv"
IMAGE_FOLDER = "images"

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_READER = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
# Names that Windows, which a reader may use, refuses for folders.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


class KeyCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case: its number for readers, its identity and labels, and the digest of the readers' image."""

    number: int
    image_path: str
    patient_id: str
    labels: tuple[int, ...]
    sha256: Digest

    @property
    def image(self) -> str:
        """Name of the readers' image, which reveals only the number."""
        return f"case_{self.number:04d}.png"


class KeyReader(msgspec.Struct, frozen=True, kw_only=True):
    """One reader: the form, its digest, and the order of the case numbers in it."""

    name: str
    file: Literal["form.csv"]
    sha256: Digest
    order: tuple[int, ...]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of cases; their numbers ascend from 1."""

    version: Literal[1] = 1
    source: str
    seed: int
    steps: tuple[Step, ...]
    cases: tuple[KeyCase, ...]
    readers: tuple[KeyReader, ...]

    @property
    def chain(self) -> Chain:
        """The questions with their options."""
        return Chain(self.steps)


class FormRow(NamedTuple):
    """One question of a form, without the answer; the columns of the form."""

    form: str
    case: str
    image: str
    step: str
    question: str
    options: str


def identify_form(key: Key, *, name: str, order: Sequence[int]) -> str:
    """Return the id of a form, which differs for every reader, order, question, option and image."""
    content = [key.version, name, list(order), [[step.question, list(step.options)] for step in key.steps]]
    content.append([[case.number, case.sha256] for case in key.cases])
    # The prefix keeps spreadsheets from reading a number.
    return "form-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def list_rows(key: Key, *, name: str, order: Sequence[int]) -> Iterator[FormRow]:
    """Yield the questions of a reader's form, in its order."""
    form = identify_form(key, name=name, order=order)
    for number in order:
        for position, step in enumerate(key.steps, start=1):
            image, options = key.cases[number - 1].image, "; ".join(step.lettered_options)
            yield FormRow(form, str(number), image, f"Step {position}", step.question, options)


def check_names(names: Sequence[str]) -> None:
    """Check that readers' names are valid folder names on every system, and distinct."""
    if not names:
        raise BadInput("--readers is required (one or more names, separated by commas)")
    for name in names:
        if not _READER.fullmatch(name) or _RESERVED.fullmatch(name):
            raise BadInput(
                f"--readers: {name[:60]!r} is not a name of at most 40 letters, digits and '_', with spaces, '.' and "
                "'-' only inside"
            )
    if len({name.casefold() for name in names}) < len(names):
        raise BadInput(f"--readers: {list(names)} are not distinct")


def read_key(folder: Path) -> Key:
    """Read the key of a sample."""
    path = folder / KEY_NAME
    expected = "expected the key of `stepcot readers sample`"
    key = read_json(path, Key, accepted=expected)
    try:
        check_names([reader.name for reader in key.readers])
        problem = _find_problem(key)
    except BadInput as error:
        problem = str(error)
    if problem:
        raise BadInput(f"{path}, {problem}; {expected}")
    return key


def _find_problem(key: Key) -> str:
    numbers = list(range(1, len(key.cases) + 1))
    if not numbers or [case.number for case in key.cases] != numbers:
        return "cases: the numbers are not 1, 2, 3 and so on"
    answers = key.chain.answers_per_step
    for case in key.cases:
        if len(case.labels) != len(answers) or not all(
            label == NOT_ANNOTATED or 0 <= label < number for label, number in zip(case.labels, answers, strict=True)
        ):
            return f"case {case.number}: its labels are impossible"
    wrong = next((reader.name for reader in key.readers if sorted(reader.order) != numbers), None)
    return "" if wrong is None else f"reader {wrong!r}: the order is impossible"


COLUMNS = (*FormRow._fields, "answer")


def write_sample(
    folder: Path,
    source: CaseSource,
    *,
    readers: Sequence[str],
    num_cases: int,
    seed: int = 0,
    with_undiagnosed: bool = False,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Key:
    """Write the readers' folders and then the key; a folder without a key is no sample."""
    check_names(readers)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; expected a new or empty folder")
    candidates = range(len(source.cases)) if with_undiagnosed else source.diagnosed
    paths = [source.cases[candidate].image for candidate in candidates]
    diagnoses = [source.cases[candidate].answers[-1] for candidate in candidates]
    chosen = choose_stratified(paths, diagnoses, num_cases=num_cases, seed=seed)
    make_workdir(folder)
    for name in readers:
        make_workdir(folder / name / IMAGE_FOLDER)
    cases = tuple(
        _write_case(source, candidates[index], number, folders=[folder / name for name in readers])
        for number, index in progress(list(enumerate(chosen, start=1)))
    )
    key = Key(source=source.name, seed=seed, steps=source.chain.steps, cases=cases, readers=())
    key = msgspec.structs.replace(key, readers=tuple(_write_form(key, folder, name) for name in readers))
    write_whole(folder / KEY_NAME, msgspec.json.format(msgspec.json.encode(key), indent=1) + b"\n")
    return key


def encode_picture(picture: Image.Image) -> bytes:
    """Encode a picture as a PNG with its pixels alone: no date, no name, no text of its source file."""
    plain = Image.frombytes(picture.mode, picture.size, picture.tobytes())
    content = io.BytesIO()
    plain.save(content, format="PNG")
    return content.getvalue()


def _write_case(source: CaseSource, index: int, number: int, *, folders: Sequence[Path]) -> KeyCase:
    content, case = encode_picture(source.picture(index)), source.cases[index]
    entry = KeyCase(
        number=number,
        image_path=case.image,
        patient_id=case.patient,
        labels=case.answers,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    for folder in folders:
        write_whole(folder / IMAGE_FOLDER / entry.image, content)
    return entry


def _write_form(key: Key, folder: Path, name: str) -> KeyReader:
    order = [case.number for case in key.cases]
    order = [order[index] for index in shuffle(range(len(order)), list(map(str, order)), seed=f"{key.seed}:{name}")]
    content = encode_rows([COLUMNS, *([*row, ""] for row in list_rows(key, name=name, order=order))])
    write_whole(folder / name / FORM_NAME, content)
    return KeyReader(name=name, file="form.csv", sha256=hashlib.sha256(content).hexdigest(), order=tuple(order))


def choose_stratified(names: Sequence[str], strata: Sequence[int], *, num_cases: int, seed: int) -> tuple[int, ...]:
    """Choose cases in proportion to their strata, by the method of largest remainders.

    Args:
      names: unique names of the cases; the choice depends on them and not on their order.

    Returns:
      Indices of the chosen cases, in an order that depends on the seed and the names alone and not on the strata.

    >>> sorted(choose_stratified(["a", "b", "c", "d"], [0, 0, 0, 1], num_cases=3, seed=0))[-1]
    3
    """
    if not 1 <= num_cases <= len(names):
        raise BadInput(f"--num-cases={num_cases} is not 1 to {len(names)}, the number of cases")
    members: dict[int, list[int]] = collections.defaultdict(list)
    for index in shuffle(range(len(names)), names, seed=f"{seed}:cases"):
        members[strata[index]].append(index)
    quotas = share_out({stratum: len(indices) for stratum, indices in members.items()}, num_cases)
    chosen = [index for stratum, indices in members.items() for index in indices[: quotas[stratum]]]
    return tuple(shuffle(chosen, names, seed=f"{seed}:numbers"))


def share_out(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` in proportion to sizes, by the method of largest remainders.

    Of equal remainders the larger stratum comes first, then the smaller label.

    >>> share_out({0: 6, 1: 3, 2: 1}, 5)
    {0: 3, 1: 2, 2: 0}
    """
    size_of_all = sum(sizes.values())
    parts = {stratum: size * total // size_of_all for stratum, size in sizes.items()}
    order = sorted(sizes, key=lambda stratum: (-(sizes[stratum] * total % size_of_all), -sizes[stratum], stratum))
    for stratum in order[: total - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def shuffle(indices: Iterable[int], names: Sequence[str], *, seed: Hashable) -> list[int]:
    """Shuffle indices by a hash of each name, independently of any library's random generator."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{names[index]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(indices, key=rank)


# Read filled forms. An error about an incomplete, altered or foreign form names file, row, case and step.


_MOST_BYTES = 64 * 2**20
_NUM_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class FilledForm:
    """One reader's answers."""

    reader: str
    path: Path
    labels: Int32[np.ndarray, "case step"]


def read_forms(key: Key, folder: Path, paths: Sequence[Path]) -> tuple[FilledForm, ...]:
    """Read the answers of filled forms, in the key's order of readers."""
    forms: dict[str, FilledForm] = {}
    for path in paths:
        form = _read_form(key, path)
        if form.reader in forms:
            raise BadInput(f"{path}: a second form of {form.reader} (the first is {forms[form.reader].path})")
        forms[form.reader] = form
        _check_given(key, folder, path, form.reader)
    return tuple(forms[reader.name] for reader in key.readers if reader.name in forms)


def _read_form(key: Key, path: Path) -> FilledForm:
    rows = _read_rows(path)
    _, header = next(rows, (1, []))
    if len(header) != len(COLUMNS) or not all(map(is_same_cell, header, COLUMNS)):
        shown = [cell[:_NUM_SHOWN] for cell in header[:10]]
        raise BadInput(f"{path}, row 1: columns {shown} are not {list(COLUMNS)}")
    reader: KeyReader | None = None
    expected: dict[tuple[str, str], FormRow] = {}
    seen: dict[tuple[str, str], int] = {}
    answers: dict[tuple[str, str], int] = {}
    steps = {f"Step {position}": step for position, step in enumerate(key.steps, start=1)}
    for number, cells in rows:
        where = f"{path}, row {number}"
        if len(cells) != len(COLUMNS):
            raise BadInput(f"{where} has {len(cells)} cells, not {len(COLUMNS)}")
        row = dict(zip(COLUMNS, cells, strict=True))
        if reader is None:
            reader = _find_reader(key, row["form"], where)
            expected = {
                (question.case, question.step): question
                for question in list_rows(key, name=reader.name, order=reader.order)
            }
        asked = _identify_question(row, expected, where)
        where = f"{where} (case {asked[0]}, {asked[1]})"
        if asked in seen:
            raise BadInput(f"{where} repeats row {seen[asked]}")
        seen[asked] = number
        for column, written in expected[asked]._asdict().items():
            if not is_same_cell(row[column], written):
                raise BadInput(f"{where}, {column!r}: {row[column][:_NUM_SHOWN]!r} was changed; expected {written!r}")
        answers[asked] = _read_answer(row["answer"], steps[asked[1]], where)
    if reader is None:
        raise BadInput(f"{path} has no rows after the first")
    _require_complete(path, expected, answers)
    labels = [[answers[str(case.number), step] for step in steps] for case in key.cases]
    return FilledForm(reader.name, path, np.array(labels, np.int32))


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Return the rows that are not blank, with their numbers in a spreadsheet."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); expected a filled form") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise BadInput(
            f"{path} is not a regular file of at most {_MOST_BYTES} bytes; expected a filled form, saved as CSV"
        )
    rows = enumerate(read_sheet_rows(path), start=1)
    return ((number, row) for number, row in rows if any(cell.strip() for cell in row))


def _find_reader(key: Key, form: str, where: str) -> KeyReader:
    for reader in key.readers:
        if is_same_cell(form, identify_form(key, name=reader.name, order=reader.order)):
            return reader
    names = ", ".join(reader.name for reader in key.readers)
    raise BadInput(
        f"{where}, 'form': {form[:_NUM_SHOWN]!r} is of another sample; expected a form of this one, for {names}"
    )


def _identify_question(row: dict[str, str], expected: dict[tuple[str, str], FormRow], where: str) -> tuple[str, str]:
    case, step = (" ".join(row[column].split()) for column in ("case", "step"))
    if (case, step) in expected:
        return case, step
    cases = {known for known, _ in expected}
    column, value = ("step", step) if case in cases else ("case", case)
    known = f"Step 1 to Step {len(expected) // len(cases)}" if column == "step" else f"1 to {len(cases)}"
    raise BadInput(f"{where}, {column!r}: {value[:_NUM_SHOWN]!r} is not one of {known}")


def _read_answer(answer: str, step: Step, where: str) -> int:
    """Return the label of an answer; `NOT_ANNOTATED` if it is missing, which is reported for all rows together."""
    try:
        return step.read_answer(answer)
    except BadInput:
        known = ", ".join(step.lettered_options)
        raise BadInput(f"{where}, 'answer': {answer.strip()[:_NUM_SHOWN]!r} is not one of {known}") from None


def _require_complete(
    path: Path, expected: dict[tuple[str, str], FormRow], answers: dict[tuple[str, str], int]
) -> None:
    missing = [question for question in expected if answers.get(question, NOT_ANNOTATED) == NOT_ANNOTATED]
    if missing:
        case, step = missing[0]
        problem = "no answer" if missing[0] in answers else "no row"
        more = f", {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise BadInput(f"{path}, case {case}, {step}: {problem}{more}; expected answers to all {len(expected)}")


def _check_given(key: Key, folder: Path, form: Path, name: str) -> None:
    """Refuse images that differ from those of the key, in the sample's folder and next to the filled form."""
    for case in key.cases:
        _require_digest(folder / name / IMAGE_FOLDER / case.image, case.sha256)
        returned = form.parent / IMAGE_FOLDER / case.image
        if returned.is_file():
            _require_digest(returned, case.sha256)


def _require_digest(path: Path, expected: str) -> None:
    try:
        _, digest = digest_file(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); expected the file that was given out") from None
    if digest != expected:
        raise BadInput(f"{path} was changed; expected the file that was given out (SHA-256 {expected})")
