"""VinBigData chest X-ray abnormalities: `train.csv`, one row per box and reader, with agreement between readers.

Each training image of VinDr-CXR (Nguyen et al., Scientific Data 2022) was read by three of 17 radiologists, each alone.
"""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from stepcot_jax.box import Box, Corners, iou
from stepcot_jax.data.sources.delimited import Row, fold_column, read_table
from stepcot_jax.data.sources.intake import ImageFinder, Listing, Readers, find_file, read_image_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

ORIGIN = "VinBigData"
IMAGE_FOLDERS = (".", "train", "images", "train_images")
SIZE_TABLE = "train_meta.csv"
NO_FINDING = "No finding"
CLASSES = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration"),
    *("Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax"),
    "Pulmonary fibrosis",
)

LEAST_IOU = 0.5  # boxes of one class by two readers with at least this overlap mark the same finding
_LICENCE = "VinDr-CXR: credentialed access (PhysioNet) or the rules of the Kaggle competition"
_COLUMNS = ("image_id", "class_name", "rad_id", "x_min", "y_min", "x_max", "y_max")
_NAME_OF = {fold_column(name): name for name in (*CLASSES, NO_FINDING)}
_MOST_ROWS = 300
_MAX_SIDE = 100_000


@dataclasses.dataclass(frozen=True)
class Mark:
    """One reader's row: a box of a class, or no box for "No finding"."""

    row: int
    reader: str
    box: Box | None


def list_vinbigdata(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the images of `train.csv` in the order of their first rows."""
    header, rows = read_table(path, known_columns={fold_column(name) for name in _COLUMNS})
    folded = [fold_column(name) for name in header]
    missing = [name for name in _COLUMNS if fold_column(name) not in folded]
    if missing:
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} lacks {', '.join(missing)}")
    columns = [folded.index(fold_column(name)) for name in _COLUMNS]
    finder = ImageFinder(path.parent, folders=IMAGE_FOLDERS, require_images=require_images)
    sizes = _read_sizes(path.parent)
    marks: dict[str, list[Mark | BadInput]] = collections.defaultdict(list)
    for row in rows:
        image, mark = _read_mark(row, columns=columns, num_columns=len(header))
        marks[image].append(mark)
    for image, listed in marks.items():
        bad = next((mark for mark in listed if isinstance(mark, BadInput)), None)
        good = [mark for mark in listed if isinstance(mark, Mark)]
        location = f"image {image[:80]!r}"
        try:
            if bad:
                raise bad
            yield location, _ground(image, good, finder=finder, sizes=sizes, file=path.name, readers=readers)
        except BadInput as error:
            yield location, error


def agree(marks: Sequence[Mark], *, readers: int) -> Iterator[tuple[Corners, int]]:
    """Yield the mean box of each finding that enough readers marked, and their number.

    A box and the box of each other reader that overlaps it most, by `LEAST_IOU` at least, are one finding. The finding
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
                if overlaps[index, other] >= LEAST_IOU:
                    nearest.setdefault(marks[other].reader, other)
            groups.append(list(nearest.values()))
        best = max(groups, key=len)
        if len(best) < readers:
            return
        x1, y1, x2, y2 = boxes[best].mean(axis=0).tolist()
        yield (x1, y1, x2, y2), len(best)
        left = [index for index in left if index not in best]


def _read_mark(row: Row, *, columns: Sequence[int], num_columns: int) -> tuple[str, Mark | BadInput]:
    cells = dict(enumerate(row.cells))
    image, written, reader, *corners = (cells.get(column, "") for column in columns)
    label = _NAME_OF.get(fold_column(written), "")
    problem, box = "", None
    if len(row.cells) != num_columns:
        problem = f"has {len(row.cells)} cells; expected {num_columns}"
    elif not image or not reader:
        problem = f"{_COLUMNS[0] if not image else _COLUMNS[2]}: is empty"
    elif not label:
        problem = f"class_name: {written[:80]!r} is not one of {', '.join((*CLASSES, NO_FINDING))}"
    elif label == NO_FINDING:
        problem = f"x_min: a box {corners} of {NO_FINDING!r}; expected empty cells" if any(corners) else ""
    else:
        try:
            x1, y1, x2, y2 = map(float, corners)
        except ValueError:
            x1 = y1 = x2 = y2 = math.nan
        box = Box(label, (x1, y1, x2, y2))
        if not (0 <= x1 < x2 < math.inf and 0 <= y1 < y2 < math.inf):
            shown = [corner[:40] for corner in corners]
            problem = f"x_min, y_min, x_max, y_max: {shown} is no box with 0 <= x_min < x_max, 0 <= y_min < y_max"
    return image, BadInput(f"row {row.number}: {problem}") if problem else Mark(row.number, reader, box)


def _ground(
    image: str,
    marks: Sequence[Mark],
    *,
    finder: ImageFinder,
    sizes: Mapping[str, tuple[int, int]],
    file: str,
    readers: Readers,
) -> Record:
    boxed = [(mark, mark.box) for mark in marks if mark.box]
    normal = {mark.reader for mark in marks if not mark.box}
    if len(marks) > _MOST_ROWS:
        raise BadInput(f"{len(marks)} rows; expected at most {_MOST_ROWS} per image")
    for mark, _ in boxed:
        if mark.reader in normal:
            raise BadInput(f"row {mark.row}: reader {mark.reader[:40]!r} has both a box and {NO_FINDING!r}")
    image_path, real_path = finder.find(f"{image}.png")
    if image in sizes:
        size = sizes[image]
    elif Path(real_path).is_file():
        size = read_image_size(Path(real_path))
    else:
        raise BadInput(f"size unknown: neither a file of the image nor a row of {SIZE_TABLE}")
    for mark, box in boxed:
        if box.x2 > size[0] or box.y2 > size[1]:
            raise BadInput(f"row {mark.row}: box {list(box.corners)} leaves the picture of {size[0]} by {size[1]}")
    provenance = {"file": file, "row": ", ".join(str(mark.row) for mark in marks), "licence": _LICENCE}
    findings = []
    if readers == "all":
        findings = [box for _, box in boxed]
        provenance["readers"] = "every reader's box"
    else:
        for label in dict.fromkeys(box.label for _, box in boxed):
            same = [mark for mark, box in boxed if box.label == label]
            findings += [Box(label, corners) for corners, _ in agree(same, readers=readers)]
        provenance["readers"] = f"mean box of at least {readers} readers with IoU >= {LEAST_IOU}"
    return Record(
        id=image,
        image=image_path,
        image_size=size,
        patient=image,
        origin=ORIGIN,
        boxes=tuple(findings),
        absent=CLASSES if not boxed else (),
        provenance=provenance,
    )


def _read_sizes(root: Path) -> dict[str, tuple[int, int]]:
    path = find_file(root, SIZE_TABLE)
    if path is None:
        return {}
    names = ("image id", "dim0", "dim1")
    header, rows = read_table(path, known_columns=set(names))
    folded = [fold_column(name) for name in header]
    if not set(names) <= set(folded):
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} lacks image_id, dim0 or dim1")
    columns = [folded.index(name) for name in names]
    sizes = {}
    for row in rows:
        cells = dict(enumerate(row.cells))
        image, height, width = (cells.get(column, "") for column in columns)
        sides = [int(side) if side.isdecimal() and len(side) < 9 else 0 for side in (width, height)]
        if not image or not 0 < min(sides) <= max(sides) <= _MAX_SIDE:
            raise BadInput(f"{path}, row {row.number}: dim0, dim1: {[height[:40], width[:40]]} are no height and width")
        sizes[image] = (sides[0], sides[1])
    return sizes
