"""VinDr-CXR: images with the boxes of several readers, one row per box and reader, of Kaggle and of PhysioNet.

Each training image of VinDr-CXR (Nguyen et al., Scientific Data 2022) was read by three of 17 radiologists, each alone.
"""

import collections
import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np

from stepcot_jax.box import Box, Corners, iou
from stepcot_jax.data.delimited import read_columns, read_four_numbers
from stepcot_jax.data.images.stated_sizes import Size
from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures
from stepcot_jax.data.sources.intake import SUFFIXES, find_file
from stepcot_jax.data.sources.listed import How, NumReaders, Source
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

_SIZE_TABLE = "train_meta.csv"
_NO_FINDING = "No finding"
VINBIG_CLASSES = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration"),
    *("Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax"),
    "Pulmonary fibrosis",
)

_LEAST_IOU = 0.5  # boxes of one class by two readers with at least this overlap mark the same finding
_LICENCE = "VinDr-CXR: credentialed access (PhysioNet) or the rules of the Kaggle competition"
_SUFFIXES = (".dicom", ".dcm", *SUFFIXES)
_KAGGLE_FOLDERS = ("train", "images", "train_images", ".")
_COLUMNS = ("image_id", "class_name", "x_min", "y_min", "x_max", "y_max")
_MOST_ROWS = 300
_MAX_SIDE = 100_000
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReaderBox:
    """One reader's box of a class."""

    row: int
    reader: str
    box: Box


def is_vinbigdata(root: Path) -> bool:
    """Return whether `train.csv` names readers; a table of splits has the same name."""
    with open_untrusted(root / "train.csv", accepted="a table") as file:
        return b"rad_id" in file.readline(4096)


def list_vinbigdata(root: Path, how: How) -> Source:
    """List the images of Kaggle's `train.csv`, whose boxes are in pixels of the original; each counts as a patient."""
    path = root / "train.csv"
    if not path.is_file():
        raise BadInput(f"{root}: has no train.csv")
    pictures = _read_table(root, path, how.readers, folders=_KAGGLE_FOLDERS, sizes=_read_sizes(root))
    return list_pictures(
        root, how, pictures, file=path.name, origin="VinBigData", licence=_LICENCE, size_from=_SIZE_TABLE
    )


def list_vindr_cxr(root: Path, how: How) -> Source:
    """List the images of annotations/annotations_*.csv, as on PhysioNet; the test part names no reader."""
    files = sorted(root.glob("annotations/annotations_*.csv"))
    if not files:
        raise BadInput(f"{root}: has no annotations/annotations_*.csv")
    splits = [(split_of_name(path.name), path) for path in files]
    pictures = (
        picture._replace(split=split)
        for split, path in splits
        for picture in _read_table(root, path, how.readers, folders=(split,))
    )
    return list_pictures(root, how, pictures, file="annotations", origin="VinDr-CXR", licence=_LICENCE)


def _read_table(
    root: Path, path: Path, readers: NumReaders, *, folders: Sequence[str], sizes: Mapping[str, Size] | None = None
) -> Iterator[Picture]:
    """Yield the pictures of a table, with the mean box of enough readers, or every box where none is named."""
    of_kaggle = sizes is not None
    rows: dict[str, list[ReaderBox]] = collections.defaultdict(list)
    normal, num_sorted = collections.defaultdict[str, set[str]](set), 0
    names = (*_COLUMNS, "rad_id") if of_kaggle else _COLUMNS
    for row, cells, problem in read_columns(path, names, optional=() if of_kaggle else ("rad_id",)):
        image, label, *numbers, reader = cells
        x1, y1, x2, y2 = read_four_numbers(numbers)
        if not problem and label == _NO_FINDING and not any(numbers):
            normal[image].add(reader)
            continue
        if not problem and label == _NO_FINDING:
            problem = f"x_min: a box of {_NO_FINDING!r}; expected empty cells"
        elif not problem and of_kaggle and label not in VINBIG_CLASSES:
            problem = f"class_name: {label[:80]!r} is not one of {', '.join((*VINBIG_CLASSES, _NO_FINDING))}"
        elif not problem and of_kaggle and not reader:
            problem = "rad_id: is empty"
        if problem or not image or not label or not (x1 != x2 and y1 != y2 and abs(x1 + y1 + x2 + y2) < math.inf):
            what = problem or f"{[image[:40], label[:40], *numbers]} is no image with a class and a box"
            yield Picture("", "", f"{path.name}, row {row.number}", problem=what)
            continue
        num_sorted += x1 > x2 or y1 > y2
        corners = min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)
        rows[image].append(ReaderBox(row.number, reader, Box(label, corners)))
    if num_sorted:
        _LOG.warning("%s: %d boxes with corners in another order, sorted", path, num_sorted)
    labels = VINBIG_CLASSES if of_kaggle else sorted({mark.box.label for marks in rows.values() for mark in marks})
    for image in dict.fromkeys((*rows, *sorted(normal))):
        problem = _find_problem(rows[image], normal[image])
        yield Picture(
            image,
            _find_picture(root, folders, image),
            f"{path.name}, image {image[:80]!r}",
            [] if problem else _agree_by_label(rows[image], path, readers),
            size=(sizes or {}).get(image, (0, 0)),
            keeps_size=True,
            patient=image,
            modality="xray",
            absent=() if rows[image] else tuple(labels),
            problem=problem,
        )


def _find_problem(marks: Sequence[ReaderBox], normal: Set[str]) -> str:
    """Return why the rows of an image cannot be used; `normal`: the readers who found nothing."""
    if len(marks) > _MOST_ROWS:
        return f"{len(marks)} rows; expected at most {_MOST_ROWS} per image"
    for mark in marks:
        if mark.reader and mark.reader in normal:
            return f"row {mark.row}: reader {mark.reader[:40]!r} has both a box and {_NO_FINDING!r}"
    return ""


def _find_picture(root: Path, folders: Sequence[str], image: str) -> str:
    """Return the path of an image's file in one of the folders, in the first one if there is none."""
    names = [f"{folder}/{image}{suffix}" for folder in folders for suffix in _SUFFIXES]
    there = (name for name in names if ".." not in image and (root / name).is_file())
    return next(there, names[0])


def _agree_by_label(marks: Sequence[ReaderBox], path: Path, readers: NumReaders) -> list[Mark]:
    agreed = []
    for label in dict.fromkeys(mark.box.label for mark in marks):
        same = [mark for mark in marks if mark.box.label == label]
        corners = [mark.box.corners for mark in same]
        if readers != "all" and all(mark.reader for mark in same):
            corners = [box for box, _ in agree(same, readers=readers)]
        agreed += [Mark(f"{path.name}, row {same[0].row}", label, box) for box in corners]
    return agreed


def agree(marks: Sequence[ReaderBox], *, readers: int) -> Iterator[tuple[Corners, int]]:
    """Yield the mean box of each finding that enough readers marked, and their number.

    A box and the box of each other reader that overlaps it most, by `_LEAST_IOU` at least, are one finding. The finding
    with the most readers comes first (the earliest row on a tie); its boxes are then left out.
    """
    boxes = np.array([mark.box.corners for mark in marks], np.float64).reshape(-1, 4)
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
