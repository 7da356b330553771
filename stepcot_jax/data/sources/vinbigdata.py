"""VinDr-CXR: images with the boxes of several readers, one row per box and reader, of Kaggle and of PhysioNet.

Each training image of VinDr-CXR (Nguyen et al., Scientific Data 2022) was read by three of 17 radiologists, each alone.
"""

import collections
import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from stepcot_jax.box import Box, Corners, iou
from stepcot_jax.data.delimited import fold_column, read_columns, read_four_numbers
from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures
from stepcot_jax.data.sources.intake import SUFFIXES, ImageFinder, find_file, list_named, read_image_size
from stepcot_jax.data.sources.listed import How, Listed, NumReaders, Source, refused
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record

_SIZE_TABLE = "train_meta.csv"
_NO_FINDING = "No finding"
VINBIG_CLASSES = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration"),
    *("Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax"),
    "Pulmonary fibrosis",
)

_LEAST_IOU = 0.5  # boxes of one class by two readers with at least this overlap mark the same finding
_LICENCE = "VinDr-CXR: credentialed access (PhysioNet) or the rules of the Kaggle competition"
_IMAGE_FOLDERS = (".", "train", "images", "train_images")
_COLUMNS = ("image_id", "class_name", "rad_id", "x_min", "y_min", "x_max", "y_max")
_RELEASED = ("image_id", "class_name", "x_min", "y_min", "x_max", "y_max")
_NAME_OF = {fold_column(name): name for name in (*VINBIG_CLASSES, _NO_FINDING)}
_MOST_ROWS = 300
_MAX_SIDE = 100_000
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReaderBox:
    """One reader's row: a box of a class, or no box for "No finding"."""

    row: int
    reader: str
    box: Box | None


def is_vinbigdata(root: Path) -> bool:
    """Return whether `train.csv` names readers; a table of splits has the same name."""
    with open_untrusted(root / "train.csv", accepted="a table") as file:
        return b"rad_id" in file.readline(4096)


def list_vinbigdata(root: Path, how: How) -> Source:
    """List the images of `train.csv` in the order of their first rows; each counts as a patient."""
    path = root / "train.csv"
    if not path.is_file():
        raise BadInput(f"{root}: has no train.csv")
    return Source(root, path.name, _list_images(path, how), size_from=_SIZE_TABLE)


def list_vindr_cxr(root: Path, how: How) -> Source:
    """List the images of annotations/annotations_*.csv, as on PhysioNet; the test part names no reader."""
    files = sorted(root.glob("annotations/annotations_*.csv"))
    if not files:
        raise BadInput(f"{root}: has no annotations/annotations_*.csv")
    pictures = (picture for path in files for picture in _read_part(root, path, how.readers))
    return list_pictures(root, how, pictures, file="annotations", origin="VinDr-CXR", licence=_LICENCE)


def _read_part(root: Path, path: Path, readers: NumReaders) -> Iterator[Picture]:
    """Yield the pictures of a part, with the mean box of enough readers, or every box where none is named."""
    split = split_of_name(path.name)
    rows: dict[str, list[ReaderBox]] = collections.defaultdict(list)
    normal, num_sorted = set[str](), 0
    for row, cells, problem in read_columns(path, _RELEASED, optional=("rad_id",)):
        image, label, *numbers, reader = cells
        x1, y1, x2, y2 = read_four_numbers(numbers)
        if not problem and label == _NO_FINDING and not any(numbers):
            normal.add(image)
        elif problem or not image or not label or not (x1 != x2 and y1 != y2 and abs(x1 + y1 + x2 + y2) < math.inf):
            what = problem or f"{[image[:40], label[:40], *numbers]} is no image with a class and a box"
            yield Picture("", "", f"{path.name}, row {row.number}", problem=what)
        else:
            num_sorted += x1 > x2 or y1 > y2
            corners = min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)
            rows[image].append(ReaderBox(row.number, reader, Box(label, corners)))
    if num_sorted:
        _LOG.warning("%s: %d boxes with corners in another order, sorted", path, num_sorted)
    labels = {mark.box.label for marks in rows.values() for mark in marks if mark.box}
    for image in dict.fromkeys((*rows, *sorted(normal))):
        files = (f"{split}/{image}{suffix}" for suffix in (".dicom", ".dcm", *SUFFIXES))
        yield Picture(
            image,
            next((file for file in files if (root / file).is_file()), f"{split}/{image}.dicom"),
            f"{path.name}, image {image[:80]!r}",
            _agree_by_label(rows[image], path, readers),
            split=split,
            patient=image,
            modality="xray",
            absent=() if rows[image] else tuple(sorted(labels)),
        )


def _agree_by_label(marks: Sequence[ReaderBox], path: Path, readers: NumReaders) -> list[Mark]:
    agreed = []
    for label in dict.fromkeys(mark.box.label for mark in marks if mark.box):
        same = [mark for mark in marks if mark.box and mark.box.label == label]
        corners = [mark.box.corners for mark in same if mark.box]
        if readers != "all" and all(mark.reader for mark in same):
            corners = [box for box, _ in agree(same, readers=readers)]
        agreed += [Mark(f"{path.name}, row {same[0].row}", label, box) for box in corners]
    return agreed


