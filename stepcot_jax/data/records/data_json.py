"""The published layout of `data.json`, and nothing of its meaning: bytes to typed records and back.

`data.json` is one array of records: patient_id, image_path, origin, report and vqa_chain, which holds one
entry a step: step, question, options, answer, reasoning (authors' dataset card). The optional
`stepcot_jax` holds what we keep beyond that; any other field is passed over. `records` gives the entries their meaning.
"""

import codecs
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec

from stepcot_jax.data.records.array_splitter import ArraySplitter
from stepcot_jax.host.errors import BadInput

FILE_NAME = "data.json"

_CHUNK_BYTES = 2**18

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


def read_raw_records(path: Path, *, visit: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The undecoded records of a `data.json`, so that one bad record leaves the others readable.

    The file is read as the records are taken: of a file of any size no more than a part is in memory.

    Args:
      path: the file; UTF-8, with or without a byte order mark.
      visit: called now and then with the number of bytes read so far, as progress bars need it.

    Raises:
      BadInput: the file cannot be read, is not UTF-8, not JSON, or not a non-empty array of records of an
        acceptable size; raised where the reading comes upon it.
    """
    accepted = "accepted is a JSON array of records in UTF-8"
    num_records, num_bytes = 0, 0
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput("found no ordinary file")  # to open a pipe would be to wait for ever
        with path.open("rb") as file:
            splitter = ArraySplitter(start=_pass_over_mark(file))
            while chunk := file.read(_CHUNK_BYTES):
                num_bytes += len(chunk)
                records = splitter.feed(chunk)
                num_records += len(records)
                yield from records
                if visit is not None:
                    visit(num_bytes)
            splitter.close()
    except BadInput as error:
        raise BadInput(f"{path}: {error}; {accepted}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {accepted}") from error
    if not num_records:
        raise BadInput(f"{path}: found an array without records; {accepted}")


def _pass_over_mark(file: BinaryIO) -> int:
    """Length of the byte order mark of UTF-8 at the start of a file, which is then at its first character."""
    start = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            raise BadInput(f"found {encoding} text")
    return file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)


def decode_record(raw: bytes, *, index: int) -> PublishedRecord:
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


def identify(raw: bytes) -> tuple[str, str]:
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
