"""Detection lists as grounded images: ChestX-ray8, PadChest-GR, VinBigData and folders of phantoms.

Boxes that leave the picture are refused, never clipped; none of the 984 released boxes of ChestX-ray8 does.
"""

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from stepcot_jax.box import Box, Corners, iou
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import BOX_COLUMNS
from stepcot_jax.data.questions.making import as_grounded, corners_of, ground_marks, list_answers
from stepcot_jax.data.questions.vocabulary import NORMAL, find_regions
from stepcot_jax.data.records.records import Collection, OnBadRecord, read_records
from stepcot_jax.data.sources import chestxray8 as nih
from stepcot_jax.data.sources.delimited import Row, fold_column, read_four_numbers, read_table
from stepcot_jax.data.sources.intake import (
    ImageFinder,
    Listing,
    Readers,
    Sorting,
    compare_sizes,
    find_file,
    read_image_size,
)
from stepcot_jax.data.sources.padchest_gr import REPORTS, list_padchest_gr
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record, SetAside

AUTO = "auto"

DETECTION_LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "chestxray8": (nih.BOX_LIST,),
    "padchest_gr": (REPORTS,),
    "vinbigdata": ("train.csv",),
    "phantom": ("boxes.csv",),
}
"""Name of each layout and the files that it is recognised by."""

_SIZES = {"chestxray8": "the released size", "padchest_gr": "", "vinbigdata": "train_meta.csv", "phantom": "masks/"}
_NIH_LICENCE = "NIH Clinical Center: use is unrestricted with attribution and a link to the NIH download site"
_LOG = logging.getLogger(__name__)


def read_detections(
    root: Path,
    *,
    layout: str = AUTO,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    with_normal: bool = False,
    readers: Readers = 2,
    set_aside: list[SetAside] | None = None,
) -> list[Record]:
    """Read the images of a detection list with their boxed findings."""
    root = Path(root)
    layout = detect_detection_layout(root) if layout == AUTO else layout
    if readers != "all" and (isinstance(readers, bool) or not isinstance(readers, int) or readers < 1):
        raise BadInput(f"readers: {readers!r} is not 'all' or a number from 1")
    if layout not in DETECTION_LAYOUTS:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *DETECTION_LAYOUTS))}")
    path = find_file(root, *DETECTION_LAYOUTS[layout])
    if path is None:
        raise BadInput(f"{root}: has no {DETECTION_LAYOUTS[layout][0]}")
    sorting = Sorting(path, on_bad_record=on_bad_record, set_aside=set_aside)
    images, num_boxless = [], 0
    listings: dict[str, Callable[[Path, bool, Readers], Listing]] = {
        "chestxray8": functools.partial(_list_chestxray8, with_normal=with_normal),
        "padchest_gr": list_padchest_gr,
        "vinbigdata": _list_vinbigdata,
        "phantom": _list_phantoms,
    }
    for location, image in listings[layout](path, require_images, readers):
        if isinstance(image, BadInput) or (problem := _find_problem(image)):
            sorting.refuse(f"{location}: {image if isinstance(image, BadInput) else problem}")
            continue
        if not sorting.keep(image.id, location=location):
            continue
        image = _drop_repeats(image)
        if image.boxes or (with_normal and image.absent):
            images.append(image)
        else:
            num_boxless += 1
    sorting.finish()
    boxless = "without a finding that counts (no box, or too few readers agree) left out"
    for message, number in ((boxless, num_boxless), ("set aside as bad", len(sorting.set_aside))):
        if number:
            _LOG.warning("%s: %d image%s %s", path, number, "" if number == 1 else "s", message)
    if not images:
        raise BadInput(f"{path}: no image has a box")
    return list(compare_sizes(images, root, _SIZES[layout]))


def detect_detection_layout(root: Path) -> str:
    """Return the layout of a detection list, recognised by its file names."""
    root = Path(root)
    if not root.is_dir():
        raise BadInput(f"{root}: is not a folder; {_expected_list()}")
    layouts = [name for name, patterns in DETECTION_LAYOUTS.items() if any(next(root.glob(p), None) for p in patterns)]
    if "vinbigdata" in layouts and not _names_readers(root / "train.csv"):
        layouts.remove("vinbigdata")  # a table of splits has the same name
    if len(layouts) != 1:
        several = f"has files of the layouts {' and '.join(layouts)}; choose one"
        raise BadInput(f"{root}: {several if layouts else 'has no known detection list'}; {_expected_list()}")
    return layouts[0]


def _names_readers(path: Path) -> bool:
    with open_untrusted(path, accepted="a table") as file:
        return b"rad_id" in file.readline(4096)


