"""Reasoning records as JSON lines: read with every fault named by file, line and field, written atomically."""

import codecs
import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import msgspec

from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.records.data_json import ImageLocator, normalise_image_path
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.untrusted import iterate_lines, open_untrusted
from stepcot_jax.reasoning.record import KINDS, Cue, VqaRecord

FILE_NAME = "records.jsonl"

_LONGEST_LINE = 2**22
_LONGEST_MESSAGE = 200
_EXPECTED = "expected one reasoning record per line, as JSON"
_DECODER = msgspec.json.Decoder(VqaRecord)
_ACCEPTED = {"kind": KINDS, "cue": get_args(Cue), "split": ("", "train", "val", "test")}
_OF_BOX = re.compile(r"(?:box|label): ")
_ENCODER = msgspec.json.Encoder()


class _Named(msgspec.Struct, frozen=True):
    """A line of which only the id is read."""

    id: str


_ID_DECODER = msgspec.json.Decoder(_Named)


@dataclasses.dataclass(frozen=True)
class VqaCollection:
    """The records of one file in order, and the lines that take no part.

    Attributes:
      set_aside: the other lines; `record` is the line, counted from 1.
      lines: line of each valid record, counted from 1.
      set_aside_ids: ids of the other lines, as far as they can be read.
      num_unnamed: number of the other lines whose id cannot be read.
    """

    path: Path
    records: tuple[VqaRecord, ...]
    set_aside: tuple[SetAside, ...] = ()
    lines: tuple[int, ...] = ()
    set_aside_ids: frozenset[str] = frozenset()
    num_unnamed: int = 0

    @property
    def root(self) -> Path:
        """Folder that image paths are relative to."""
        return self.path.parent


def holds_records(root: Path) -> bool:
    """Return whether a path means reasoning records: their file, or a folder that has it and no `data.json`."""
    if root.is_dir():
        return (root / FILE_NAME).exists() and not (root / data_json.FILE_NAME).exists()
    return root.suffix == ".jsonl"


def read_vqa_records(path: Path, *, on_bad_record: OnBadRecord = "stop", require_images: bool = False) -> VqaCollection:
    """Read a file of reasoning records."""
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    locator = ImageLocator(path.parent, require_images=require_images)
    records, set_aside, lines, seen = [], [], [], set()
    names: list[str | None] = []
    for number, line in read_lines(path):
        try:
            record = decode_record(line)
            if record.id in seen:
                raise BadInput(f"id: {record.id[:80]!r} came before; each record needs an id of its own")
            try:
                locator.locate(record.image_path)
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
    ids = frozenset(name for name in names if name is not None)
    return VqaCollection(path, tuple(records), tuple(set_aside), tuple(lines), ids, names.count(None))


def _find_id(line: bytes) -> str | None:
    """Return the id of a bad line; None if it cannot be read."""
    try:
        return _ID_DECODER.decode(line).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_record(line: bytes) -> VqaRecord:
    """Decode one line."""
    try:
        record = _DECODER.decode(line)
    except UnicodeDecodeError:
        raise BadInput("not UTF-8 text") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$")
        message, field = message[:_LONGEST_MESSAGE], place.rstrip("`").lstrip(".")[:_LONGEST_MESSAGE]
        if field in _ACCEPTED:
            message += f"; expected one of {', '.join(map(repr, _ACCEPTED[field]))}"
        elif "unknown field" in message:
            message += f"; expected some of {', '.join(VqaRecord.__struct_fields__)}"
        within = "." if field and _OF_BOX.match(message) else ": "
        raise BadInput(f"{field}{within}{message}" if field else message) from None
    normal = normalise_image_path(record.image_path)
    return record if normal == record.image_path else msgspec.structs.replace(record, image_path=normal)


def write_vqa_records(path: Path, records: Iterable[VqaRecord]) -> int:
    """Write records as JSON lines, atomically; return their number."""
    number = 0
    with writing_whole(path) as file:
        for record in records:
            line = _ENCODER.encode(record) + b"\n"
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
        with open_untrusted(path, accepted="records, one a line") as file:
            for number, line in iterate_lines(file, path, most_bytes=most_bytes):
                if len(line) == most_bytes:
                    raise BadInput(f"{path}, line {number}: exceeds {most_bytes} bytes; {expected}")
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise BadInput(f"{path}: UTF-16 text; expected UTF-8")
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not content.strip():
                    continue
                num_short += len(content) < data_json.SHORT_RECORD
                if num_short > data_json.MOST_SHORT_RECORDS:
                    raise BadInput(f"{path}, line {number}: {num_short} lines are too short to be records; {expected}")
                yield number, content
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {expected}") from None
