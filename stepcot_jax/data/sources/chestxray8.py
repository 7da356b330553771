"""NIH ChestX-ray8: cases from its box list and its table of labels, with the answers that follow from the labels."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images.stated_sizes import StatedSizes
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.data.sources.delimited import Row, fold_column, read_age, read_four_numbers, read_table
from stepcot_jax.data.sources.findings import DIAGNOSES, Finding, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import ImageFinder, Intake, find_file, read_image_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

# Both released headers are irregular: `Bbox [x,y,w,h]` and `OriginalImage[Width,Height]` are split at their commas,
# and empty columns trail. Wang et al., "ChestX-ray8", CVPR 2017.

BOX_LIST = "BBox_List_2017*.csv"
ENTRY_TABLE = "Data_Entry_2017*.csv"
RELEASED_SIDE = 1024  # width and height of the released images, in pixels; boxes use these pixels
NO_FINDING = "No Finding"
CLASSES = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
_CLASS_OF = {fold_column(name): name for name in (*CLASSES, NO_FINDING)} | {"infiltrate": "Infiltration"}
_BOX_HEADER = ("Image Index", "Finding Label", "Bbox [x", "y", "w", "h]")
_ENTRY_HEADER = ("Image Index", "Finding Labels", "Patient ID", "Patient Age", "Patient Gender", "View Position")
_PATIENT = re.compile("[0-9]{1,12}")
_MAX_AGE = 120
_SEXES = ("F", "M")
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class ListedBox:
    """One row of the box list; `problem` is the reason why it cannot be used, "" if it can."""

    number: int
    image: str
    box: Box
    problem: str = ""

    def scaled(self, width: int, height: int) -> Box:
        """Return the box in an image of this size in pixels."""
        across, down = width / RELEASED_SIDE, height / RELEASED_SIDE
        box = self.box
        return Box.of_size(box.label, box.x1 * across, box.y1 * down, box.size[0] * across, box.size[1] * down)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the table of labels."""

    number: int  # row in the file, from 1
    image: str
    labels: tuple[str, ...] = ()  # its classes, each once, in the order of the file
    patient_id: str = ""  # eight digits, as the images' names begin
    sex: str = ""
    age: float | None = None  # in years; None if the table has an impossible one
    view: str = ""  # as in the table, such as "PA" or "AP"
    problem: str = ""  # why the row cannot be used; "" if it can


def read_box_list(path: Path) -> list[ListedBox]:
    """Return all rows of the box list."""
    header, rows = read_table(path, known_columns={"image index"})
    names = _split(header)
    if [fold_column(name) for name in names[:6]] != [fold_column(name) for name in _BOX_HEADER]:
        raise BadInput(f"{path}: header {names[:20]} is not {','.join(_BOX_HEADER)}")
    return [_read_box(row) for row in rows]


def read_entries(path: Path) -> list[Entry]:
    """Return all rows of the table of labels."""
    header, rows = read_table(path, known_columns={"image index"})
    names = _split(header)
    folded = [fold_column(name).replace("patient sex", "patient gender") for name in names]
    missing = [name for name in _ENTRY_HEADER if fold_column(name) not in folded]
    if missing:
        raise BadInput(f"{path}: header {names[:20]} lacks {', '.join(missing)}")
    columns = [folded.index(fold_column(name)) for name in _ENTRY_HEADER]
    return [_read_entry(row, columns=columns) for row in rows]


def _split(header: Sequence[str]) -> list[str]:
    # Quoted headers are one cell where the released one is split at its commas.
    return [name.strip()[:_NUM_SHOWN] for name in ",".join(header).split(",")]


def _read_box(row: Row) -> ListedBox:
    image, label, *numbers = (*row.cells, *[""] * 6)[:6]
    name = _CLASS_OF.get(fold_column(label), "")
    x, y, width, height = read_four_numbers(numbers)
    problem = ""
    if not image:
        problem = "the image index is empty"
    elif any(row.cells[6:]):
        problem = f"has more than {len(_BOX_HEADER)} columns"
    elif name in ("", NO_FINDING):
        problem = _unknown(label)
    elif not (
        x >= 0 and y >= 0 and x + width <= RELEASED_SIDE and y + height <= RELEASED_SIDE and min(width, height) > 0
    ):
        written = [number[:_NUM_SHOWN] for number in numbers]
        problem = f"box {written} is not x, y, width, height inside {RELEASED_SIDE} x {RELEASED_SIDE} pixels"
    return ListedBox(
        row.number, image, Box.of_size(name, x, y, width, height), problem and f"row {row.number}: {problem}"
    )


