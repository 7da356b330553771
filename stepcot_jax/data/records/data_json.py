"""The published layout of `data.json`: bytes to typed records and back.

`data.json` is one array of records: patient_id, image_path, origin, report and vqa_chain, which holds one
entry a step: step, question, options, answer, reasoning (authors' dataset card). The optional
`stepcot_jax` holds our additional fields; other fields are ignored. `record_reader` interprets the entries.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec

from stepcot_jax.data.records.array_splitter import ArraySplitter
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten
from stepcot_jax.host.untrusted import Limits, exceeds, open_untrusted, read_limits

FILE_NAME = "data.json"

_CHUNK_BYTES = 2**18
_MOST_OPTIONS = 1000
SHORT_RECORD, MOST_SHORT_RECORDS = 16, 10_000
"""Bytes that any record has, and how many may have fewer: each costs as much time as a whole one."""
_LARGE_RECORD = 2**16
_LONGEST_MESSAGE = 200

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class PublishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `vqa_chain`; a missing answer means the same as null: not annotated.

    `uncertain` is ours and optional: the answer is a possible one.
    """

    step: str
    question: str
    options: tuple[str, ...]
    answer: str | None = None
    uncertain: bool | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | None


class PublishedBox(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding's location, in pixels of the image file."""

    label: str
    x: Annotated[float, msgspec.Meta(ge=0)]
    y: Annotated[float, msgspec.Meta(ge=0)]
    width: Annotated[float, msgspec.Meta(gt=0)]
    height: Annotated[float, msgspec.Meta(gt=0)]
    sentence: str = ""


class Addition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our additional fields of a case, under one key that collides with no other field."""

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
    """Yield the undecoded records of a `data.json`, so that one bad record leaves the others readable.

    The file (UTF-8, with or without a byte order mark) is read while the records are consumed; only a chunk of it is
    in memory. `visit` gets the number of bytes read after each chunk, for progress bars.
    """
    accepted = "a JSON array of records in UTF-8"
    num_records = num_short = 0
    try:
        with open_untrusted(path, accepted=accepted) as file:
            splitter = ArraySplitter(start=_skip_byte_order_mark(file))
            while chunk := file.read(_CHUNK_BYTES):
                records = splitter.feed(chunk)
                num_records += len(records)
                num_short += sum(len(record) < SHORT_RECORD for record in records)
                if num_short > MOST_SHORT_RECORDS:
                    raise BadInput(f"{num_short} entries such as {_show(records)} are too short to be records")
                yield from records
                if visit is not None:
                    visit(file.tell())
            splitter.close()
    except BadInput as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise BadInput(f"{path}: {error}; expected {accepted}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected {accepted}") from error
    if not num_records:
        raise BadInput(f"{path}: the array has no records; expected {accepted}")


def _show(records: Sequence[bytes]) -> str:
    return repr(min(records, key=len).decode(errors="replace"))


def _skip_byte_order_mark(file: BinaryIO) -> int:
    """Move to the first character of a file; return its position."""
    start = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            raise BadInput(f"the text is {encoding}")
    return file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)


def decode_record(raw: bytes) -> PublishedRecord:
    """Decode one record."""
    try:
        record = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        message = message[:_LONGEST_MESSAGE]
        raise BadInput(f"{field[:_LONGEST_MESSAGE]}: {message}" if field else message) from error
    if len(raw) > _LARGE_RECORD:  # comparing lengths takes as long as decoding
        _check_lengths(record, read_limits())
    return record


def _check_lengths(record: PublishedRecord, limits: Limits) -> None:
    added = record.stepcot_jax or NOTHING_ADDED
    names = [("patient_id", str(record.patient_id)), ("image_path", record.image_path), ("origin", record.origin)]
    texts = [("report", record.report)]
    for place, entry in enumerate(record.vqa_chain):
        where = f"vqa_chain[{place}]"
        if len(entry.options) > _MOST_OPTIONS:
            raise BadInput(f"{where}.options: {len(entry.options)} options; at most {_MOST_OPTIONS} are accepted")
        names += [(f"{where}.step", entry.step), (f"{where}.answer", entry.answer)]
        names += [(f"{where}.options", option) for option in entry.options]
        texts += [(f"{where}.question", entry.question), (f"{where}.reasoning", entry.reasoning)]
    for box in added.boxes:
        names.append(("stepcot_jax.boxes.label", box.label))
        texts.append(("stepcot_jax.boxes.sentence", box.sentence))
    names.append(("stepcot_jax.view", added.view))
    names += [("stepcot_jax.provenance", part) for pair in added.provenance.items() for part in pair]
    for found, limit, most in ((names, "name", limits.name), (texts, "text", limits.text)):
        for field, text in found:
            if text is not None and len(text) > most:
                raise exceeds(field, f"{shorten(text)!r} has {len(text)} characters", limit)


def identify(raw: bytes) -> tuple[str, str]:
    """Return patient and image path of a record that may be invalid, each "" if unreadable."""
    try:
        found = _IDENTITY_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    patient = str(found.patient_id) if isinstance(found.patient_id, str | int) else ""
    path, most = found.image_path if isinstance(found.image_path, str) else "", read_limits().name
    return patient if len(patient) <= most else shorten(patient), path if len(path) <= most else shorten(path)