def _list_images(path: Path, how: How) -> Iterator[Listed]:
    finder = ImageFinder(path.parent, folders=_IMAGE_FOLDERS, require_images=how.require_images)
    sizes = _read_sizes(path.parent)
    marks: dict[str, list[ReaderBox | BadInput]] = collections.defaultdict(list)
    for row, cells, problem in read_columns(path, _COLUMNS):
        marks[cells[0]].append(_read_reader_box(row.number, cells, problem))
    for name, listed in marks.items():
        location = f"image {name[:80]!r}"
        try:
            if bad := next((mark for mark in listed if isinstance(mark, BadInput)), None):
                raise bad
            path = Path(finder.find(f"{name}.png").real_path)
            size = sizes.get(name) or (read_image_size(path) if path.is_file() else None)
            good = [mark for mark in listed if isinstance(mark, ReaderBox)]
            yield list_named(location, _ground(name, good, size=size, readers=how.readers), finder.find)
        except BadInput as error:
            yield refused(location, f"{location}: {error}", image=name, patient=name)


def agree(marks: Sequence[ReaderBox], *, readers: int) -> Iterator[tuple[Corners, int]]:
    """Yield the mean box of each finding that enough readers marked, and their number.

    A box and the box of each other reader that overlaps it most, by `_LEAST_IOU` at least, are one finding. The finding
    with the most readers comes first (the earliest row on a tie); its boxes are then left out.
    """
    boxes = np.array([mark.box.corners for mark in marks if mark.box], np.float64).reshape(-1, 4)
    overlaps = iou(boxes, boxes)
    left = list(range(len(marks)))
    while left:
        groups = []
        for index in left:
            nearest = {marks[index].reader: index}
            for other in sorted(left, key=lambda candidate: -overlaps[index, candidate]):
                if overlaps[index, other] >= _LEAST_IOU:
                    nearest.setdefault(marks[other].reader, other)
            groups.append(list(nearest.values()))
        best = max(groups, key=len)
        if len(best) < readers:
            return
        x1, y1, x2, y2 = boxes[best].mean(axis=0).tolist()
        yield (x1, y1, x2, y2), len(best)
        left = [index for index in left if index not in best]


def _read_reader_box(number: int, cells: Sequence[str], problem: str) -> ReaderBox | BadInput:
    image, written, reader, *corners = cells
    label = _NAME_OF.get(fold_column(written), "")
    box = None
    if not problem and not (image and reader):
        problem = f"{_COLUMNS[0] if not image else _COLUMNS[2]}: is empty"
    elif not problem and not label:
        problem = f"class_name: {written[:80]!r} is not one of {', '.join((*VINBIG_CLASSES, _NO_FINDING))}"
    elif not problem and label == _NO_FINDING:
        problem = f"x_min: a box {corners} of {_NO_FINDING!r}; expected empty cells" if any(corners) else ""
    elif not problem:
        x1, y1, x2, y2 = read_four_numbers(corners)
        box = Box(label, (x1, y1, x2, y2))
        if not (0 <= x1 < x2 < math.inf and 0 <= y1 < y2 < math.inf):
            shown = [corner[:40] for corner in corners]
            problem = f"x_min, y_min, x_max, y_max: {shown} is no box with 0 <= x_min < x_max, 0 <= y_min < y_max"
    return BadInput(f"row {number}: {problem}") if problem else ReaderBox(number, reader, box)


def _ground(name: str, marks: Sequence[ReaderBox], *, size: tuple[int, int] | None, readers: NumReaders) -> Record:
    boxed = [(mark, mark.box) for mark in marks if mark.box]
    normal = {mark.reader for mark in marks if not mark.box}
    if len(marks) > _MOST_ROWS:
        raise BadInput(f"{len(marks)} rows; expected at most {_MOST_ROWS} per image")
    for mark, _ in boxed:
        if mark.reader in normal:
            raise BadInput(f"row {mark.row}: reader {mark.reader[:40]!r} has both a box and {_NO_FINDING!r}")
    if size is None:
        raise BadInput(f"size unknown: neither a file of the image nor a row of {_SIZE_TABLE}")
    for mark, box in boxed:
        if box.x2 > size[0] or box.y2 > size[1]:
            raise BadInput(f"row {mark.row}: box {list(box.corners)} leaves the picture of {size[0]} by {size[1]}")
    provenance = {"file": "train.csv", "row": ", ".join(str(mark.row) for mark in marks), "licence": _LICENCE}
    findings = []
    if readers == "all":
        findings = [box for _, box in boxed]
        provenance["readers"] = "every reader's box"
    else:
        for label in dict.fromkeys(box.label for _, box in boxed):
            same = [mark for mark, box in boxed if box.label == label]
            findings += [Box(label, corners) for corners, _ in agree(same, readers=readers)]
        provenance["readers"] = f"mean box of at least {readers} readers with IoU >= {_LEAST_IOU}"
    return Record(
        id=name,
        image=f"{name}.png",
        image_size=size,
        patient=name,
        origin="VinBigData",
        boxes=tuple(findings),
        absent=VINBIG_CLASSES if not boxed else (),
        provenance=provenance,
    )


def _read_sizes(root: Path) -> dict[str, tuple[int, int]]:
    path = find_file(root, _SIZE_TABLE)
    if path is None:
        return {}
    sizes = {}
    for row, (image, height, width), _ in read_columns(path, ("image_id", "dim0", "dim1")):
        sides = [int(side) if side.isdecimal() and len(side) < 9 else 0 for side in (width, height)]
        if not image or not 0 < min(sides) <= max(sides) <= _MAX_SIDE:
            raise BadInput(f"{path}, row {row.number}: dim0, dim1: {[height[:40], width[:40]]} are no height and width")
        sizes[image] = (sides[0], sides[1])
    return sizes
