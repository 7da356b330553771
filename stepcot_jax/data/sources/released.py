"""Files of released questions: undecoded records, one at a time, and the parts that releases have in common."""

import functools
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepcot_jax import chain
from stepcot_jax.box import Box, Corners
from stepcot_jax.data import parquet
from stepcot_jax.data.identities import normalise_image_path
from stepcot_jax.data.questions.record_files import read_lines
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.json_arrays import find_no_json, read_raw_records
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.splits.split_resolver import read_sheet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.reasoning.answers import read_answer
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Kind, Record

TABLE_SUFFIXES = (".jsonl", ".json", ".csv")
T = TypeVar("T")
Locate = Callable[[str], tuple[str, str]]
"""Returns the normal path of an image below the root, and its real path."""


class NotARecord(BadInput):
    """A valid record that is not a question with an answer about one image."""


def list_records(root: Path, how: How, files: Sequence[Path], read: Callable[..., dict[str, Any]]) -> Source:
    """List the records of files; a rule excludes those that are `NotARecord`.

    `read(fields, how, locate=..., path=...)` returns the arguments of `make_record` but for id and place in the file.
    """
    folder = root if root.is_dir() else root.parent
    listed = (item for path in files for item in _list(path, folder, how, read, several=len(files) > 1))
    return Source(folder, "" if len(files) > 1 else files[0].relative_to(folder).as_posix(), listed)


def _list(
    path: Path, folder: Path, how: How, read: Callable[..., dict[str, Any]], *, several: bool
) -> Iterator[Listed]:
    locate = functools.partial(locate_image, ImageLocator(folder, require_images=how.require_images))
    name = f"{path.relative_to(folder).as_posix()}, " if several else ""
    for location, fields in read_objects(path):
        try:
            if isinstance(fields, BadInput):
                raise fields
            made = read(fields, how, locate=locate, path=path)
            provenance = {"file": path.name, "row": location, **made.pop("provenance")}
            record = make_record(id=f"{path.name}:{location.rpartition(' ')[2]}", provenance=provenance, **made)
        except NotARecord as error:
            yield Listed(name + location, Record(image="", patient=""), rule=f"{name}{location}, {error}")
        except BadInput as error:
            yield refused(name + location, f"{name}{location}, {error}")
        else:
            yield Listed(name + location, record)


def read_objects(path: Path, *, name: str | None = None) -> Iterator[tuple[str, dict[str, Any] | BadInput]]:
    """Yield the location and the content of each record, one at a time, or why it cannot be decoded.

    `name` is that of a Parquet table in the paths of its pictures, without it the file's.
    """
    if path.suffix.lower() == parquet.SUFFIX:
        for number, fields in parquet.read_rows(path, name=path.name if name is None else name):
            yield f"row {number}", fields
    elif path.suffix.lower() in (".csv", ".tsv", ".xlsx"):
        header, rows = read_sheet(path)
        for row in rows:
            if len(row.cells) == len(header):
                yield f"row {row.number}", dict(zip(header, row.cells, strict=True))
            else:
                yield f"row {row.number}", BadInput(f"has {len(row.cells)} cells; expected {len(header)}")
    elif _is_array(path):
        for number, raw in enumerate(read_raw_records(path)):
            yield f"record {number}", _decode(raw)
    else:
        for number, line in read_lines(path, expected="expected one JSON object per line"):
            yield f"line {number}", _decode(line)


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
        found = find_no_json(raw)
        return BadInput(f"{': '.join(found) if found else one_line(error)}; expected a JSON object")