def _list_chestxray8(path: Path, require_images: bool, readers: Readers, *, with_normal: bool) -> Listing:
    """List the images of the box list, then with `with_normal` the normal ones of the table of labels."""
    del readers  # the list has one box per finding
    finder = ImageFinder(path.parent, folders=nih.IMAGE_FOLDERS, require_images=require_images)
    table = find_file(path.parent, nih.ENTRY_TABLE)
    entries = nih.read_entries(table) if table else []
    records = [*nih.list_box_images(nih.read_box_list(path), entries)]
    for record in records:
        rows = ", ".join(str(box.number) for box in record.boxes)
        yield record.location, _ground_nih(record, finder=finder, file=path.name, rows=rows)
    listed = {record.image for record in records}
    for entry in entries if with_normal else ():  # otherwise their files may be missing
        if table and entry.labels == (nih.NO_FINDING,) and entry.image not in listed:
            normal = nih.ImageRecord(entry.image, f"row {entry.number}", entry.labels, (), entry, "")
            grounded = _ground_nih(normal, finder=finder, file=table.name, rows=str(entry.number))
            yield f"{table.name}, {normal.location}", grounded


def _ground_nih(record: nih.ImageRecord, *, finder: ImageFinder, file: str, rows: str) -> Record | BadInput:
    if record.problem:
        return BadInput(record.problem.removeprefix(f"{record.location}: "))
    try:
        image_path, _ = finder.find(record.image)
    except BadInput as error:
        return error
    return Record(
        id=Path(record.image).stem,
        image=image_path,
        image_size=(nih.RELEASED_SIDE, nih.RELEASED_SIDE),
        patient=record.patient_id,
        origin=nih.ORIGIN,
        boxes=tuple(Box(row.box.label, row.box.corners) for row in record.boxes),
        absent=nih.CLASSES if record.labels == (nih.NO_FINDING,) else (),
        provenance={"file": file, "row": rows, "licence": _NIH_LICENCE},
    )


def _drop_repeats(image: Record) -> Record:
    """Keep one of several equal findings, and note it in the provenance."""
    findings = tuple(dict.fromkeys(image.boxes))
    number = len(image.boxes) - len(findings)
    if not number:
        return image
    provenance = {**image.provenance, "repeated": f"{number} box{'' if number == 1 else 'es'} listed again, kept once"}
    return msgspec.structs.replace(image, boxes=findings, provenance=provenance)


def _find_problem(image: Record) -> str:
    width, height = image.image_size
    for finding in image.boxes:
        try:
            finding.check()
        except BadInput as error:
            return str(error)
        try:
            Box(finding.region or "unknown", finding.corners).check()
        except BadInput as error:
            return f"region: {str(error).removeprefix('label: ')}"
        if finding.corners[2] > width or finding.corners[3] > height:
            return f"box: {list(finding.corners)} of {finding.label!r} leaves the picture of {width} by {height}"
    return ""


def _expected_list() -> str:
    return "expected " + "; ".join(f"{' or '.join(patterns)} ({name})" for name, patterns in DETECTION_LAYOUTS.items())


# VinBigData: one row per box and reader. Each training image of VinDr-CXR (Nguyen et al., Scientific Data 2022) was
# read by three of 17 radiologists, each alone.

_SIZE_TABLE = "train_meta.csv"
_NO_FINDING = "No finding"
VINBIG_CLASSES = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Consolidation", "ILD", "Infiltration"),
    *("Lung Opacity", "Nodule/Mass", "Other lesion", "Pleural effusion", "Pleural thickening", "Pneumothorax"),
    "Pulmonary fibrosis",
)

_LEAST_IOU = 0.5  # boxes of one class by two readers with at least this overlap mark the same finding
_VINBIG_LICENCE = "VinDr-CXR: credentialed access (PhysioNet) or the rules of the Kaggle competition"
_COLUMNS = ("image_id", "class_name", "rad_id", "x_min", "y_min", "x_max", "y_max")
_NAME_OF = {fold_column(name): name for name in (*VINBIG_CLASSES, _NO_FINDING)}
_MOST_ROWS = 300
_MAX_SIDE = 100_000


@dataclasses.dataclass(frozen=True)
class ReaderBox:
    """One reader's row: a box of a class, or no box for "No finding"."""

    row: int
    reader: str
    box: Box | None


