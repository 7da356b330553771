"""NIH ChestX-ray8: its box list and its table of labels as cases with the answers that follow from them."""

import collections
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.records.cases import Box, Case
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.data.sources.chestxray8_records import ImageRecord, list_box_images, list_entries
from stepcot_jax.data.sources.chestxray8_tables import (
    BOX_LIST,
    ENTRY_TABLE,
    NO_FINDING,
    RELEASED_SIDE,
    Entry,
    ListedBox,
    read_box_list,
    read_entries,
)
from stepcot_jax.data.sources.findings import DIAGNOSES, Answers, Finding, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import Intake
from stepcot_jax.data.sources.named_images import ImageFinder, read_image_size
from stepcot_jax.host.errors import BadInput

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
"""What each class says in terms of the chain; the last six are none of the nine diagnoses."""

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BoxListCounts:
    """What a box list holds; as released 984 boxes on 880 images, 787 of them with one distinct label."""

    num_boxes: int
    num_images: int
    num_single_label: int


def count_boxes(root: Path) -> BoxListCounts:
    """Boxes, images and images with one distinct label in the box list of a data root.

    Raises:
      BadInput: there is no box list, it cannot be read, or one of its rows cannot; names the row.
    """
    path = _find_table(root, BOX_LIST)
    if path is None:
        raise BadInput(f"{root}: found no box list, accepted is a folder with {BOX_LIST}")
    labels = collections.defaultdict(set)
    num_boxes = 0
    for box in read_box_list(path):
        if box.problem:
            raise BadInput(f"{path}: {box.problem}")
        num_boxes += 1
        labels[box.image].add(box.label)
    return BoxListCounts(num_boxes, len(labels), sum(len(found) == 1 for found in labels.values()))


def read_chestxray8(
    root: Path,
    *,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    single_label: bool = True,
    labels_from: LabelsFrom = "auto",
    image_folders: Sequence[str] = IMAGE_FOLDERS,
) -> Collection:
    """Reads the box list, the table of labels, or both.

    Boxes are scaled from the released 1024 x 1024 pixels to the image at hand; without the image they stay in
    pixels of the released one, which one warning says. Images of classes outside the nine diagnoses only are
    set aside, whatever `on_bad_record` is, as are those that `single_label` leaves out.

    Args:
      root: folder with `BBox_List_2017*.csv`, `Data_Entry_2017*.csv` or both.
      on_bad_record: "stop" raises if any record is bad, "skip" sets bad records aside.
      require_images: whether an image without its file is bad.
      single_label: whether only images with exactly one distinct label take part; else the diagnosis of an image
        with several is not annotated.
      labels_from: "boxes": the images of the box list with the labels of their boxes, as the paper's test across
        data sets; "entries": those of the table of labels; "auto": "boxes" where there is a box list.
      image_folders: patterns of the folders with the images, below `root`.

    Raises:
      BadInput: a table cannot be used, no record is good, or a record is bad and `on_bad_record` is "stop".
    """
    root = Path(root)
    if labels_from not in ("auto", "boxes", "entries"):
        raise BadInput(f"labels_from: found {labels_from!r}, accepted are 'auto', 'boxes', 'entries'")
    box_list, entry_table = _find_table(root, BOX_LIST), _find_table(root, ENTRY_TABLE)
    from_boxes = labels_from == "boxes" or (labels_from == "auto" and box_list is not None)
    source = box_list if from_boxes else entry_table
    if source is None:
        raise BadInput(f"{root}: found no {BOX_LIST if from_boxes else ENTRY_TABLE}, accepted is a folder with it")
    boxes = read_box_list(box_list) if box_list else []
    entries = read_entries(entry_table) if entry_table else []
    records = list_box_images(boxes, entries) if from_boxes else list_entries(boxes, entries)
    finder = ImageFinder(root, folders=image_folders, require_images=require_images)
    intake = Intake(root, file=source.name, layout="chestxray8", on_bad_record=on_bad_record)
    num_unscaled = 0
    for record in records:
        num_unscaled += _take(record, finder=finder, intake=intake, single_label=single_label)
    if num_unscaled:
        message = "%s: %d images with boxes have no file: their boxes are in pixels of the released %d x %d image"
        _LOG.warning(message, source, num_unscaled, RELEASED_SIDE, RELEASED_SIDE)
    _warn_of_entries(entry_table, entries, records=records, from_boxes=from_boxes)
    return intake.finish(DEFAULT_CHAIN)


