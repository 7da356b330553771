"""Geometry of maps and lesion boxes, and the boxed radiographs that maps are scored on.

File pixels, the encoder's square, map cells, and how widely a map is spread: from step to step, the paper's Figure 4.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, UInt8
from scipy import ndimage

from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.records.cases import Box
from stepcot_jax.data.sources.chestxray8 import ListedBox, read_box_list
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings


def place_box(box: Box, *, width: int, height: int, preprocessing: Preprocessing) -> tuple[float, float, float, float]:
    """Return a box's left, upper, right and lower edge in pixels of the encoder's square; they may lie outside."""
    size = preprocessing.size
    if preprocessing.fit == "stretch":
        across, down = size / width, size / height
    else:
        across = down = size / (min if preprocessing.fit == "crop" else max)(width, height)
    left, top = (size - width * across) / 2, (size - height * down) / 2
    return (
        left + box.x * across,
        top + box.y * down,
        left + (box.x + box.width) * across,
        top + (box.y + box.height) * down,
    )


def fill_boxes(
    boxes: Iterable[Box], *, width: int, height: int, preprocessing: Preprocessing
) -> Bool[np.ndarray, "size size"]:
    """Return whether each pixel centre of the encoder's square lies inside any box."""
    centres = np.arange(preprocessing.size) + 0.5
    inside = np.zeros((preprocessing.size, preprocessing.size), bool)
    for box in boxes:
        left, top, right, bottom = place_box(box, width=width, height=height, preprocessing=preprocessing)
        rows = (top <= centres) & (centres < bottom)
        columns = (left <= centres) & (centres < right)
        inside |= rows[:, None] & columns[None]
    return inside


def spread_out(maps: Float[np.ndarray, "*case row column"], size: int) -> Float[np.ndarray, "*case size size"]:
    """Resample maps to the encoder's pixels, each cell's share split evenly over the pixel centres inside it.

    Sums do not change.
    """
    centres = np.arange(size) + 0.5  # of the pixels
    rows, columns = (np.minimum((centres * number / size).astype(int), number - 1) for number in maps.shape[-2:])
    num_rows, num_columns = np.bincount(rows, minlength=maps.shape[-2]), np.bincount(columns, minlength=maps.shape[-1])
    a_pixel = maps / np.maximum(num_rows[:, None] * num_columns[None], 1)
    return a_pixel[..., rows[:, None], columns[None]]


def smooth(cells: Float[np.ndarray, "row column"], size: int) -> Float[np.ndarray, "size size"]:
    """Resample a map to the encoder's pixels for display: bilinear between cell centres, scaled to a maximum of 1."""
    factors = [size / num_cells for num_cells in cells.shape]
    sampled = ndimage.zoom(np.asarray(cells, np.float64), factors, order=1, mode="nearest", grid_mode=True)
    return sampled / max(sampled.max(), 1e-30)


def spread(maps: Float[np.ndarray, "*case row column"]) -> Float[np.ndarray, "*case"]:
    """Return the entropy of each map as a share of the even map's: 0 for a single cell, 1 for an even map.

    >>> float(spread(np.full((2, 2), 0.25)))
    1.0
    """
    cells = np.asarray(maps, np.float64).reshape(*maps.shape[:-2], -1)
    if cells.shape[-1] < 2:
        raise ValueError(f"maps need at least 2 cells; got {cells.shape[-1]}")
    logs = np.log(np.where(cells > 0, cells, 1.0))
    return np.clip(-(cells * logs).sum(axis=-1) / np.log(cells.shape[-1]), 0.0, 1.0)


def change_a_step(spreads: Float[np.ndarray, "*case step"]) -> Float[np.ndarray, "*case"]:
    """Return the slope of the least-squares line through the spreads of the steps; below 0 the focus narrows.

    >>> round(float(change_a_step(np.array([0.9, 0.8, 0.7]))), 6)
    -0.1
    """
    places = np.arange(spreads.shape[-1]) - (spreads.shape[-1] - 1) / 2
    return (spreads * places).sum(axis=-1) / np.maximum((places**2).sum(), 1e-12)


