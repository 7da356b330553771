"""Reasoning records as JSON lines, written atomically; messages about faults name file, line and field."""

import codecs
import collections
import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.identities import join_spellings, normalise_image_path, read_patient
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.json_arrays import MOST_SHORT_RECORDS, SHORT_RECORD
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, writing_whole
from stepcot_jax.host.untrusted import iterate_lines, open_lines
from stepcot_jax.record import KINDS, Cue, Record, SetAside, Split

FILE_NAME = "records.jsonl"
_LOG = logging.getLogger(__name__)
_LONGEST_LINE = 2**22
_LONGEST_MESSAGE = 200
_EXPECTED = "expected one reasoning record per line, as JSON"
_ACCEPTED = {"kind": KINDS, "cue": get_args(Cue), "split": get_args(Split)}
_ENCODER = msgspec.json.Encoder()
_FIELDS = {field.name: field for field in msgspec.structs.fields(Record)}
_REQUIRED = ("id", "image", "patient", "kind", "question", "answer")
_LINE: tuple[str, ...] = (  # the fields of a question in the order of the file
    *("id", "image", "image_size", "patient", "origin", "split", "kind", "topic", "question", "options", "answer"),
    *("synonyms", "references", "points", "thinking", "preamble", "stages", "cue", "lesion", "organ", "modality"),
    *("facts", "provenance", "report"),
)
_FILE_NAMES = {"image": "image_path", "patient": "patient_id", "options": "choices"}


class _BoxOfLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    box: Corners


def _field(name: str) -> tuple[Any, ...]:
    kinds: dict[str, Any] = {"references": tuple[_BoxOfLine, ...], "id": str | int, "patient": str | int}
    kind = kinds.get(name, _FIELDS[name].type)
    if name in _REQUIRED:
        return name, kind
    default = _FIELDS[name].default
    return name, kind, msgspec.field(default_factory=dict) if default is msgspec.NODEFAULT else default


_HOW: Any = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
_DECODER = msgspec.json.Decoder(msgspec.defstruct("Line", list(map(_field, _LINE)), rename=_FILE_NAMES, **_HOW))


def as_line(record: Record) -> dict[str, Any]:
    """Return a question's fields by the names of the file, in its order."""
    line = {_FILE_NAMES.get(name, name): getattr(record, name) for name in _LINE}
    line["references"] = [{"label": box.label, "box": box.corners} for box in record.references]
    for name in ("points", "report"):  # which few sources have
        if not line[name]:
            del line[name]
    return line


def _list_starts(letter: str) -> tuple[str, ...]:
    return f"{letter} ", f"{letter}.", f"{letter}:", f"{letter})", f"({letter})"


class _Named(msgspec.Struct, frozen=True):
    id: str | int


_ID_DECODER = msgspec.json.Decoder(_Named)


