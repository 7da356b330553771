"""Reports to annotate, one at a time: the IU X-Ray archive, the published layout, CSV or JSON lines.

Odd input is refused by file, row and field. Only what an archive of others brings with it (a file that is no report) is
set aside instead, since its user cannot put it right.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.annotate.annotation import Report
from stepcot_jax.annotate.report_tables import ACCEPTED, TABLE_SUFFIXES, read_table
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.record_reader import ImageLocator, normalise_image_path
from stepcot_jax.host.errors import BadInput

UNREADABLE = "report that cannot be read"
REPEATED = "report or image that came before"

_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Refused:
    """Something in a collection that is no report to annotate.

    Attributes:
      id: report or file, as far as it is known.
      reason: `UNREADABLE` or `REPEATED`.
      detail: what was found, without any text of a report.
    """

    id: str
    reason: str
    detail: str


def read_reports(source: Path) -> Iterator[Report | Refused]:
    """The reports of a source in its order, each id and each image once.

    Args:
      source: the IU X-Ray archive or its folder, a folder in the published layout, a CSV or JSONL file.

    Raises:
      BadInput: the source or a row of it cannot be used; names file, row and field.
    """
    ids: set[str] = set()
    images: set[str] = set()
    for item in _choose_reader(Path(source)):
        if isinstance(item, Report):
            # Texts of patients may be many, their ids and paths are few: what came before can be remembered.
            if item.id in ids:
                yield Refused(item.id, REPEATED, f"found the id {item.id[:_NUM_SHOWN]!r} again")
                continue
            again = next((image for image in item.images if image in images), None)
            if again is not None or len(set(item.images)) < len(item.images):
                yield Refused(item.id, REPEATED, f"found the image {(again or item.images[0])[:_NUM_SHOWN]!r} again")
                continue
            ids.add(item.id)
            images.update(item.images)
        yield item


def locate_images(source: Path) -> Path:
    """The folder that the image paths of a source's reports are relative to."""
    return source if source.is_dir() else source.parent


def _choose_reader(source: Path) -> Iterator[Report | Refused]:
    # Imported here: other collections are not touched by a user's own CSV.
    from stepcot_jax.data.sources.iu_xray import is_iu_xray

    if not source.exists():
        raise BadInput(f"{source}: found nothing there, {ACCEPTED}")
    if source.is_file() and source.suffix.lower() in TABLE_SUFFIXES:
        return read_table(source)
    if source.is_dir() and (source / data_json.FILE_NAME).is_file():
        return _read_published(source)
    if source.is_file() and source.name == data_json.FILE_NAME:
        return _read_published(source.parent)
    if is_iu_xray(source):
        return _read_iu_xray(source)
    raise BadInput(f"{source}: found none of the known layouts, {ACCEPTED}")


def _read_iu_xray(source: Path) -> Iterator[Report | Refused]:
    """The collection's reports; the one archive has one report a patient, who is named as the report is."""
    from stepcot_jax.data.records.records import SetAside
    from stepcot_jax.data.sources import iu_xray

    folder = source if source.is_dir() else source.parent
    finder = iu_xray.ImageFinder(folder, folders=("NLMCXR_png", "images"), require_images=False)
    for found in iu_xray.read_reports(source):
        if isinstance(found, SetAside):
            yield Refused(f"file {found.record}", UNREADABLE, found.reason)
            continue
        try:
            images = tuple(finder.find(image.file_name)[0] for image in found.frontal_images)
        except BadInput as error:
            yield Refused(found.uid, UNREADABLE, str(error))
            continue
        yield Report(found.uid, found.uid, found.text, images, iu_xray.ORIGIN)


def _read_published(folder: Path) -> Iterator[Report]:
    """The reports of a `data.json`; what its records say of a chain is passed over."""
    path = folder / data_json.FILE_NAME
    locator = ImageLocator(folder, require_images=False)
    for index, raw in enumerate(data_json.read_raw_records(path)):
        try:
            record = data_json.decode_record(raw)
            patient_id = str(record.patient_id).strip()
            if not patient_id:
                raise BadInput(f"found a blank patient, accepted is an identifier - at `$[{index}].patient_id`")
            locator.locate(record.image_path)
        except BadInput as error:
            raise BadInput(f"{path}: record {index}: {error}") from None
        image = normalise_image_path(record.image_path)
        yield Report(image, patient_id, record.report or "", (image,), record.origin or "")
