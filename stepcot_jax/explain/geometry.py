"""Geometry of maps: file pixels, the encoder's square, map cells, and how widely a map is spread.

The spread from step to step is the paper's Figure 4.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.records.cases import Box


def place_box(box: Box, *, width: int, height: int, preprocessing: Preprocessing) -> tuple[float, float, float, float]:
    """Return a box's left, upper, right and lower edge in pixels of the encoder's square; they may lie outside.

    Args:
      box: in pixels of its picture.
      width: of the picture.
      height: of the picture.
      preprocessing: of the encoder.
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
    rows, columns = (_cell_of_pixels(num_cells, size) for num_cells in maps.shape[-2:])
    num_rows, num_columns = np.bincount(rows, minlength=maps.shape[-2]), np.bincount(columns, minlength=maps.shape[-1])
    a_pixel = maps / np.maximum(num_rows[:, None] * num_columns[None], 1)
    return a_pixel[..., rows[:, None], columns[None]]


def _cell_of_pixels(num_cells: int, size: int) -> Int[np.ndarray, "size"]:
    """Return the cell that contains each pixel's centre."""
    return np.minimum(((np.arange(size) + 0.5) * num_cells / size).astype(int), num_cells - 1)


def smooth(cells: Float[np.ndarray, "row column"], size: int) -> Float[np.ndarray, "size size"]:
    """Resample a map to the encoder's pixels for display: bilinear between cell centres, scaled to a maximum of 1."""
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


def describe_change(change: float, *, least: float = 0.005) -> str:
    """Return a slope in words; one below `least` a step counts as constant."""
    if abs(change) < least:
        return "the focus stays as wide"
    return f"the focus {'narrows' if change < 0 else 'widens'}"
