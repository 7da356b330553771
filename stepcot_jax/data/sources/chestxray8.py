"""NIH ChestX-ray8: cases from its box list and its table of labels, with the answers that follow from the labels."""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from stepcot_jax.box import Box
from stepcot_jax.data.delimited import Row, fold_column, read_age, read_four_numbers, read_table
from stepcot_jax.data.sources.findings import DIAGNOSES, Finding, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import ImageFinder, find_file, list_named
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
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


ORIGIN = "NIH ChestX-ray8"
_LICENCE = "NIH Clinical Center: use is unrestricted with attribution and a link to the NIH download site"
_IMAGE_FOLDERS = (".", "images", "images_*", "images_*/images")

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


class _Image(NamedTuple):
    """One image with its rows of both tables; `problem` is the reason why it cannot be used, "" if it can."""

    name: str
    location: str
    labels: tuple[str, ...]
    boxes: Sequence[ListedBox]
    entry: Entry | None
    problem: str = ""

    @property
    def patient(self) -> str:
        """The patient in the table of labels, else the number that the image's name begins with."""
        if self.entry and self.entry.patient_id:
            return self.entry.patient_id
        return self.name.partition("_")[0] or self.name


def list_chestxray8(root: Path, how: How) -> Source:
    """List the images of the box list, or of the table of labels, with the labels and boxes of both.

    Boxes are in the released 1024 x 1024 pixels. A rule excludes images whose classes are all outside the nine
    diagnoses and, with `single_label`, those with several. With `with_normal` the normal images of the table follow.
    """
    box_list, entry_table = find_file(root, BOX_LIST), find_file(root, ENTRY_TABLE)
    from_boxes = not how.for_cases or how.labels_from == "boxes" or (how.labels_from == "auto" and box_list is not None)
    file = box_list if from_boxes else entry_table
    if file is None:
        raise BadInput(f"{root}: has no {BOX_LIST if from_boxes else ENTRY_TABLE}")
    boxes = read_box_list(box_list) if box_list else []
    entries = read_entries(entry_table) if entry_table else []
    images = list((_list_box_images if from_boxes else _list_entries)(boxes, entries))
    if how.for_cases:
        _warn_of_entries(entry_table, entries, images=images, from_boxes=from_boxes)
    finder = ImageFinder(root, folders=_IMAGE_FOLDERS, require_images=how.require_images)
    records = [(image, file.name) for image in images]
    if how.with_normal and entry_table:  # otherwise their files may be missing
        normal = _list_normal(entries, entry_table.name, known={image.name for image in images})
        records += [(image, entry_table.name) for image in normal]
    listed = (_read_image(image, finder=finder, how=how, file=name) for image, name in records)
    return Source(root, file.name, listed, size_from="the released size")


def _list_box_images(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> Iterator[_Image]:
    """Yield the images of the box list, in its order, with the labels of their boxes."""
    entry_of = {entry.image: entry for entry in entries}
    for listed in _group(boxes).values():
        image, location = listed[0].image, f"row {listed[0].number}"
        entry = entry_of.get(image)
        problem = next((box.problem for box in listed if box.problem), "")
        if entry and entry.problem and not problem:
            problem = f"{location}: in the table of labels: {entry.problem}"
        labels = tuple(dict.fromkeys(row.box.label for row in listed))
        yield _Image(image, location, labels, listed, entry, problem)


def _list_entries(boxes: Iterable[ListedBox], entries: Iterable[Entry]) -> Iterator[_Image]:
    """Yield the rows of the table of labels, in its order, then the images that only the box list has."""
    boxes_of = _group(boxes)
    first: dict[str, int] = {}
    for entry in entries:
        listed = boxes_of.get(entry.image, []) if entry.image else []
        problem = entry.problem or next((f"in the box list: {box.problem}" for box in listed if box.problem), "")
        known = first.setdefault(entry.image, entry.number)
        if known != entry.number and not problem:
            problem = f"row {entry.number}: has the same image as row {known}; expected one row per image"
        yield _Image(entry.image, f"row {entry.number}", entry.labels, listed, entry, problem)
    for listed in (listed for image, listed in boxes_of.items() if image not in first):
        location = f"row {listed[0].number} of the box list"
        problem = listed[0].problem or f"{location}: the image is not in the table of labels"
        yield _Image(listed[0].image, location, (), listed, None, problem)


def _group(boxes: Iterable[ListedBox]) -> dict[str, list[ListedBox]]:
    groups: dict[str, list[ListedBox]] = {}
    for box in boxes:
        groups.setdefault(box.image or f"\0{box.number}", []).append(box)
    return groups


def _list_normal(entries: Iterable[Entry], file: str, *, known: Set[str]) -> Iterator[_Image]:
    for entry in entries:
        if entry.labels == (NO_FINDING,) and entry.image not in known:
            yield _Image(entry.image, f"{file}, row {entry.number}", entry.labels, (), entry)


def _read_image(image: _Image, *, finder: ImageFinder, how: How, file: str) -> Listed:
    """Return an image with boxes in released pixels, and the answers that follow from its labels."""
    if image.problem:
        return refused(image.location, image.problem, image=image.name, patient=image.patient)
    labels, entry = image.labels, image.entry
    rule, is_normal = _find_no_use(labels, single_label=how.single_label), labels == (NO_FINDING,)
    reason = f"NIH label: {', '.join(sorted(labels))}."
    if is_normal:
        answers, reasoning = answer_normal(reason)
    else:
        diagnosis = labels[0] if len(labels) == 1 and not rule else ""
        answers, reasoning = answer_findings((FINDINGS[label] for label in labels), diagnosis=diagnosis, reason=reason)
    rows = ", ".join(str(box.number) for box in image.boxes) or str(entry.number if entry else "")
    record = Record(
        id=Path(image.name).stem,
        image=image.name,
        image_size=(RELEASED_SIDE, RELEASED_SIDE),
        patient=image.patient,
        origin=ORIGIN,
        boxes=tuple(row.box for row in image.boxes),
        absent=CLASSES if is_normal else (),
        provenance={"file": file, "row": rows, "licence": _LICENCE},
        answers=answers,
        reasoning=reasoning,
        sex=entry.sex if entry else "",
        age=entry.age if entry else None,
        view=entry.view if entry else "",
    )
    return list_named(image.location, record, finder.find, rule=rule)


def _find_no_use(labels: Sequence[str], *, single_label: bool) -> str:
    if single_label and len(labels) > 1:
        return f"{len(labels)} labels ({', '.join(sorted(labels))}) instead of one (single_label)"
    if labels != (NO_FINDING,) and not any(FINDINGS[label].diagnosis for label in labels):
        return f"{', '.join(sorted(labels))} is not one of {', '.join((NO_FINDING, *DIAGNOSES))}"
    return ""


def _warn_of_entries(
    path: Path | None, entries: Sequence[Entry], *, images: Sequence[_Image], from_boxes: bool
) -> None:
    num_ageless = sum(not entry.problem and entry.age is None for entry in entries)
    if num_ageless:
        _LOG.warning("%s: %d rows have an impossible age, taken as unknown", path, num_ageless)
    if not from_boxes or path is None:
        return
    other = "%s: %d images of the box list have other labels here: the labels of their boxes are used"
    missing = "%s: %d images of the box list are missing here: their sex, age and view are unknown"
    num_other = sum(image.entry is not None and set(image.labels) != set(image.entry.labels) for image in images)
    for message, number in ((other, num_other), (missing, sum(image.entry is None for image in images))):
        if number:
            _LOG.warning(message, path, number)
