"""Read filled forms; an incomplete, altered or foreign form is refused by file, row, case and step."""

import dataclasses
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from stepcot_jax.annotate.spreadsheets import is_same_cell, read_rows
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.readers.key import IMAGE_FOLDER, FormRow, Key, KeyReader, identify_form, list_rows
from stepcot_jax.readers.sampling import COLUMNS

_MOST_BYTES = 64 * 2**20
_NUM_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class FilledForm:
    """One reader's answers.

    Attributes:
      labels: int32 [case, step], in the order of the key's cases; all questions are answered.
    """

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
        found = [cell[:_NUM_SHOWN] for cell in header[:10]]
        raise BadInput(f"{path}, row 1: columns {found} are not {list(COLUMNS)}")
    reader: KeyReader | None = None
    expected: dict[tuple[str, str], FormRow] = {}
    seen: dict[tuple[str, str], int] = {}
    answers: dict[tuple[str, str], int] = {}
    steps = {f"Step {place}": step for place, step in enumerate(key.steps, start=1)}
    for number, cells in rows:
        where = f"{path}, row {number}"
        if len(cells) != len(COLUMNS):
            raise BadInput(f"{where} has {len(cells)} cells, not {len(COLUMNS)}")
        row = dict(zip(COLUMNS, cells, strict=True))
        if reader is None:
            reader = _find_reader(key, row["form"], where)
            expected = {(each.case, each.step): each for each in list_rows(key, name=reader.name, order=reader.order)}
        place = _place_row(row, expected, where)
        where = f"{where} (case {place[0]}, {place[1]})"
        if place in seen:
            raise BadInput(f"{where} repeats row {seen[place]}")
        seen[place] = number
        for column, written in expected[place]._asdict().items():
            if not is_same_cell(row[column], written):
                raise BadInput(f"{where}, {column!r}: {row[column][:_NUM_SHOWN]!r} was changed; expected {written!r}")
        answers[place] = _read_answer(row["answer"], steps[place[1]], where)
    if reader is None:
        raise BadInput(f"{path} has no rows after the first")
    _require_complete(path, expected, answers)
    labels = [[answers[str(case.number), step] for step in steps] for case in key.cases]
    return FilledForm(reader.name, path, np.array(labels, np.int32))


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, with their numbers in a spreadsheet."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); expected a filled form") from None
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
        raise BadInput(
            f"{path} is not a regular file of at most {_MOST_BYTES} bytes; expected a filled form, saved as CSV"
        )
    rows = enumerate(read_rows(path), start=1)
    return ((number, row) for number, row in rows if any(cell.strip() for cell in row))


def _find_reader(key: Key, form: str, where: str) -> KeyReader:
    for reader in key.readers:
        if is_same_cell(form, identify_form(key, name=reader.name, order=reader.order)):
            return reader
    names = ", ".join(reader.name for reader in key.readers)
    raise BadInput(
        f"{where}, 'form': {form[:_NUM_SHOWN]!r} is of another sample; expected a form of this one, for {names}"
    )


def _place_row(row: dict[str, str], expected: dict[tuple[str, str], FormRow], where: str) -> tuple[str, str]:
    case, step = (" ".join(row[column].split()) for column in ("case", "step"))
    if (case, step) in expected:
        return case, step
    cases = {known for known, _ in expected}
    column, found = ("step", step) if case in cases else ("case", case)
    known = f"Step 1 to Step {len(expected) // len(cases)}" if column == "step" else f"1 to {len(cases)}"
    raise BadInput(f"{where}, {column!r}: {found[:_NUM_SHOWN]!r} is not one of {known}")


def _read_answer(answer: str, step: Step, where: str) -> int:
    """The label of an answer; `NOT_ANNOTATED` where it is missing, which is reported for all rows together."""
    try:
        return step.read_answer(answer)
    except BadInput:
        known = ", ".join(step.lettered_options)
        raise BadInput(f"{where}, 'answer': {answer.strip()[:_NUM_SHOWN]!r} is not one of {known}") from None


def _require_complete(
    path: Path, expected: dict[tuple[str, str], FormRow], answers: dict[tuple[str, str], int]
) -> None:
    missing = [place for place in expected if answers.get(place, NOT_ANNOTATED) == NOT_ANNOTATED]
    if missing:
        case, step = missing[0]
        found = "no answer" if missing[0] in answers else "no row"
        more = f", {len(missing) - 1} more are missing" if len(missing) > 1 else ""
        raise BadInput(f"{path}, case {case}, {step}: {found}{more}; expected answers to all {len(expected)}")


def _check_given(key: Key, folder: Path, form: Path, name: str) -> None:
    """Refuse images, and the page that shows them, that differ from those of the key."""
    given = folder / name
    reader = key.find(name)
    if reader.file == "form.html":  # a CSV is filled in its place
        _require_digest(given / reader.file, reader.sha256)
    for case in key.cases:
        _require_digest(given / IMAGE_FOLDER / case.image, case.sha256)
        came_back = form.parent / IMAGE_FOLDER / case.image
        if came_back.is_file():
            _require_digest(came_back, case.sha256)


def _require_digest(path: Path, expected: str) -> None:
    try:
        _, found = digest_file(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); expected the file that was given out") from None
    if found != expected:
        raise BadInput(f"{path} was changed; expected the file that was given out (SHA-256 {expected})")