def _read_entry(row: Row, *, columns: Sequence[int]) -> Entry:
    image, written, patient, age, sex, view = (
        row.cells[column] if column < len(row.cells) else "" for column in columns
    )
    labels = {_CLASS_OF.get(fold_column(label), ""): label for label in written.split("|")}
    stem = image.partition("_")[0]
    problem = ""
    if not image:
        problem = "the image index is empty"
    elif "" in labels:
        problem = _unknown(labels[""])
    elif NO_FINDING in labels and len(labels) > 1:
        problem = f"{NO_FINDING} and other labels exclude each other"
    elif not _PATIENT.fullmatch(patient) or (_PATIENT.fullmatch(stem) and int(stem) != int(patient)):
        problem = "the patient is not the number that the image's name begins with"
    if problem:
        return Entry(row.number, image, problem=f"row {row.number}: {problem}")
    return Entry(
        number=row.number,
        image=image,
        labels=tuple(labels),
        patient_id=f"{int(patient):08d}",
        sex=sex if sex in _SEXES else "",
        age=read_age(age, most=_MAX_AGE),
        view=view,
    )


def _unknown(label: str) -> str:
    return f"label {label[:_NUM_SHOWN]!r} is not one of {', '.join((*CLASSES, NO_FINDING))}"


LabelsFrom = Literal["auto", "boxes", "entries"]
ORIGIN = "NIH ChestX-ray8"
IMAGE_FOLDERS = (".", "images", "images_*", "images_*/images")

FINDINGS: dict[str, Finding] = DIAGNOSES | {
    "Consolidation": Finding(density="increased"),
    "Edema": Finding(density="increased"),
    "Fibrosis": Finding(density="increased"),
    "Emphysema": Finding(density="decreased"),
    "Pleural_Thickening": Finding(),
    "Hernia": Finding(),
}
"""Every class in terms of the chain; the last six are none of the nine diagnoses."""

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ImageRecord:
    """One image with its rows of both tables; `problem` is the reason why it cannot be used, "" if it can."""

    image: str
    location: str
    labels: tuple[str, ...]
    boxes: Sequence[ListedBox]
    entry: Entry | None
    problem: str

    @property
    def patient_id(self) -> str:
        """The patient in the table of labels, else the number that the image's name begins with."""
        if self.entry and self.entry.patient_id:
            return self.entry.patient_id
        return self.image.partition("_")[0] or self.image


