"""Between the pixels of a file, the square that an encoder sees, and the cells of a map."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.records.cases import Box


def place_box(box: Box, *, width: int, height: int, preprocessing: Preprocessing) -> tuple[float, float, float, float]:
    """Left, upper, right and lower edge of a box in pixels of the encoder's square; they may lie beyond it.

    Args:
      box: in pixels of its picture.
      width: of the picture.
      height: of the picture.
      preprocessing: what the encoder asked for.
    """
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
    """Which pixels of the encoder's square have their centre inside any of the boxes."""
    centres = np.arange(preprocessing.size) + 0.5
    inside = np.zeros((preprocessing.size, preprocessing.size), bool)
    for box in boxes:
        left, top, right, bottom = place_box(box, width=width, height=height, preprocessing=preprocessing)
        rows = (top <= centres) & (centres < bottom)
        columns = (left <= centres) & (centres < right)
        inside |= rows[:, None] & columns[None]
    return inside


def spread_out(maps: Float[np.ndarray, "*case row column"], size: int) -> Float[np.ndarray, "*case size size"]:
    """Maps at the encoder's pixels, each cell's share spread evenly over the pixels whose centres it holds.

    Sums stay as they are.
    """
    rows, columns = (_cell_of_pixels(num_cells, size) for num_cells in maps.shape[-2:])
    num_rows, num_columns = np.bincount(rows, minlength=maps.shape[-2]), np.bincount(columns, minlength=maps.shape[-1])
    a_pixel = maps / np.maximum(num_rows[:, None] * num_columns[None], 1)
    return a_pixel[..., rows[:, None], columns[None]]


def _cell_of_pixels(num_cells: int, size: int) -> Int[np.ndarray, "size"]:
    """The cell that holds each pixel's centre."""
    return np.minimum(((np.arange(size) + 0.5) * num_cells / size).astype(int), num_cells - 1)


def smooth(cells: Float[np.ndarray, "row column"], size: int) -> Float[np.ndarray, "size size"]:
    """A map at the encoder's pixels for looking at: bilinear between the cells' centres, 0 to 1."""
    sampled = np.asarray(cells, np.float64)
    for axis in (0, 1):
        num_cells = sampled.shape[axis]
        places = np.clip((np.arange(size) + 0.5) * num_cells / size - 0.5, 0, num_cells - 1)
        below = np.minimum(places.astype(int), max(num_cells - 2, 0))
        share = places - below
        above = np.minimum(below + 1, num_cells - 1)
        shape = (-1, 1) if axis == 0 else (1, -1)
        share = share.reshape(shape)
        sampled = np.take(sampled, below, axis) * (1 - share) + np.take(sampled, above, axis) * share
    return sampled / max(sampled.max(), 1e-30)
