"""The published layout of `data.json`, and nothing of its meaning: bytes to typed records and back.

`data.json` is one array of records: patient_id, image_path, origin, report and vqa_chain, which holds one
entry a step: step, question, options, answer, reasoning (authors' dataset card). The optional
`stepcot_jax` holds what we keep beyond that; any other field is passed over. `records` gives the entries their meaning.
"""

import codecs
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from stepcot_jax.errors import BadInput

FILE_NAME = "data.json"

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class PublishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `vqa_chain`; a missing answer means the same as null: nobody answered."""

    step: str
    question: str
    options: tuple[str, ...]
    answer: str | None = None
    reasoning: str | None


class PublishedBox(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a finding is, in pixels of the image file."""

    label: str
    x: Annotated[float, msgspec.Meta(ge=0)]
    y: Annotated[float, msgspec.Meta(ge=0)]
    width: Annotated[float, msgspec.Meta(gt=0)]
    height: Annotated[float, msgspec.Meta(gt=0)]
    sentence: str = ""


class Addition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What we keep of a case beyond the authors' fields, under a name of its own so that it meets no other's field."""

    boxes: tuple[PublishedBox, ...] = ()
    sex: Literal["", "F", "M", "O"] = ""
    age: Annotated[float, msgspec.Meta(ge=0, le=150)] | None = None
    view: str = ""
    provenance: dict[str, str] = {}


NOTHING_ADDED = Addition()


class PublishedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `data.json`; `stepcot_jax` is ours and optional."""

    patient_id: str | int
    image_path: str
    origin: str | None
    report: str | None
    vqa_chain: tuple[PublishedStep, ...]
    stepcot_jax: Addition | None = None


class _Identity(msgspec.Struct):
    patient_id: object = None
    image_path: object = None


_DECODER = msgspec.json.Decoder(PublishedRecord)
_IDENTITY_DECODER = msgspec.json.Decoder(_Identity)


def read_raw_records(path: Path) -> list[msgspec.Raw]:
    """The undecoded records of a `data.json`, so that one bad record leaves the others readable.

    Args:
      path: the file; UTF-8, with or without a byte order mark.

    Raises:
      BadInput: the file cannot be read, is not UTF-8, not JSON, or not a non-empty array.
    """
    accepted = "accepted is a JSON array of records in UTF-8"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {accepted}") from error
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            raise BadInput(f"{path}: found {encoding} text; {accepted}")
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: found bytes that are not UTF-8 (first at byte {error.start}); {accepted}") from error
    if not content.strip():
        raise BadInput(f"{path}: found an empty file; {accepted}")
    try:
        raw_records = msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}; {accepted}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not readable as JSON: {error}; {accepted}") from error
    if not raw_records:
        raise BadInput(f"{path}: found an array without records; {accepted}")
    return raw_records


def decode_record(raw: msgspec.Raw, *, index: int) -> PublishedRecord:
    """One typed record.

    Args:
      raw: the record's bytes.
      index: its position in the array, from 0, for the JSON path of an error.

    Raises:
      BadInput: a field is missing or of another type; the message ends with the JSON path.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        message = str(error)
        place = f"`$[{index}]"
        raise BadInput(message.replace("`$", place) if "`$" in message else f"{message} - at {place}`") from error


def identify(raw: msgspec.Raw) -> tuple[str, str]:
    """Patient and image path of a record that may be bad otherwise, each "" where it cannot be read."""
    try:
        found = _IDENTITY_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    patient = str(found.patient_id) if isinstance(found.patient_id, str | int) else ""
    return patient, found.image_path if isinstance(found.image_path, str) else ""


def encode_records(records: Iterable[PublishedRecord]) -> bytes:
    """Records as the bytes of a `data.json`, indented for reading."""
    return msgspec.json.format(msgspec.json.encode(list(records)), indent=1) + b"\n"


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader finds the old content or the new, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
