"""What the readers of released VQA data share: undecoded records, choices with letters, images and patients."""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepcot_jax.data.grounded.record_files import read_lines
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.records.record_reader import ImageLocator, normalise_image_path
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.delimited import read_table
from stepcot_jax.data.sources.setting_aside import Sorting
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.reasoning.record import Kind, VqaRecord
from stepcot_jax.reasoning.written_answers import read_answer

SUFFIXES = (".jsonl", ".json", ".csv")

T = TypeVar("T")

_CHOICE = re.compile(r"\s*([A-Z])\s*[:.)]\s*(\S.*)", re.DOTALL)
_MIMIC_PATIENT = re.compile(r"(?:^|/)(p[0-9]{8})(?=/)")
_CHOICES_MARK = "<choices>:"
_IMAGE_MARK = "<image>"
_ANY_ANSWER: dict[Kind, str | tuple[str, ...]] = {"open": "-", "closed": "Yes", "single": "A", "multi": ("A",)}


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any] | BadInput]]:
    """Yield the place and the content of each record, one at a time, or why it cannot be decoded."""
    if path.suffix.lower() == ".csv":
        header, rows = read_table(path, known_columns=())
        for row in rows:
            fits = len(row.cells) == len(header)
            cells = dict(zip(header, row.cells, strict=False))
            yield (
                f"row {row.number}",
                cells if fits else BadInput(f"has {len(row.cells)} cells; expected {len(header)}"),
            )
    elif _is_array(path):
        for number, raw in enumerate(data_json.read_raw_records(path)):
            yield f"record {number}", _decode(raw)
    else:
        for number, line in read_lines(path, expected="expected one JSON object per line"):
            yield f"line {number}", _decode(line)


def convert_fields(fields: dict[str, Any], kind: type[T]) -> T:
    """Return a record's fields as a checked type; unknown fields are ignored."""
    try:
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        raise BadInput(f"{field}: {message}" if field else message) from None


def strip_letters(choices: Sequence[str]) -> tuple[str, ...]:
    """Return choices without "A: ", "B: " and so on.

    >>> strip_letters(["A: left", "B: right"])
    ('left', 'right')
    """
    stripped = []
    for place, choice in enumerate(choices):
        found = _CHOICE.fullmatch(choice)
        letter = string.ascii_uppercase[place : place + 1]
        if not found or found[1] != letter:
            expected = f"expected a text after {letter + ': '!r}" if letter else "expected at most 26 choices"
            raise BadInput(f"choices[{place}]: {choice[:80]!r}; {expected}")
        stripped.append(found[2].strip())
    return tuple(stripped)


def split_question(text: str) -> tuple[str, tuple[str, ...]]:
    r"""Return question and bare choices of a prompt; what follows the choices' bracket is left out.

    >>> split_question("<image>\nWhich side? <choices>: [A: left, upper, B: right] Choose one.")
    ('Which side?', ('left, upper', 'right'))
    """
    question, mark, rest = text.strip().removeprefix(_IMAGE_MARK).partition(_CHOICES_MARK)
    if not mark:
        return question.strip(), ()
    opening, closing = rest.find("["), rest.rfind("]")
    if opening < 0 or closing < opening or rest[:opening].strip():
        raise BadInput(f"choices: {rest[:80]!r} is not '[A: .., B: ..]'")
    inner, pieces = rest[opening + 1 : closing], []
    start = 0
    for letter in string.ascii_uppercase[1:]:
        found = inner.find(f", {letter}:", start)
        if found < 0:
            break
        pieces.append(inner[start:found])
        start = found + 2
    return question.strip(), strip_letters([*pieces, inner[start:]])


def locate_image(locator: ImageLocator, image_path: str) -> tuple[str, str]:
    """Return an image's normal path below the root, and its real path; a leading slash is dropped."""
    path = image_path.strip().lstrip("/")
    try:
        real_path = locator.locate(path)
    except BadInput as error:
        raise BadInput(f"image_path: {error}") from None
    return normalise_image_path(path), real_path


def find_patient(image_path: str) -> str:
    """Return the patient in a MIMIC-CXR path ("files/p10/p10000032/.."), else the path: one patient per image."""
    found = _MIMIC_PATIENT.search(image_path)
    return found[1] if found else image_path


def make_record(written: str, *, kind: Kind, field: str = "answer", **fields: Any) -> VqaRecord:
    """Return a record with the answer read from its text, as `reasoning.written_answers.read_answer` reads it."""
    record = VqaRecord(kind=kind, answer=_ANY_ANSWER[kind], **fields)
    if kind == "open":
        return msgspec.structs.replace(record, answer=written.strip())
    answer = read_answer(written, record)
    if answer is None:
        raise BadInput(f"{field}: {written[:80]!r} is no readable answer of kind {kind!r}")
    return msgspec.structs.replace(record, answer=answer)


def _is_array(path: Path) -> bool:
    try:
        with open_untrusted(path, accepted="a JSON file") as file:
            return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def _decode(raw: bytes) -> dict[str, Any] | BadInput:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return BadInput(f"{one_line(error)}; expected a JSON object")


class NotARecord(BadInput):
    """A record that is valid and yet no question with an answer about one image."""


def read_each(
    paths: Iterable[Path],
    read: Callable[..., VqaRecord],
    *,
    on_bad_record: OnBadRecord,
    set_aside: list[SetAside] | None,
) -> Iterator[VqaRecord]:
    """Yield the records of files; bad records stop or are set aside, those that a reader's rule excludes are set aside.

    Args:
      read: (fields, path=.., place=..) -> the record; raises `NotARecord` for one that a rule excludes.
    """
    for path in paths:
        sorting = Sorting(path, on_bad_record=on_bad_record, set_aside=set_aside)
        for place, fields in read_objects(path):
            try:
                if isinstance(fields, BadInput):
                    raise fields
                record = read(fields, path=path, place=place)
            except NotARecord as error:
                sorting.leave_out(f"{place}, {error}")
                continue
            except BadInput as error:
                sorting.refuse(f"{place}, {error}")
                continue
            sorting.count()
            yield record
        sorting.finish()
