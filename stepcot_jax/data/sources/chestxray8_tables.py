"""The two tables of NIH ChestX-ray8: the box list and the labels of all images.

Both released headers are irregular: `Bbox [x,y,w,h]` and `OriginalImage[Width,Height]` are split at their commas, and
empty columns trail. Wang et al., "ChestX-ray8", CVPR 2017.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepcot_jax.data.sources.delimited import Row, fold_column, read_table
from stepcot_jax.host.errors import BadInput

BOX_LIST = "BBox_List_2017*.csv"
ENTRY_TABLE = "Data_Entry_2017*.csv"

RELEASED_SIDE = 1024
"""Width and height of the released images, in pixels; boxes use these pixels."""

NO_FINDING = "No Finding"
CLASSES = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia", "Pneumothorax"),
    *("Consolidation", "Edema", "Emphysema", "Fibrosis", "Pleural_Thickening", "Hernia"),
)
_CLASS_OF = {fold_column(name): name for name in (*CLASSES, NO_FINDING)} | {"infiltrate": "Infiltration"}

_BOX_HEADER = ("Image Index", "Finding Label", "Bbox [x", "y", "w", "h]")
_ENTRY_HEADERS = (
    ("Image Index",),
    ("Finding Labels",),
    ("Patient ID",),
    ("Patient Age",),
    ("Patient Gender", "Patient Sex"),
    ("View Position",),
)
_PATIENT = re.compile("[0-9]{1,12}")
_MAX_AGE = 120
_SEXES = ("F", "M")
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class ListedBox:
    """One row of the box list; `problem` says why it cannot be used, "" if it can."""

    number: int
    image: str
    label: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the table of labels.

    Attributes:
      number: row in the file, from 1.
      image: name of its file.
      labels: its classes, each once, in the order of the file.
      patient_id: eight digits, as the images' names begin.
      sex: "F", "M" or "".
      age: in years; None if the table has an impossible one.
      view: as in the table, such as "PA" or "AP".
      problem: why the row cannot be used; "" if it can.
    """

    number: int
    image: str
    labels: tuple[str, ...] = ()
    patient_id: str = ""
    sex: str = ""
    age: float | None = None
    view: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class BoxListCounts:
    """Counts of a box list; the released one has 984 boxes on 880 images, 787 of these with one distinct label."""

    num_boxes: int
    num_images: int
    num_single_label: int


def count_boxes(root: Path) -> BoxListCounts:
    """Count boxes, images and images with one distinct label in the box list of a data root.

    Raises:
      BadInput: the box list is missing or unreadable, or a row is bad; names the row.
    """
    path = find_table(root, BOX_LIST)
    if path is None:
        raise BadInput(f"{root}: has no {BOX_LIST}")
    labels = collections.defaultdict(set)
    num_boxes = 0
    for box in read_box_list(path):
        if box.problem:
            raise BadInput(f"{path}: {box.problem}")
        num_boxes += 1
        labels[box.image].add(box.label)
    return BoxListCounts(num_boxes, len(labels), sum(len(found) == 1 for found in labels.values()))


def find_table(root: Path, pattern: str) -> Path | None:
    """Return the file of a pattern, None if there is none.

    Raises:
      BadInput: there are several.
    """
    found = sorted(Path(root).glob(pattern))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise BadInput(f"{root}: several files {pattern} ({names}); expected one")
    return found[0] if found else None


def read_box_list(path: Path) -> list[ListedBox]:
    """Return all rows of the box list.

    Raises:
      BadInput: the file is no table or its header is not that of the box list.
    """
    header, rows = _read(path, num_columns=len(_BOX_HEADER))
    if [fold_column(name) for name in header[:6]] != [fold_column(name) for name in _BOX_HEADER]:
        raise BadInput(f"{path}: header {_shown(header)} is not {','.join(_BOX_HEADER)}")
    return [_read_box(row) for row in rows]


def read_entries(path: Path) -> list[Entry]:
    """Return all rows of the table of labels.

    Raises:
      BadInput: the file is no table, or a column of labels, patient, age, sex or view is missing.
    """
    header, rows = _read(path, num_columns=len(_ENTRY_HEADERS))
    folded = [fold_column(name) for name in header]
    places = [_place(folded, names) for names in _ENTRY_HEADERS]
    missing = [names[0] for names, place in zip(_ENTRY_HEADERS, places, strict=True) if place is None]
    if missing:
        raise BadInput(f"{path}: header {_shown(header)} lacks {', '.join(missing)}")
    return [_read_entry(row, places=places) for row in rows]  # type: ignore[arg-type]


