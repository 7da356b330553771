"""Read reports one at a time: the IU X-Ray archive, the published layout, CSV or JSON Lines.

Invalid input is refused by file, row and field; a bad file of the archive, which no user can correct, is set aside.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepcot_jax.annotate.annotation import Aside, Reason, Report
from stepcot_jax.data.identities import normalise_image_path, read_patient, read_split
from stepcot_jax.data.questions.record_files import read_lines
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.json_arrays import read_raw_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line

_TABLE_SUFFIXES = (".csv", ".jsonl", ".ndjson")
_COLUMNS = ("id", "report", "image", "patient_id", "origin", "split")  # the last three are optional
_MAX_TEXT = 1 << 22
_NUM_SHOWN = 80

_EXPECTED = (
    "expected the IU X-Ray archive or its folder, a folder with data.json, or a .csv or .jsonl file of "
    "id, report, image (optional: patient_id, origin, split)"
)


def read_reports(source: Path) -> Iterator[Report | Aside]:
    """Yield the reports of a source in order; repeated ids and images are set aside."""
    seen: set[tuple[str, str]] = set()
    for item in _choose_reader(Path(source)):
        if isinstance(item, Report):
            names = [("id", item.id), *(("image", image) for image in item.images)]
            again = next((name for index, name in enumerate(names) if name in seen or name in names[:index]), None)
            if again is not None:
                yield Aside(item.id, Reason.REPEATED, f"the {again[0]} {again[1][:_NUM_SHOWN]!r} came before")
                continue
            seen.update(names)
        yield item


def locate_images(source: Path) -> Path:
    """Return the folder that a source's image paths are relative to."""
    return source if source.is_dir() else source.parent


def _choose_reader(source: Path) -> Iterator[Report | Aside]:
    from stepcot_jax.data.sources.iu_xray import is_iu_xray

    if not source.exists():
        raise BadInput(f"{source} does not exist; {_EXPECTED}")
    if source.is_file() and source.suffix.lower() in _TABLE_SUFFIXES:
        return _read_rows(source)
    if source.is_dir() and (source / data_json.FILE_NAME).is_file():
        return _read_published(source)
    if source.is_file() and source.name == data_json.FILE_NAME:
        return _read_published(source.parent)
    if is_iu_xray(source):
        return _read_iu_xray(source)
    raise BadInput(f"{source} has no known layout; {_EXPECTED}")


def _read_iu_xray(source: Path) -> Iterator[Report | Aside]:
    """Read the collection; each patient has one report and shares its name."""
    from stepcot_jax.data.records.records import SetAside
    from stepcot_jax.data.sources import iu_xray

    finder = iu_xray.ImageFinder(locate_images(source), folders=iu_xray.IMAGE_FOLDERS, require_images=False)
    for item in iu_xray.read_reports(source):
        if isinstance(item, SetAside):
            yield Aside(f"file {item.record}", Reason.UNREADABLE, item.reason)
            continue
        try:
            images = tuple(finder.find(image.file_name)[0] for image in item.frontal_images)
        except BadInput as error:
            yield Aside(item.uid, Reason.UNREADABLE, str(error))
            continue
        yield Report(item.uid, item.uid, item.text, images, iu_xray.ORIGIN)


def _read_published(folder: Path) -> Iterator[Report]:
    """Read the reports of a `data.json`, ignoring its chains."""
    path = folder / data_json.FILE_NAME
    locator = ImageLocator(folder, require_images=False)
    for index, raw in enumerate(read_raw_records(path)):
        try:
            record = data_json.decode_record(raw)
            patient_id = read_patient(str(record.patient_id).strip())
            if not patient_id:
                raise BadInput(f"`$[{index}].patient_id` is blank")
            locator.locate(record.image_path)
            split = "" if record.split is None else read_split(record.split)
        except BadInput as error:
            raise BadInput(f"{path}, record {index}: {error}") from None
        image = normalise_image_path(record.image_path)
        yield Report(image, patient_id, record.report or "", (image,), record.origin or "", split)


class _Row(msgspec.Struct):
    id: str | int
    report: str | None
    image: str | list[str] | None
    patient_id: str | int | None = None
    origin: str | None = None
    split: str | None = None


def _read_rows(path: Path) -> Iterator[Report]:
    """Read a table; consecutive rows that differ only in their image are one report."""
    rows = _read_csv(path) if path.suffix.lower() == ".csv" else _read_json_lines(path)
    reports = (_as_report(row, where=where, root=path.parent) for where, row in rows)
    for _, group in itertools.groupby(reports, key=lambda report: dataclasses.replace(report, images=())):
        first, *others = group
        images = itertools.chain(first.images, *(other.images for other in others))
        yield dataclasses.replace(first, images=tuple(images))


def _read_csv(path: Path) -> Iterator[tuple[str, _Row]]:
    from stepcot_jax.data.delimited import read_columns

    for row, cells, problem in read_columns(path, _COLUMNS[:3], optional=_COLUMNS[3:]):
        where = f"{path}, row {row.number}"
        if problem:
            raise BadInput(f"{where} {problem}")
        name, report, image, *optional = cells
        patient_id, origin, split = (cell or None for cell in optional)  # a cell cannot be null
        yield where, _Row(name, report, image, patient_id, origin, split)


def _read_json_lines(path: Path) -> Iterator[tuple[str, _Row]]:
    where = ""
    for number, line in read_lines(path, expected="expected one report per line", most_bytes=_MAX_TEXT):
        where = f"{path}, line {number}"
        try:
            row = msgspec.json.decode(line, type=_Row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"{where}: {one_line(error)}; expected a JSON object of {', '.join(_COLUMNS)}") from None
        yield where, row
    if not where:
        raise BadInput(f"{path} is empty; {_EXPECTED}")


def _as_report(row: _Row, *, where: str, root: Path) -> Report:
    name = str(row.id).strip()
    try:
        patient_id = name if row.patient_id is None else read_patient(str(row.patient_id).strip()) or name
        split = "" if row.split is None else read_split(row.split)
    except BadInput as error:
        raise BadInput(f"{where}, field {error}") from None
    for field, value in (("id", name), ("patient_id", patient_id)):
        if not value or not value.isprintable():
            raise BadInput(f"{where}, field {field!r}: {value[:_NUM_SHOWN]!r} is not a name on one line")
    text = row.report or ""
    if "\0" in text:
        raise BadInput(f"{where}, field 'report' contains a NUL character")
    if len(text) > _MAX_TEXT:
        raise BadInput(f"{where}, field 'report' exceeds {_MAX_TEXT} characters")
    named = [row.image] if isinstance(row.image, str) else row.image or []
    locator = ImageLocator(root, require_images=False)
    images = [image.strip() for image in named if image.strip()]
    try:
        for image in images:
            locator.locate(image)
    except BadInput as error:
        raise BadInput(f"{where}, field 'image': {error}") from None
    return Report(name, patient_id, text, tuple(map(normalise_image_path, images)), (row.origin or "").strip(), split)