def describe_change(spreads: Float[np.ndarray, "step"]) -> str:
    """Return in words how the spread changes over the steps.

    A slope below 0.005 a step counts as constant, and a line that explains less than half of the variance as none.

    >>> describe_change(np.array([0.9, 0.8, 0.7])), describe_change(np.array([0.9, 0.2, 0.8]))
    ('the focus narrows', 'the focus goes back and forth')
    """
    change = float(change_a_step(spreads))
    if float(np.ptp(spreads)) < _CONSTANT * (len(spreads) - 1):
        return "the focus stays as wide"
    line = change * (np.arange(len(spreads)) - (len(spreads) - 1) / 2)
    if (line**2).sum() < 0.5 * ((spreads - spreads.mean()) ** 2).sum():
        return "the focus goes back and forth"
    if abs(change) < _CONSTANT:
        return "the focus stays as wide"
    return f"the focus {'narrows' if change < 0 else 'widens'}"


_CONSTANT = 0.005  # slope a step


_MOST_DRAWN = 100
"""Phantoms drawn for each box wanted before giving up."""


@dataclasses.dataclass(frozen=True)
class BoxedPicture:
    """A radiograph with the locations of its lesions.

    Attributes:
      inside: whether each pixel is in a box.
    """

    name: str
    patient: str
    picture: UInt8[np.ndarray, "size size 3"]
    inside: Bool[np.ndarray, "size size"]


def draw_boxed(settings: Settings, preprocessing: Preprocessing, *, num_cases: int) -> list[BoxedPicture]:
    """Draw phantoms with boxes from the next seed, which no run of these settings has seen."""
    phantom = settings.phantom
    size = phantom.image_size if settings.data.source == "phantom" else preprocessing.size
    seed = (phantom.seed + 1) % 2**32
    pictures: list[BoxedPicture] = []
    for index in range(_MOST_DRAWN * num_cases):
        drawn = draw_case(index, seed=seed, size=size, prevalence=phantom.prevalence)
        pixels = repeat_grey(drawn.image)
        boxed = _make(drawn.case.image_path, drawn.case.patient_id, pixels, drawn.boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            return pictures
    raise BadInput(f"the phantom has only {len(pictures)} cases with boxes; {num_cases} are needed")


def read_boxed(
    root: pathlib.Path,
    preprocessing: Preprocessing,
    *,
    num_cases: int,
    box_list: pathlib.Path | None = None,
    max_pixels: int,
) -> list[BoxedPicture]:
    """Read the radiographs of a data root that have boxes.

    Args:
      box_list: ChestX-ray8's table of boxes, matched to images by name without suffix and scaled to their size.
    """
    collection = read_source(root, on_bad_record="skip", require_images=True)
    listed = None if box_list is None else _read_listed(box_list)
    pictures: list[BoxedPicture] = []
    for case in collection.cases:
        boxes: Any = case.boxes if listed is None else listed.get(pathlib.PurePosixPath(case.image_path).stem, ())
        if not boxes:
            continue
        pixels = decode_image(collection.root / case.image_path, max_pixels=max_pixels)
        height, width = pixels.shape[:2]
        if listed is not None:
            boxes = tuple(box.scaled(width, height) for box in boxes)
        boxed = _make(case.image_path, case.patient_id, pixels, boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            break
    if not pictures:
        raise BadInput(
            f"{root} has no image with a box; expected data with boxes (docs/data.md), or --boxes with ChestX-ray8's "
            "BBox_List_2017.csv for images of that collection"
        )
    return pictures


def _read_listed(path: pathlib.Path) -> dict[str, list[ListedBox]]:
    """Return boxes by the image's name without suffix, in pixels of the released images."""
    by_name = collections.defaultdict(list)
    for row in read_box_list(path):
        if row.problem:
            raise BadInput(f"{path}: {row.problem}")
        by_name[pathlib.PurePosixPath(row.image).stem].append(row)
    return by_name


def _make(
    name: str, patient: str, pixels: np.ndarray, boxes: tuple[Box, ...], preprocessing: Preprocessing
) -> BoxedPicture | None:
    """Return a boxed picture; None if every box lies outside the encoder's square."""
    height, width = pixels.shape[:2]
    inside = fill_boxes(boxes, width=width, height=height, preprocessing=preprocessing)
    if not inside.any():
        return None
    return BoxedPicture(name, patient, resize_image(pixels, preprocessing), inside)