def _read(path: Path, *, num_columns: int) -> tuple[tuple[str, ...], Iterator[Row]]:
    header, rows = read_table(path, known_columns={"image index"})
    # Quoted headers are one cell where the released one is split at its commas.
    split = tuple(name.strip() for name in ",".join(header).split(","))
    return split, (_pad(row, num_columns) for row in rows)


def _pad(row: Row, num_columns: int) -> Row:
    cells = (*row.cells, *("",) * (num_columns - len(row.cells)))
    return dataclasses.replace(row, cells=cells)


def _place(folded: Sequence[str], names: Sequence[str]) -> int | None:
    return next((folded.index(fold_column(name)) for name in names if fold_column(name) in folded), None)


def _read_box(row: Row) -> ListedBox:
    image, label, *numbers = row.cells[:6]
    where = f"row {row.number}"
    if not image:
        return ListedBox(row.number, "", problem=f"{where}: the image index is empty")
    if any(row.cells[6:]):
        return ListedBox(row.number, image, problem=f"{where}: has more than {len(_BOX_HEADER)} columns")
    name = _CLASS_OF.get(fold_column(label), "")
    if not name or name == NO_FINDING:
        return ListedBox(row.number, image, problem=f"{where}: {_unknown(label)}")
    try:
        x, y, width, height = (float(number) for number in numbers)
    except ValueError:
        x = y = width = height = math.nan
    is_inside = x >= 0 and y >= 0 and x + width <= RELEASED_SIDE and y + height <= RELEASED_SIDE
    if not (is_inside and width > 0 and height > 0):
        written = [number[:_NUM_SHOWN] for number in numbers]
        inside = f"x, y, width, height inside {RELEASED_SIDE} x {RELEASED_SIDE} pixels"
        return ListedBox(row.number, image, name, problem=f"{where}: box {written} is not {inside}")
    return ListedBox(row.number, image, name, x, y, width, height)


def _read_entry(row: Row, *, places: Sequence[int]) -> Entry:
    image, written, patient, age, sex, view = (row.cells[place] if place < len(row.cells) else "" for place in places)
    where = f"row {row.number}"
    if not image:
        return Entry(row.number, "", problem=f"{where}: the image index is empty")
    labels = dict.fromkeys(_CLASS_OF.get(fold_column(label), "") for label in written.split("|"))
    if "" in labels:
        unknown = next(label for label in written.split("|") if fold_column(label) not in _CLASS_OF)
        return Entry(row.number, image, problem=f"{where}: {_unknown(unknown)}")
    if NO_FINDING in labels and len(labels) > 1:
        return Entry(row.number, image, problem=f"{where}: {NO_FINDING} and other labels exclude each other")
    stem = image.partition("_")[0]
    if not _PATIENT.fullmatch(patient) or (_PATIENT.fullmatch(stem) and int(stem) != int(patient)):
        return Entry(
            row.number, image, problem=f"{where}: the patient is not the number that the image's name begins with"
        )
    return Entry(
        number=row.number,
        image=image,
        labels=tuple(labels),
        patient_id=f"{int(patient):08d}",
        sex=sex if sex in _SEXES else "",
        age=_read_age(age),
        view=view,
    )


def _read_age(written: str) -> float | None:
    """Return the age in years from "58", or from "058Y", "011M", "003D" as in the first release."""
    unit = {"Y": 1.0, "M": 12.0, "D": 365.25}.get(written[-1:].upper())
    age = _number(written[:-1] if unit else written)
    age = None if age is None else age / (unit or 1.0)
    return age if age is not None and 0 <= age <= _MAX_AGE else None


def _number(written: str) -> float | None:
    try:
        number = float(written)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unknown(label: str) -> str:
    return f"label {label[:_NUM_SHOWN]!r} is not one of {', '.join((*CLASSES, NO_FINDING))}"


def _shown(header: Sequence[str]) -> list[str]:
    return [name[:_NUM_SHOWN] for name in header[:20]]
