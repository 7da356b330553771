"""The two tables of NIH ChestX-ray8: the box list and the labels of all images.

Both released headers are irregular: `Bbox [x,y,w,h]` and `OriginalImage[Width,Height]` are split at their commas, and
empty columns trail. Wang et al., "ChestX-ray8", CVPR 2017.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.data.records.cases import Box
from stepcot_jax.data.sources.delimited import Row, fold_column, read_age, read_table
from stepcot_jax.data.sources.named_images import find_file
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
_ENTRY_HEADER = ("Image Index", "Finding Labels", "Patient ID", "Patient Age", "Patient Gender", "View Position")
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

    def scaled(self, width: int, height: int) -> Box:
        """Return the box in an image of this size in pixels."""
        across, down = width / RELEASED_SIDE, height / RELEASED_SIDE
        return Box(self.label, self.x * across, self.y * down, self.width * across, self.height * down)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of the table of labels.

    Attributes:
      number: row in the file, from 1.
      labels: its classes, each once, in the order of the file.
      patient_id: eight digits, as the images' names begin.
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


def count_boxes(root: Path) -> tuple[int, int, int]:
    """Count boxes, images and images with one distinct label in the box list of a data root.

    The released list has 984 boxes on 880 images, 787 of these with one distinct label.
    """
    path = find_file(root, BOX_LIST)
    if path is None:
        raise BadInput(f"{root}: has no {BOX_LIST}")
    boxes, labels = read_box_list(path), collections.defaultdict(set)
    for box in boxes:
        if box.problem:
            raise BadInput(f"{path}: {box.problem}")
        labels[box.image].add(box.label)
    return len(boxes), len(labels), sum(len(found) == 1 for found in labels.values())


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
    places = [folded.index(fold_column(name)) for name in _ENTRY_HEADER]
    return [_read_entry(row, places=places) for row in rows]


def _split(header: Sequence[str]) -> list[str]:
    # Quoted headers are one cell where the released one is split at its commas.
    return [name.strip()[:_NUM_SHOWN] for name in ",".join(header).split(",")]


def _read_box(row: Row) -> ListedBox:
    image, label, *numbers = (*row.cells, *[""] * 6)[:6]
    name = _CLASS_OF.get(fold_column(label), "")
    try:
        x, y, width, height = map(float, numbers)
    except ValueError:
        x = y = width = height = math.nan
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
    return ListedBox(row.number, image, name, x, y, width, height, problem and f"row {row.number}: {problem}")


def _read_entry(row: Row, *, places: Sequence[int]) -> Entry:
    image, written, patient, age, sex, view = (row.cells[place] if place < len(row.cells) else "" for place in places)
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