def _list_vinbigdata(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the images of `train.csv` in the order of their first rows."""
    columns, num_columns, rows = _read_columns(path, _COLUMNS)
    finder = ImageFinder(path.parent, folders=(".", "train", "images", "train_images"), require_images=require_images)
    sizes = _read_sizes(path.parent)
    marks: dict[str, list[ReaderBox | BadInput]] = collections.defaultdict(list)
    for row in rows:
        image, mark = _read_reader_box(row, columns=columns, num_columns=num_columns)
        marks[image].append(mark)
    for image, listed in marks.items():
        bad = next((mark for mark in listed if isinstance(mark, BadInput)), None)
        good = [mark for mark in listed if isinstance(mark, ReaderBox)]
        location = f"image {image[:80]!r}"
        try:
            if bad:
                raise bad
            yield location, _ground_readers(image, good, finder=finder, sizes=sizes, file=path.name, readers=readers)
        except BadInput as error:
            yield location, error


def _read_columns(path: Path, names: Sequence[str]) -> tuple[list[int], int, Iterator[Row]]:
    """Return the positions of a table's columns, the number of all of them, and the rows."""
    header, rows = read_table(path, known_columns=set(map(fold_column, names)))
    folded = list(map(fold_column, header))
    if missing := [name for name in names if fold_column(name) not in folded]:
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} lacks {', '.join(missing)}")
    return [folded.index(fold_column(name)) for name in names], len(header), rows


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


def _read_reader_box(row: Row, *, columns: Sequence[int], num_columns: int) -> tuple[str, ReaderBox | BadInput]:
    cells = dict(enumerate(row.cells))
    image, written, reader, *corners = (cells.get(column, "") for column in columns)
    label = _NAME_OF.get(fold_column(written), "")
    problem, box = "", None
    if len(row.cells) != num_columns:
        problem = f"has {len(row.cells)} cells; expected {num_columns}"
    elif not image or not reader:
        problem = f"{_COLUMNS[0] if not image else _COLUMNS[2]}: is empty"
    elif not label:
        problem = f"class_name: {written[:80]!r} is not one of {', '.join((*VINBIG_CLASSES, _NO_FINDING))}"
    elif label == _NO_FINDING:
        problem = f"x_min: a box {corners} of {_NO_FINDING!r}; expected empty cells" if any(corners) else ""
    else:
        x1, y1, x2, y2 = read_four_numbers(corners)
        box = Box(label, (x1, y1, x2, y2))
        if not (0 <= x1 < x2 < math.inf and 0 <= y1 < y2 < math.inf):
            shown = [corner[:40] for corner in corners]
            problem = f"x_min, y_min, x_max, y_max: {shown} is no box with 0 <= x_min < x_max, 0 <= y_min < y_max"
    return image, BadInput(f"row {row.number}: {problem}") if problem else ReaderBox(row.number, reader, box)


def _ground_readers(
    image: str,
    marks: Sequence[ReaderBox],
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
            raise BadInput(f"row {mark.row}: reader {mark.reader[:40]!r} has both a box and {_NO_FINDING!r}")
    image_path, real_path = finder.find(f"{image}.png")
    if image in sizes:
        size = sizes[image]
    elif Path(real_path).is_file():
        size = read_image_size(Path(real_path))
    else:
        raise BadInput(f"size unknown: neither a file of the image nor a row of {_SIZE_TABLE}")
    for mark, box in boxed:
        if box.x2 > size[0] or box.y2 > size[1]:
            raise BadInput(f"row {mark.row}: box {list(box.corners)} leaves the picture of {size[0]} by {size[1]}")
    provenance = {"file": file, "row": ", ".join(str(mark.row) for mark in marks), "licence": _VINBIG_LICENCE}
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
        id=image,
        image=image_path,
        image_size=size,
        patient=image,
        origin="VinBigData",
        boxes=tuple(findings),
        absent=VINBIG_CLASSES if not boxed else (),
        provenance=provenance,
    )


def _read_sizes(root: Path) -> dict[str, tuple[int, int]]:
    path = find_file(root, _SIZE_TABLE)
    if path is None:
        return {}
    columns, _, rows = _read_columns(path, ("image_id", "dim0", "dim1"))
    sizes = {}
    for row in rows:
        cells = dict(enumerate(row.cells))
        image, height, width = (cells.get(column, "") for column in columns)
        sides = [int(side) if side.isdecimal() and len(side) < 9 else 0 for side in (width, height)]
        if not image or not 0 < min(sides) <= max(sides) <= _MAX_SIDE:
            raise BadInput(f"{path}, row {row.number}: dim0, dim1: {[height[:40], width[:40]]} are no height and width")
        sizes[image] = (sides[0], sides[1])
    return sizes


# Folders of `stepcot data phantom`: the boxes of `boxes.csv`, regions from masks, answers as facts.

_NUM_PLAIN = 6
"""Columns of the exports of earlier versions, without sides and kinds, so that a finding's region is unknown."""

_KINDS = ("focus", "fluid", "air", "sign")
_LARGEST_MASK = 4096
_Listed = tuple[Mark, str]  # a mark and the side of its case; "" for an earlier export