def list_box_images(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> Iterator[ImageRecord]:
    """Yield the images of the box list, in its order, with the labels of their boxes."""
    entry_of = {entry.image: entry for entry in entries}
    for listed in _group(boxes).values():
        image, location = listed[0].image, f"row {listed[0].number}"
        entry = entry_of.get(image)
        problem = next((box.problem for box in listed if box.problem), "")
        if entry and entry.problem and not problem:
            problem = f"{location}: in the table of labels: {entry.problem}"
        labels = tuple(dict.fromkeys(row.box.label for row in listed))
        yield ImageRecord(image, location, labels, listed, entry, problem)


def _list_entries(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> Iterator[ImageRecord]:
    """Yield the rows of the table of labels, in its order, then the images that only the box list has."""
    boxes_of = _group(boxes)
    first: dict[str, int] = {}
    for entry in entries:
        listed = boxes_of.get(entry.image, []) if entry.image else []
        problem = entry.problem or next((f"in the box list: {box.problem}" for box in listed if box.problem), "")
        known = first.setdefault(entry.image, entry.number)
        if known != entry.number and not problem:
            problem = f"row {entry.number}: has the same image as row {known}; expected one row per image"
        yield ImageRecord(entry.image, f"row {entry.number}", entry.labels, listed, entry, problem)
    for listed in (listed for image, listed in boxes_of.items() if image not in first):
        location = f"row {listed[0].number} of the box list"
        problem = listed[0].problem or f"{location}: the image is not in the table of labels"
        yield ImageRecord(listed[0].image, location, (), listed, None, problem)


def _group(boxes: Iterable[ListedBox]) -> dict[str, list[ListedBox]]:
    groups: dict[str, list[ListedBox]] = {}
    for box in boxes:
        groups.setdefault(box.image or f"\0{box.number}", []).append(box)
    return groups


def read_chestxray8(
    root: Path,
    *,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    single_label: bool = True,
    labels_from: LabelsFrom = "auto",
) -> Collection:
    """Read the box list, the table of labels, or both.

    Boxes are scaled from the released 1024 x 1024 pixels to the image file; without a file they stay in released
    pixels, with a warning. Images whose classes are all outside the nine diagnoses and those that `single_label`
    excludes are set aside for any `on_bad_record`.
    """
    root = Path(root)
    if labels_from not in ("auto", "boxes", "entries"):
        raise BadInput(f"labels_from: {labels_from!r} is not 'auto', 'boxes' or 'entries'")
    box_list, entry_table = find_file(root, BOX_LIST), find_file(root, ENTRY_TABLE)
    from_boxes = labels_from == "boxes" or (labels_from == "auto" and box_list is not None)
    source = box_list if from_boxes else entry_table
    if source is None:
        raise BadInput(f"{root}: has no {BOX_LIST if from_boxes else ENTRY_TABLE}")
    boxes = read_box_list(box_list) if box_list else []
    entries = read_entries(entry_table) if entry_table else []
    records = list((list_box_images if from_boxes else _list_entries)(boxes, entries))
    finder = ImageFinder(root, folders=IMAGE_FOLDERS, require_images=require_images)
    intake = Intake(root, file=source.name, layout="chestxray8", on_bad_record=on_bad_record)
    stated = StatedSizes("the released size")
    how: Any = {"finder": finder, "intake": intake, "single_label": single_label, "stated": stated}
    num_unscaled = sum(_add(record, **how) for record in records)
    stated.warn(source)
    if num_unscaled:
        message = "%s: %d images with boxes have no file: their boxes are in pixels of the released %d x %d image"
        _LOG.warning(message, source, num_unscaled, RELEASED_SIDE, RELEASED_SIDE)
    _warn_of_entries(entry_table, entries, records=records, from_boxes=from_boxes)
    return intake.finish(DEFAULT_CHAIN)


def _add(record: ImageRecord, *, finder: ImageFinder, intake: Intake, single_label: bool, stated: StatedSizes) -> bool:
    """Add one record to the intake; return whether its boxes could not be scaled."""
    patient = record.patient_id
    if record.problem:
        intake.refuse(record.problem, image_path=record.image, patient_id=patient)
        return False
    try:
        image_path, real_path = finder.find(record.image)
        is_scaled = bool(record.boxes) and Path(real_path).is_file()
        size = read_image_size(Path(real_path)) if is_scaled else (RELEASED_SIDE, RELEASED_SIDE)
    except BadInput as error:
        intake.refuse(f"{record.location}: {error}", image_path=record.image, patient_id=patient)
        return False
    if is_scaled:
        stated.compare(len(stated.seen), image_path, [(RELEASED_SIDE, RELEASED_SIDE)], size, Path(real_path))
    reason = _find_no_use(record.labels, single_label=single_label)
    if reason:
        intake.leave_out(f"{record.location}: {reason}", image_path=image_path, patient_id=patient)
        return False
    reason = f"NIH label: {', '.join(sorted(record.labels))}."
    if record.labels == (NO_FINDING,):
        labels, reasoning = answer_normal(reason)
    else:
        diagnosis = record.labels[0] if len(record.labels) == 1 else ""
        labels, reasoning = answer_findings(
            (FINDINGS[label] for label in record.labels), diagnosis=diagnosis, reason=reason
        )
    case = Record(
        patient=patient,
        image=image_path,
        origin=ORIGIN,
        report="",
        answers=labels,
        reasoning=reasoning,
        boxes=tuple(box.scaled(*size) for box in record.boxes),
        sex=record.entry.sex if record.entry else "",
        age=record.entry.age if record.entry else None,
        view=record.entry.view if record.entry else "",
    )
    intake.keep(case, real_path=real_path, location=record.location)
    return bool(record.boxes) and not is_scaled


def _find_no_use(labels: Sequence[str], *, single_label: bool) -> str:
    if single_label and len(labels) > 1:
        return f"{len(labels)} labels ({', '.join(sorted(labels))}) instead of one (single_label)"
    if labels != (NO_FINDING,) and not any(FINDINGS[label].diagnosis for label in labels):
        return f"{', '.join(sorted(labels))} is not one of {', '.join((NO_FINDING, *DIAGNOSES))}"
    return ""


def _warn_of_entries(
    path: Path | None, entries: Sequence[Entry], *, records: Sequence[ImageRecord], from_boxes: bool
) -> None:
    num_ageless = sum(not entry.problem and entry.age is None for entry in entries)
    if num_ageless:
        _LOG.warning("%s: %d rows have an impossible age, taken as unknown", path, num_ageless)
    if not from_boxes or path is None:
        return
    other = "%s: %d images of the box list have other labels here: the labels of their boxes are used"
    missing = "%s: %d images of the box list are missing here: their sex, age and view are unknown"
    num_other = sum(record.entry is not None and set(record.labels) != set(record.entry.labels) for record in records)
    for message, number in ((other, num_other), (missing, sum(record.entry is None for record in records))):
        if number:
            _LOG.warning(message, path, number)
