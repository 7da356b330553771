"""The two tables of NIH ChestX-ray8 as they are released: the box list and the labels of all images.

Both headers are irregular: `Bbox [x,y,w,h]` and `OriginalImage[Width,Height]` are split by their commas, and
empty columns trail. Wang et al., "ChestX-ray8", CVPR 2017.
"""

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
"""Width and height in pixels of the released images, which the boxes are measured in."""

NO_FINDING = "No Finding"
CLASSES = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
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
_SIZE_HEADERS = (("OriginalImage[Width",), ("Height]",), ("OriginalImagePixelSpacing[x",), ("y]",))
_PATIENT = re.compile("[0-9]{1,12}")
_MAX_AGE = 120
_SEXES = ("F", "M")
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class ListedBox:
    """One row of the box list; `problem` says why the row cannot be used, with the other fields as far as read."""

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
      age: in years; None where the table has an impossible one.
      view: "PA", "AP" or as the table has it.
      original_size: width and height in pixels before the release made it 1024 x 1024; None where not in the table.
      pixel_spacing: in millimetres of the original's pixels, x and y; None where not in the table.
      problem: why the row cannot be used; "" if it can.
    """

    number: int
    image: str
    labels: tuple[str, ...] = ()
    patient_id: str = ""
    sex: str = ""
    age: float | None = None
    view: str = ""
    original_size: tuple[float, float] | None = None
    pixel_spacing: tuple[float, float] | None = None
    problem: str = ""


def read_box_list(path: Path) -> list[ListedBox]:
    """All rows of the box list.

    Raises:
      BadInput: the file is no table or its header is not that of the box list.
    """
    header, rows = _read(path, num_columns=len(_BOX_HEADER))
    if [fold_column(name) for name in header[:6]] != [fold_column(name) for name in _BOX_HEADER]:
        raise BadInput(f"{path}: found header {_shown(header)}, accepted is {','.join(_BOX_HEADER)}")
    return [_read_box(row) for row in rows]


def read_entries(path: Path) -> list[Entry]:
    """All rows of the table of labels.

    Raises:
      BadInput: the file is no table, or a column of labels, patient, age, sex or view is missing.
    """
    header, rows = _read(path, num_columns=len(_ENTRY_HEADERS))
    folded = [fold_column(name) for name in header]
    places = [_place(folded, names) for names in _ENTRY_HEADERS]
    missing = [names[0] for names, place in zip(_ENTRY_HEADERS, places, strict=True) if place is None]
    if missing:
        raise BadInput(f"{path}: found header {_shown(header)} without {', '.join(missing)}, accepted is one with it")
    sizes = [_place(folded, names) for names in _SIZE_HEADERS]
    return [_read_entry(row, places=places, sizes=sizes) for row in rows]  # type: ignore[arg-type]


def _read(path: Path, *, num_columns: int) -> tuple[tuple[str, ...], Iterator[Row]]:
    header, rows = read_table(path, known_columns={"image index"})
    # A header that somebody quoted is one cell where the released one is split by its commas.
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
        return ListedBox(row.number, "", problem=f"{where}: found no image index, accepted is the name of an image")
    if any(row.cells[6:]):
        accepted = f"accepted are {len(_BOX_HEADER)}"
        return ListedBox(row.number, image, problem=f"{where}: found more columns than in the header, {accepted}")
    name = _CLASS_OF.get(fold_column(label), "")
    if not name or name == NO_FINDING:
        return ListedBox(row.number, image, problem=f"{where}: found {_unknown(label)}")
    try:
        x, y, width, height = (float(number) for number in numbers)
    except ValueError:
        x = y = width = height = math.nan
    inside = x >= 0 and y >= 0 and x + width <= RELEASED_SIDE and y + height <= RELEASED_SIDE
    if not (inside and width > 0 and height > 0):
        found = [number[:_NUM_SHOWN] for number in numbers]
        accepted = f"accepted are x, y, width, height inside {RELEASED_SIDE} x {RELEASED_SIDE} pixels"
        return ListedBox(row.number, image, name, problem=f"{where}: found box {found}, {accepted}")
    return ListedBox(row.number, image, name, x, y, width, height)


def _read_entry(row: Row, *, places: Sequence[int], sizes: Sequence[int | None]) -> Entry:
    image, written, patient, age, sex, view = (_cell(row, place) for place in places)
    where = f"row {row.number}"
    if not image:
        return Entry(row.number, "", problem=f"{where}: found no image index, accepted is the name of an image")
    labels = dict.fromkeys(_CLASS_OF.get(fold_column(label), "") for label in written.split("|"))
    if "" in labels:
        unknown = next(label for label in written.split("|") if fold_column(label) not in _CLASS_OF)
        return Entry(row.number, image, problem=f"{where}: found {_unknown(unknown)}")
    if NO_FINDING in labels and len(labels) > 1:
        return Entry(row.number, image, problem=f"{where}: found {NO_FINDING} beside other labels")
    stem = image.partition("_")[0]
    if not _PATIENT.fullmatch(patient) or (_PATIENT.fullmatch(stem) and int(stem) != int(patient)):
        accepted = "accepted is the number that the image's name begins with"
        return Entry(row.number, image, problem=f"{where}: found another patient than the image's name has, {accepted}")
    numbers = [_number(_cell(row, place)) for place in sizes]
    return Entry(
        number=row.number,
        image=image,
        labels=tuple(labels),
        patient_id=f"{int(patient):08d}",
        sex=sex if sex in _SEXES else "",
        age=_read_age(age),
        view=view,
        original_size=_pair(numbers[0], numbers[1]),
        pixel_spacing=_pair(numbers[2], numbers[3]),
    )


def _read_age(written: str) -> float | None:
    """The age in years: "58", or "058Y", "011M", "003D" as the first release has them."""
    unit = {"Y": 1.0, "M": 12.0, "D": 365.25}.get(written[-1:].upper())
    age = _number(written[:-1] if unit else written)
    age = None if age is None else age / (unit or 1.0)
    return age if age is not None and 0 <= age <= _MAX_AGE else None


def _cell(row: Row, place: int | None) -> str:
    return row.cells[place] if place is not None and place < len(row.cells) else ""


def _number(written: str) -> float | None:
    try:
        number = float(written)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _pair(first: float | None, second: float | None) -> tuple[float, float] | None:
    return None if first is None or second is None else (first, second)


def _unknown(label: str) -> str:
    return f"label {label[:_NUM_SHOWN]!r}, accepted are {', '.join((*CLASSES, NO_FINDING))}"


def _shown(header: Sequence[str]) -> list[str]:
    return [name[:_NUM_SHOWN] for name in header[:20]]
