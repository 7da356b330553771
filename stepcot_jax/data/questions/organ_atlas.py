"""Where organs lie in a frontal chest radiograph without masks: a drawn atlas that is fitted to a map of dark lungs.

The shapes are ours: lungs after the mean of the 435 masks with a lung that torchxrayvision ships, the heart an ellipse.
They are estimates; `docs/annotate.md` states how often they agree with masks, and where that is unknown.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from scipy import ndimage

from stepcot_jax.box import Corners
from stepcot_jax.data.questions.vocabulary import HEART, USUAL_FRAME, term_of

# Points (u, v) in the frame of both lungs: 0 to 1 from the picture's left to right and from the apex to the sinus.
_HEART = [
    (0.57 + 0.22 * np.cos(angle) - 0.03 * np.sin(angle), 0.73 + 0.21 * np.sin(angle) + 0.03 * np.cos(angle))
    for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False).tolist()
]
ORGANS: dict[str, Sequence[tuple[float, float]]] = {
    "right lung": (
        *((0.34, 0.01), (0.25, 0.05), (0.15, 0.16), (0.09, 0.30), (0.05, 0.50), (0.02, 0.72), (0.00, 0.98)),
        *((0.06, 0.90), (0.14, 0.84), (0.22, 0.83), (0.30, 0.85), (0.36, 0.88), (0.40, 0.90)),
        *((0.41, 0.70), (0.43, 0.40), (0.45, 0.12), (0.42, 0.03)),
    ),
    "left lung": (
        *((0.66, 0.01), (0.74, 0.05), (0.84, 0.14), (0.91, 0.28), (0.95, 0.50), (0.98, 0.72), (1.00, 0.98)),
        *((0.94, 0.92), (0.87, 0.88), (0.78, 0.87), (0.70, 0.89), (0.62, 0.94), (0.60, 0.90)),
        *((0.58, 0.60), (0.56, 0.30), (0.55, 0.12), (0.58, 0.03)),
    ),
    "heart": _HEART,
}
"""Outlines by organ; the lungs end where the heart begins."""

LEAST_CORRELATION = 0.55
"""Fits below it are not used: on 64 radiographs of ChestX-ray8 it told good fits from bad ones by eye."""

LEAST_SHARE = 1 / 3
"""Share of a box that an organ must have to be named, """
MOST_OTHER = 2 / 3
"""and the most that another organ may have, as a part of it."""

_SIDE, _PAD = 48, 6  # pixels of the map and around it
_WIDTHS, _HEIGHTS = range(24, 49, 2), range(20, 46, 2)
_ASPECTS = (0.7, 1.9)
_MARGIN = 0.12  # of the frame's sides, in which the atlas expects no lung
_FINE = 64


class Fit(NamedTuple):
    """The frame of both lungs in a picture."""

    frame: Corners  # shares of the picture's sides
    correlation: float  # of the atlas with the map of the lungs, at most 1


def map_lungs(picture: UInt8[np.ndarray, "height width"]) -> Float[np.ndarray, "side side"]:
    """Return a small map from 0 to 1 of what is darker than its surroundings, without a dark background."""
    grey = np.asarray(Image.fromarray(picture).resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float64)
    grey = ndimage.gaussian_filter(grey, 0.6)
    dark, _ = ndimage.label(grey <= max(0.35 * np.median(grey), grey.min() + 3))
    edges = np.concatenate([dark[0], dark[-1], dark[:, 0], dark[:, -1]])
    background: Bool[np.ndarray, "side side"] = np.isin(dark, np.unique(edges[edges > 0]))
    rank = np.ones_like(grey)
    values = grey[~background]
    rank[~background] = np.searchsorted(np.sort(values), values) / max(len(values), 1)
    surroundings = ndimage.gaussian_filter(rank, _SIDE / 5)
    return np.where(background, 0.0, np.clip(2 * (surroundings - rank) + 0.5, 0, 1))


def fit_atlas(lungs: Float[np.ndarray, "side side"]) -> Fit:
    """Return the frame in which the atlas' lungs correlate best with a map, over a grid of sizes and positions."""
    padded = np.pad(lungs, _PAD, mode="edge")
    spectrum = np.fft.rfft2(padded)  # positions at which the template is inside see nothing of the wrapping
    best = Fit(USUAL_FRAME, -1.0)
    for (width, height), expected in _templates():
        rows, columns = expected.shape
        if max(rows, columns) > len(padded):
            continue
        centred = expected - expected.mean()
        product = np.fft.irfft2(spectrum * np.conj(np.fft.rfft2(centred, padded.shape)), padded.shape)
        product = product[: len(padded) - rows + 1, : len(padded) - columns + 1]
        total, squares = _sum_windows(padded, rows, columns), _sum_windows(padded**2, rows, columns)
        spread = np.maximum(squares - total**2 / expected.size, 1e-9)
        correlation = product / np.sqrt(spread * (centred**2).sum())
        y, x = np.unravel_index(correlation.argmax(), correlation.shape)
        if correlation[y, x] > best.correlation:
            left, top = (x - _PAD + (columns - width) // 2) / _SIDE, (y - _PAD + (rows - height) // 2) / _SIDE
            frame = (float(left), float(top), float(left + width / _SIDE), float(top + height / _SIDE))
            best = Fit(frame, float(correlation[y, x]))
    return best


def paint_organs(frame: Corners, window: Corners, *, side: int = _FINE) -> dict[str, Bool[np.ndarray, "side side"]]:
    """Return masks of the organs in a window, which they fill; frame and window in the same coordinates."""
    masks = {name: _paint(points, frame, window, side) for name, points in ORGANS.items()}
    return {name: mask if name == "heart" else mask & ~masks["heart"] for name, mask in masks.items()}


def share_organs(box: Corners, frame: Corners) -> dict[str, float]:
    """Return the share of a box in each organ; box and frame in the same coordinates."""
    return {name: float(mask.mean()) for name, mask in paint_organs(frame, box).items()}


def name_organ(label: str, box: Corners, fit: Fit) -> tuple[str, float]:
    """Return the organ that hosts a finding, and its share of the box, which is in shares of the picture's sides.

    "" if the fit is poor or no organ has clearly the most. The heart hosts only its own findings: what lies behind it
    is in the lung.
    """
    shares = share_organs(box, fit.frame)
    second, best = sorted(shares, key=lambda name: shares[name])[-2:]
    is_clear = shares[best] >= LEAST_SHARE and shares[second] <= MOST_OTHER * shares[best]
    is_possible = best != "heart" or term_of(label).region == HEART
    return best if is_clear and is_possible and fit.correlation >= LEAST_CORRELATION else "", shares[best]


def _paint(
    points: Sequence[tuple[float, float]], frame: Corners, window: Corners, side: int
) -> Bool[np.ndarray, "side side"]:
    """Return an outline of a frame as a mask of a window."""
    (x1, y1, x2, y2), (left, top, right, bottom) = frame, window
    across, down = side / (right - left), side / (bottom - top)
    drawn = [((x1 + u * (x2 - x1) - left) * across, (y1 + v * (y2 - y1) - top) * down) for u, v in points]
    canvas = Image.new("1", (side, side))
    ImageDraw.Draw(canvas).polygon([(x - 0.5, y - 0.5) for x, y in drawn], fill=1)
    return np.asarray(canvas, bool)


@functools.cache
def _templates() -> list[tuple[tuple[int, int], Float[np.ndarray, "row column"]]]:
    """Return each size of the frame in pixels of the map, and the atlas' lungs with a margin around them."""
    masks = paint_organs((0.0, 0.0, 1.0, 1.0), (-_MARGIN, -_MARGIN, 1 + _MARGIN, 1 + _MARGIN))
    lungs = Image.fromarray((masks["right lung"] | masks["left lung"]).astype(np.float32))
    sizes = [(width, height) for width in _WIDTHS for height in _HEIGHTS if _ASPECTS[0] < width / height < _ASPECTS[1]]
    drawn = (tuple(side + 2 * round(side * _MARGIN) for side in size) for size in sizes)
    return [
        (size, np.asarray(lungs.resize((columns, rows), Image.Resampling.BOX), np.float64))
        for size, (columns, rows) in zip(sizes, drawn, strict=True)
    ]


def _sum_windows(values: Float[np.ndarray, "row column"], rows: int, columns: int) -> Float[np.ndarray, "y x"]:
    sums = np.pad(values.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    return sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