def _find_table(root: Path, pattern: str) -> Path | None:
    found = sorted(Path(root).glob(pattern))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise BadInput(f"{root}: found {names}, accepted is one file {pattern}")
    return found[0] if found else None


def _take(record: ImageRecord, *, finder: ImageFinder, intake: Intake, single_label: bool) -> bool:
    """Gives one record to the intake; whether its boxes could not be scaled for want of the image."""
    patient = record.patient_id
    if record.problem:
        intake.refuse(record.problem, image_path=record.image, patient_id=patient)
        return False
    try:
        image_path, real_path = finder.find(record.image)
        is_scaled = bool(record.boxes) and Path(real_path).is_file()
        size = read_image_size(Path(real_path)) if is_scaled else (RELEASED_SIDE, RELEASED_SIDE)
    except BadInput as error:
        intake.refuse(f"{record.place}: {error}", image_path=record.image, patient_id=patient)
        return False
    reason = _find_no_use(record.labels, single_label=single_label)
    if reason:
        intake.leave_out(f"{record.place}: {reason}", image_path=image_path, patient_id=patient)
        return False
    answers = _answer(record.labels)
    case = Case(
        patient_id=patient,
        image_path=image_path,
        origin=ORIGIN,
        report="",
        labels=answers.labels,
        reasoning=answers.reasoning,
        boxes=tuple(_scale(box, size) for box in record.boxes),
        sex=record.entry.sex if record.entry else "",
        age=record.entry.age if record.entry else None,
        view=record.entry.view if record.entry else "",
    )
    intake.keep(case, real_path=real_path, place=record.place)
    return bool(record.boxes) and not is_scaled


def _find_no_use(labels: Sequence[str], *, single_label: bool) -> str:
    if single_label and len(labels) > 1:
        return f"found {len(labels)} labels ({', '.join(sorted(labels))}), accepted is one label (single_label)"
    if labels != (NO_FINDING,) and not any(FINDINGS[label].diagnosis for label in labels):
        return (
            f"found {', '.join(sorted(labels))}, accepted is an image with one of {', '.join((NO_FINDING, *DIAGNOSES))}"
        )
    return ""


def _answer(labels: Sequence[str]) -> Answers:
    reason = f"NIH label: {', '.join(sorted(labels))}."
    if labels == (NO_FINDING,):
        return answer_normal(reason)
    diagnosis = labels[0] if len(labels) == 1 else ""
    return answer_findings((FINDINGS[label] for label in labels), diagnosis=diagnosis, reason=reason)


def _scale(box: ListedBox, size: tuple[int, int]) -> Box:
    across, down = size[0] / RELEASED_SIDE, size[1] / RELEASED_SIDE
    return Box(box.label, box.x * across, box.y * down, box.width * across, box.height * down)


def _warn_of_entries(
    path: Path | None, entries: Sequence[Entry], *, records: Sequence[ImageRecord], from_boxes: bool
) -> None:
    num_ageless = sum(not entry.problem and entry.age is None for entry in entries)
    if num_ageless:
        _LOG.warning("%s: %d rows have no possible age: it is unknown for them", path, num_ageless)
    if not from_boxes or path is None:
        return
    num_other = sum(record.entry is not None and set(record.labels) != set(record.entry.labels) for record in records)
    if num_other:
        message = "%s: %d images of the box list have other labels here too: those of their boxes are used"
        _LOG.warning(message, path, num_other)
    num_unnamed = sum(record.entry is None for record in records)
    if num_unnamed:
        _LOG.warning("%s: %d images of the box list are not in it: sex, age and view unknown", path, num_unnamed)
