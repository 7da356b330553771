"""Tables of reports: CSV and JSON lines, one row a report or one of its images, read one at a time."""

import codecs
import contextlib
import csv
import dataclasses
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from stepcot_jax.annotate.annotation import Report
from stepcot_jax.data.records.record_reader import ImageLocator, normalise_image_path
from stepcot_jax.host.errors import BadInput

TABLE_SUFFIXES = (".csv", ".jsonl", ".ndjson")

COLUMNS = ("id", "report", "image", "patient_id", "origin")
"""The last two are optional, other columns are passed over."""

_REQUIRED = COLUMNS[:3]
_MAX_LINE = 1 << 22
_NUM_SHOWN = 80

ACCEPTED = (
    "accepted are the IU X-Ray archive or its folder, a folder with data.json, and a .csv or .jsonl file of "
    f"{', '.join(_REQUIRED)} (optional: {', '.join(COLUMNS[3:])})"
)
"""Every source of reports, for the messages about one that is none."""


def read_table(path: Path) -> Iterator[Report]:
    """The reports of a table; rows that follow one another and differ in their image only are one report.

    Args:
      path: UTF-8, with or without a byte order mark; image paths are relative to its folder.

    Raises:
      BadInput: names the file, the line and the field.
    """
    rows = _read_csv(path) if path.suffix.lower() == ".csv" else _read_json_lines(path)
    for _, group in itertools.groupby(rows, key=lambda report: dataclasses.replace(report, images=())):
        first, *others = group
        images = itertools.chain(first.images, *(other.images for other in others))
        yield dataclasses.replace(first, images=tuple(images))


class _Row(msgspec.Struct):
    """One JSON line."""

    id: str | int
    report: str | None
    image: str | list[str] | None
    patient_id: str | int | None = None
    origin: str | None = None


def _read_csv(path: Path) -> Iterator[Report]:
    # The limit is one for the whole process: raised for reading and never lowered beneath another reader.
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_LINE))
    with _open(path) as file:
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
        header: list[str] = []
        for fields in _csv_rows(reader, path):
            where = f"{path}: line {reader.line_num}"
            if not header:
                header = _read_header(fields, path)
                continue
            if not fields:  # a blank line
                continue
            if len(fields) != len(header):
                raise BadInput(f"{where}: found {len(fields)} fields, accepted are {len(header)} as in the header")
            named = dict(zip(header, fields, strict=True))
            row = _Row(**{name: named[name] for name in COLUMNS if name in named})
            if not named.get("patient_id", "").strip():  # a cell cannot be null
                row.patient_id = None
            yield _as_report(row, where=where, root=path.parent)


def _csv_rows(reader: Iterable[list[str]], path: Path) -> Iterator[list[str]]:
    rows = iter(reader)
    while True:
        line = getattr(reader, "line_num", 0) + 1
        try:
            row = next(rows)
            if any(len(field) > _MAX_LINE for field in row):  # where another reader has raised the limit further
                raise csv.Error(f"field larger than field limit ({_MAX_LINE})")
            yield row
        except StopIteration:
            if line == 1:
                raise BadInput(f"{path}: found an empty file, {ACCEPTED}") from None
            return
        except csv.Error as error:
            accepted = "accepted is comma-separated text"
            raise BadInput(f"{path}: line {line}: found what is not CSV ({error}), {accepted}") from None
        except UnicodeDecodeError:
            raise BadInput(f"{path}: near line {line}: found bytes that are not UTF-8, accepted is UTF-8") from None


def _read_header(fields: list[str], path: Path) -> list[str]:
    header = [field.strip().casefold() for field in fields]
    missing = [name for name in _REQUIRED if name not in header]
    repeated = [name for name in COLUMNS if header.count(name) > 1]
    if missing or repeated:
        problem = f"without {', '.join(missing)}" if missing else f"with {', '.join(repeated)} twice"
        shown = ", ".join(field[:_NUM_SHOWN] for field in fields[:12])
        raise BadInput(f"{path}: line 1: found the columns {shown!r}, {problem}; {ACCEPTED}")
    return header


def _read_json_lines(path: Path) -> Iterator[Report]:
    decoder = msgspec.json.Decoder(_Row)
    number = 0
    with _open(path) as file:
        while line := file.readline(_MAX_LINE):
            number += 1
            where = f"{path}: line {number}"
            if len(line) == _MAX_LINE:
                raise BadInput(f"{where}: found more than {_MAX_LINE} bytes, accepted is one report a line")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise BadInput(f"{where}: {error}, accepted is a JSON object of {', '.join(COLUMNS)}") from None
            yield _as_report(row, where=where, root=path.parent)
    if not number:
        raise BadInput(f"{path}: found an empty file, {ACCEPTED}")


def _as_report(row: _Row, *, where: str, root: Path) -> Report:
    name = str(row.id).strip()
    if not name or not name.isprintable():
        raise BadInput(f"{where}: field id: found {name[:_NUM_SHOWN]!r}, accepted is a name of one line")
    patient_id = name if row.patient_id is None else str(row.patient_id).strip()
    if not patient_id or not patient_id.isprintable():
        raise BadInput(f"{where}: field patient_id: found {patient_id[:_NUM_SHOWN]!r}, accepted is a name of one line")
    text = row.report or ""
    if "\0" in text:
        raise BadInput(f"{where}: field report: found a NUL character, accepted is text")
    named = [row.image] if isinstance(row.image, str) else row.image or []
    locator = ImageLocator(root, require_images=False)
    images = [image.strip() for image in named if image.strip()]
    try:
        for image in images:
            locator.locate(image)
    except BadInput as error:
        raise BadInput(f"{where}: field image: {error}") from None
    return Report(name, patient_id, text, tuple(map(normalise_image_path, images)), (row.origin or "").strip())


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}), {ACCEPTED}") from None
    with file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadInput(f"{path}: found UTF-16 text, accepted is UTF-8")
        file.seek(0)
        yield file