def _list_phantoms(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the cases of a phantom folder: patients and answers from `data.json`, boxes from `boxes.csv`."""
    del readers
    root = path.parent
    collection = read_records(root, require_images=require_images)
    header, rows = read_table(path, known_columns=set(BOX_COLUMNS))
    if header not in (BOX_COLUMNS, BOX_COLUMNS[:_NUM_PLAIN]):
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} is not {','.join(BOX_COLUMNS)}")
    known = {case.image for case in collection.cases}
    boxes: dict[str, list[tuple[int, _Listed | BadInput]]] = collections.defaultdict(list)
    for row in rows:
        image, listed_mark = _read_phantom_mark(row, num_columns=len(header))
        boxes[image].append((row.number, listed_mark))
        if image not in known:
            yield f"row {row.number}", BadInput(f"image_path: {image[:80]!r} is no image of {collection.path.name}")
    for case in collection.cases:
        listed = boxes.get(case.image, [])
        bad = next(((number, mark) for number, mark in listed if isinstance(mark, BadInput)), None)
        if bad:
            yield f"row {bad[0]}", bad[1]
            continue
        try:
            marks = [mark for _, mark in listed if not isinstance(mark, BadInput)]
            grounded = _ground_phantom(case, marks, collection=collection, rows=[number for number, _ in listed])
            yield f"image {case.image!r}", grounded
        except BadInput as error:
            yield f"image {case.image!r}", error


def _read_phantom_mark(row: Row, *, num_columns: int) -> tuple[str, _Listed | BadInput]:
    image, label, *numbers = (*row.cells, *[""] * len(BOX_COLUMNS))[:_NUM_PLAIN]
    x, y, width, height = read_four_numbers(numbers)
    box = Box.of_size(label, x, y, width, height)
    if len(row.cells) != num_columns or not (0 <= x < x + width < math.inf and 0 <= y < y + height < math.inf):
        return image, BadInput(f"x, y, width, height: {[number[:40] for number in numbers]} is no box in pixels")
    if num_columns == _NUM_PLAIN:
        return image, (Mark(box, 0, ""), "")
    side, kind, case_side = row.cells[_NUM_PLAIN:]
    if side not in ("-1", "0", "1") or kind not in _KINDS or case_side not in ("right", "left", "bilateral"):
        shown = [cell[:40] for cell in row.cells[_NUM_PLAIN:]]
        return image, BadInput(f"side, kind, case_side: {shown}; expected -1, 0 or 1, one of {_KINDS}, and a side")
    return image, (Mark(box, int(side), kind), case_side)


def _ground_phantom(case: Record, listed: Sequence[_Listed], *, collection: Collection, rows: list[int]) -> Record:
    root, name = collection.root, Path(case.image).name
    masks = [root / "masks" / organ / name for organ in ("lung", "heart")]
    marks, sides = [mark for mark, _ in listed], {side for _, side in listed}
    if len(sides) > 1:
        raise BadInput(f"case_side: {' and '.join(sorted(sides))} of one image; expected one")
    provenance = {"file": "boxes.csv", "row": ", ".join(map(str, rows)), "licence": "drawn by this package"}
    facts = list_answers(case, collection.chain)
    regions: tuple[Box, ...] = ()
    if all(mask.is_file() for mask in masks):
        lungs, heart = map(_read_binary, masks)
        if all(sides) and (marks or facts["diagnosis"] == NORMAL):
            side, chain = "".join(sides), collection.chain
            image = ground_marks(case, marks, side=side, lungs=lungs, heart=heart, chain=chain)
            return msgspec.structs.replace(image, provenance=provenance)
        regions, size = find_regions(lungs, heart), (lungs.shape[1], lungs.shape[0])
    else:
        size = read_image_size(root / case.image)
    findings = tuple(Box(mark.box.label, corners_of(mark)) for mark in marks)
    image = as_grounded(case, size=size, findings=findings, regions=regions, facts=facts)
    return msgspec.structs.replace(image, provenance=provenance)


def _read_binary(path: Path) -> np.ndarray:
    """Return whether each pixel of a mask is above half of white, as MedCLM's code reads masks."""
    width, height = read_image_size(path)
    if max(width, height) > _LARGEST_MASK:
        raise BadInput(f"{path}: mask of {width} by {height} pixels; expected at most {_LARGEST_MASK} a side")
    try:
        with open_untrusted(path, accepted="a PNG mask") as file, Image.open(file, formats=("PNG",)) as mask:
            return np.asarray(mask.convert("L")) > 127
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be decoded ({str(error)[:200]}); expected a PNG mask") from None