def convert_fields(fields: dict[str, Any], kind: type[T], *, strict: bool = True) -> T:
    """Return a record's fields as a checked type; unknown fields are ignored."""
    try:
        return msgspec.convert(fields, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        field, message = data_json.split_message(error)
        raise BadInput(f"{field}: {message}" if field else message) from None


# Parts of a record that both releases have: question and choices, image, answer, boxes.

_FIRST_CHOICE = re.compile(r"\s*(\(?)A([:.)])")
_CHOICES_MARK = "<choices>:"
_IMAGE_MARK = "<image>"
UNNAMED = "region"  # label of a box without a name in the release
_ANY_ANSWER: dict[Kind, str | tuple[str, ...]] = {"open": "-", "closed": "Yes", "single": "A", "multi": ("A",)}
REPLY = "conversations[1].value"


class Turn(msgspec.Struct, frozen=True, rename={"speaker": "from"}):
    """One turn of a conversation."""

    speaker: str
    value: str


def read_turns(conversation: Sequence[Turn], *, otherwise: type[BadInput] = BadInput) -> tuple[str, str]:
    """Return the text of a human's turn and of the model's reply to it."""
    speakers = [turn.speaker for turn in conversation]
    if speakers != ["human", "gpt"]:
        raise otherwise(f"conversations: turns of {speakers[:6]}; a record is one of human and one of gpt")
    return conversation[0].value, conversation[1].value


def strip_letters(choices: Sequence[str]) -> tuple[str, ...]:
    """Return choices without "A: ", "B: " and so on, which each must have."""
    bare = chain.strip_letters(choices)
    if choices and bare == tuple(choices):
        pairs = enumerate(zip(choices, string.ascii_uppercase, strict=False))
        bad = ((k, letter) for k, (choice, letter) in pairs if not choice.lstrip(" (").startswith(letter))
        index, letter = next(bad, (0, "A"))
        raise BadInput(f"choices[{index}]: {choices[index][:80]!r}; expected a text after {letter + ': '!r} (2 to 26)")
    return bare


def split_question(text: str) -> tuple[str, tuple[str, ...]]:
    r"""Return question and bare choices of a prompt; text after the choices' bracket is left out."""
    question, mark, rest = text.strip().removeprefix(_IMAGE_MARK).partition(_CHOICES_MARK)
    if not mark:
        return question.strip(), ()
    opening, closing = rest.find("["), rest.rfind("]")
    if opening < 0 or closing < opening or rest[:opening].strip():
        raise BadInput(f"choices: {rest[:80]!r} is not '[A: .., B: ..]'")
    inner, pieces = rest[opening + 1 : closing], []
    first = _FIRST_CHOICE.match(inner)
    before, behind = first.groups() if first else ("", ":")
    start = 0
    for letter in string.ascii_uppercase[1:]:
        position = inner.find(f", {before}{letter}{behind}", start)
        if position < 0:
            break
        pieces.append(inner[start:position])
        start = position + 2
    return question.strip(), strip_letters([*pieces, inner[start:]])


def locate_image(locator: ImageLocator, image_path: str) -> tuple[str, str]:
    """Return an image's normal path below the root, and its real path; a leading slash is dropped."""
    path = image_path.strip().lstrip("/")
    try:
        real_path = locator.locate(path)
    except BadInput as error:
        raise BadInput(f"image_path: {error}") from None
    return normalise_image_path(path), real_path


def make_record(written: str, *, kind: Kind, field: str = "answer", **fields: Any) -> Record:
    """Return a record with the answer read from its text, as `reasoning.replies.read_answer` reads it."""
    record = Record(kind=kind, answer=_ANY_ANSWER[kind], **fields)
    answer = written.strip() if kind == "open" else read_answer(written, record)
    if answer is None:
        raise BadInput(f"{field}: {written[:80]!r} is no readable answer of kind {kind!r}")
    return msgspec.structs.replace(record, answer=answer)


def read_whole_reply(text: str, dialect: str, *, field: str = REPLY) -> Reply:
    """Return a reply that has no problem."""
    reply = read_reply(text, dialect)
    if reply.problems:
        raise BadInput(f"{field}: {reply.problems[0]} (dialect {dialect!r})")
    return reply


def label_boxes(names: Iterable[str], boxes: Iterable[Corners], *, field: str) -> tuple[Box, ...]:
    """Return usable boxes with their names."""
    made = []
    for number, (name, box) in enumerate(zip(names, boxes, strict=True)):
        try:
            made.append(Box(name, box).check())
        except BadInput as error:
            raise BadInput(f"{field.format(number)}: {error}") from None
    return tuple(made)