@dataclasses.dataclass(frozen=True)
class VqaCollection:
    """The questions of a file or folder in order, and those set aside."""

    path: Path  # of the file, or of a folder with several
    records: tuple[Record, ...]
    set_aside: tuple[SetAside, ...] = ()  # `record` is the line of records.jsonl, from 1, or a position, from 0
    lines: tuple[int, ...] = ()  # the same number of each valid record
    set_aside_ids: frozenset[str] = frozenset()  # ids of the bad lines, as far as they can be read
    num_unnamed: int = 0  # number of bad lines whose id cannot be read
    folder: Path | None = None  # that image paths are relative to; None: that of the file
    unit: str = "line"  # what is counted
    layout: str = "records"

    @property
    def root(self) -> Path:
        """Folder that image paths are relative to."""
        return self.folder or self.path.parent

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, or of the questions of a folder with several."""
        if self.path.is_file():
            return digest_file(self.path)[1]
        return hashlib.sha256(_ENCODER.encode(list(map(as_line, self.records)))).hexdigest()

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


def holds_records(root: Path) -> bool:
    """Return whether a path holds reasoning records: it is their file, or a folder with it and without `data.json`."""
    if root.is_dir():
        return (root / FILE_NAME).exists() and not (root / data_json.FILE_NAME).exists()
    return root.name.endswith((".jsonl", ".jsonl.gz"))


def read_vqa_records(path: Path, *, on_bad_record: OnBadRecord = "stop", require_images: bool = False) -> VqaCollection:
    """Read a file of reasoning records."""
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    locator = ImageLocator(path.parent, require_images=require_images)
    records, set_aside, lines, seen = [], [], [], set()
    names: list[str | None] = []
    changed = collections.Counter[str]()
    for number, line in read_lines(path):
        try:
            record = decode_record(line, changed=changed)
            if record.id in seen:
                raise BadInput(f"id: {record.id[:80]!r} came before; each record needs an id of its own")
            try:
                locator.locate(record.image)
            except BadInput as error:
                raise BadInput(f"image_path: {error}") from None
        except BadInput as error:
            if on_bad_record == "stop":
                raise BadInput(f"{path}, line {number}, {error}; on_bad_record=skip sets bad lines aside") from None
            set_aside.append(SetAside(number, "", str(error)))
            names.append(_find_id(line))
            continue
        seen.add(record.id)
        records.append(record)
        lines.append(number)
    if not records:
        why = f"no line is valid (line {set_aside[0].record}, {set_aside[0].reason})" if set_aside else "is empty"
        raise BadInput(f"{path}: {why}; {_EXPECTED}")
    for change, count in changed.items():
        _LOG.warning("%s: %s in %d of %d records", path, change, count, len(records) + len(set_aside))
    kept, sentence = join_spellings([record.patient for record in records])
    if kept:
        _LOG.warning("%s: %s", path, sentence)
        records = [msgspec.structs.replace(r, patient=kept.get(r.patient, r.patient)) for r in records]
    ids = frozenset(name for name in names if name is not None)
    return VqaCollection(path, tuple(records), tuple(set_aside), tuple(lines), ids, names.count(None))


def _find_id(line: bytes) -> str | None:
    try:
        return str(_ID_DECODER.decode(line).id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_record(content: bytes, *, changed: collections.Counter[str] | None = None) -> Record:
    """Decode one line; `changed` counts what is done to options that carry letters."""
    try:
        line: Any = _DECODER.decode(content)
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        field, message = (part[:_LONGEST_MESSAGE] for part in data_json.split_message(error, content))
        if "field `image" in message or (field == "image_path" and "array" in message):
            message += f"; {data_json.ONE_IMAGE}"
        elif field in _ACCEPTED:
            message += f"; expected one of {', '.join(map(repr, _ACCEPTED[field]))}"
        elif "unknown field" in message:
            message += f"; expected some of {', '.join(_FILE_NAMES.get(name, name) for name in _LINE)}"
        raise BadInput(f"{field}: {message}" if field else message) from None
    fields = msgspec.structs.asdict(line)
    fields["references"] = tuple([Box(box.label, box.box) for box in line.references])
    fields |= {"id": str(line.id), "patient": str(line.patient), "image": normalise_image_path(line.image)}
    record = Record(**fields)
    if changed is not None and record.options != line.options:
        changed["letters (A, B, ...) are taken off the options"] += 1
    elif changed is not None and sum(map(str.startswith, record.options, map(_list_starts, record.letters))) > 1:
        changed["options begin with their letter, not all or without a mark behind it (left as they are)"] += 1
    if not record.question:
        raise BadInput("question: blank; a text is required")
    if not read_patient(record.patient):
        raise BadInput("patient_id: a word for a missing one; a patient's identifier is required")
    return record


def write_replies(path: Path, records: Iterable[Record], texts: Iterable[str]) -> None:
    """Write replies to records as JSON lines, as `reply_files.read_replies` reads them, atomically."""
    path.parent.mkdir(exist_ok=True)
    with writing_whole(path) as file:
        for record, text in zip(records, texts, strict=True):
            file.write(msgspec.json.encode({"id": record.id, "reply": text}) + b"\n")


def write_vqa_records(path: Path, records: Iterable[Record]) -> int:
    """Write records as JSON lines, atomically; return their number."""
    number = 0
    with writing_whole(path) as file:
        for record in records:
            line = _ENCODER.encode(as_line(record)) + b"\n"
            if len(line) >= _LONGEST_LINE:
                raise BadInput(f"{path}: record {record.id[:80]!r} has {len(line)} bytes; at most {_LONGEST_LINE}")
            file.write(line)
            number += 1
    return number


def read_lines(
    path: Path, *, expected: str = _EXPECTED, most_bytes: int = _LONGEST_LINE
) -> Iterator[tuple[int, bytes]]:
    """Yield the number, from 1, and the content of each line that is not blank."""
    num_short = 0
    try:
        if not path.is_file():
            raise BadInput(f"{path}: {'is not a file' if path.exists() else 'does not exist'}; {expected}")
        with open_lines(path, accepted="records, one a line") as file:
            for number, line in iterate_lines(file, path, most_bytes=most_bytes):
                if len(line) == most_bytes:
                    raise BadInput(f"{path}, line {number}: exceeds {most_bytes} bytes; {expected}")
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise BadInput(f"{path}: UTF-16 text; expected UTF-8")
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not content.strip():
                    continue
                num_short += len(content) < SHORT_RECORD
                if num_short > MOST_SHORT_RECORDS:
                    raise BadInput(f"{path}, line {number}: {num_short} lines are too short to be records; {expected}")
                yield number, content
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {expected}") from None
