"""Boxes as corners: the labelled `Box`, overlap, matching, and the coordinate spaces of texts.

A box is (x1, y1, x2, y2): left, upper, right and lower edge, with continuous areas (a box from 2 to 5 is 3 wide).
Everything is float64 on the host. A box without a positive width and height is empty; its IoU with any box is 0.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from jaxtyping import Float64, Int64

from stepcot_jax.host.errors import BadInput

Corners: TypeAlias = tuple[float, float, float, float]
Matching = Literal["optimal", "ordered"]
UnequalCounts = Literal["penalise", "zero", "matched"]
EmptyBoxes = Literal["one", "zero"]

_LONGEST_LABEL = 200
_UNSAFE = frozenset("<>[](){}*\"'`|\\")
_LARGEST = 2.0**500  # areas of larger coordinates would overflow


@dataclasses.dataclass(frozen=True)
class Space:
    """The coordinates that a text writes boxes in.

    Attributes:
      width: coordinate of the picture's right edge; the left edge is 0.
      height: coordinate of its lower edge; the upper edge is 0.
      y_first: whether a box is written (y1, x1, y2, x2).
      decimals: digits after the point of a written coordinate.
    """

    width: float
    height: float
    y_first: bool = False
    decimals: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.width < np.inf and 0 < self.height < np.inf):
            raise ValueError(f"a space must be of positive size; got {self.width} by {self.height}")


def pixels(image_size: Sequence[float]) -> Space:
    """Return the space of whole pixels of a picture of (width, height)."""
    width, height = image_size
    return Space(width, height)


UNIT_SQUARE = Space(1, 1, decimals=4)
"""Shares of the picture's sides, x first, written with four digits."""

GRID_1000 = Space(1000, 1000, y_first=True)
"""Whole numbers from 0 to 1000 in both directions, y first."""


QWEN_PIXELS = (56 * 56, 28 * 28 * 16_384)
"""Least and most pixels of a picture that Qwen2-VL's processor resized, as published."""

QWEN_ASPECT = 200  # longest side, in shortest ones, of a picture that the processor takes


def qwen_size(image_size: tuple[int, int], *, unit: int = 28, limits: tuple[int, int] = QWEN_PIXELS) -> tuple[int, int]:
    """Return the width and height that Qwen2-VL's processor resizes a picture of (width, height) to, px.

    Multiples of a unit, nearest to the picture's own; if those have too many or too few pixels, the largest that fit or
    the smallest that suffice at about the same aspect.

    >>> qwen_size((640, 480))
    (644, 476)
    """
    width, height = image_size
    if max(image_size) > QWEN_ASPECT * min(image_size):
        raise BadInput(f"image of {width} x {height} px: one side is more than {QWEN_ASPECT} times the other")
    # Python rounds halves to even, as the processor does.
    columns, rows = (round(side / unit) for side in image_size)
    least, most = limits
    if columns * rows * unit**2 > most:
        shrink = math.sqrt(height * width / most)
        columns, rows = (max(1, math.floor(side / shrink / unit)) for side in image_size)
    elif columns * rows * unit**2 < least:
        grow = math.sqrt(least / (height * width))
        columns, rows = (math.ceil(side * grow / unit) for side in image_size)
    return columns * unit, rows * unit


SPACES = ("pixels", "unit", "1000", "qwen")
"""Named spaces: pixels of the record's picture, shares of its sides, 0 to 1000, pixels of Qwen's resized picture."""
_SIZE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")
_QWEN = re.compile(r"qwen(?::([1-9]\d{0,11}):([1-9]\d{0,11}))?")


def find_space(name: str, image_size: tuple[int, int]) -> Space:
    """Return the space, x first, that a name stands for.

    Args:
      name: of `SPACES`; "qwen:MIN:MAX" for a processor with other limits of pixels; or a size, such as "336x336".
      image_size: width and height of the picture in pixels; of a picture of unknown size, (0, 0), only "pixels" and
        "qwen" depend.

    Raises:
      BadInput: an unknown name, or an unknown size where the space depends on it.
    """
    size, qwen = _SIZE.fullmatch(name), _QWEN.fullmatch(name)
    if name not in SPACES and not size and not qwen:
        accepted = f"{', '.join(SPACES)}, qwen:MIN:MAX or a size as 336x336"
        raise BadInput(f"space (--box-space): {name[:40]!r} is not one of {accepted}")
    if qwen and qwen[1] and int(qwen[1]) > int(qwen[2]):
        raise BadInput(f"space (--box-space): {name!r} has a MIN above its MAX")
    if (qwen or name == "pixels") and not all(image_size):
        raise BadInput(f"image_size: {list(image_size)} is no size in pixels, which space {name!r} requires")
    if qwen:
        limits = (int(qwen[1]), int(qwen[2])) if qwen[1] else QWEN_PIXELS
        return pixels(qwen_size(image_size, limits=limits))
    if size:
        return pixels((int(size[1]), int(size[2])))
    return pixels({"unit": (1, 1), "1000": (1000, 1000)}.get(name, image_size))


class Box(msgspec.Struct, frozen=True):
    """A labelled box.

    Attributes:
      label: name of the finding or region.
      corners: in pixels of the record's picture, unless `space` says otherwise.
      sentence: the report's sentence about it; "" if the source has none.
      region: name of the anatomical region that it lies in; "" if unknown.
      stated_size: width and height as the source writes them, where the corners' difference rounds to another number.
    """

    label: str
    corners: Corners
    sentence: str = ""
    region: str = ""
    space: Space | None = None
    stated_size: tuple[float, float] | None = None

    @classmethod
    def of_size(cls, label: str, x: float, y: float, width: float, height: float, sentence: str = "") -> "Box":
        """Return the box of a left upper corner and a size."""
        x2, y2 = x + width, y + height
        stated = None if (x2 - x, y2 - y) == (width, height) else (width, height)
        return cls(label, (x, y, x2, y2), sentence, stated_size=stated)

    @property
    def x1(self) -> float:
        """Left edge."""
        return self.corners[0]

    @property
    def y1(self) -> float:
        """Upper edge."""
        return self.corners[1]

    @property
    def x2(self) -> float:
        """Right edge."""
        return self.corners[2]

    @property
    def y2(self) -> float:
        """Lower edge."""
        return self.corners[3]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        x1, y1, x2, y2 = self.corners
        return self.stated_size or (x2 - x1, y2 - y1)

    def check(self) -> "Box":
        """Return the box if a record can refer to it, else raise `BadInput`: a label on one line, a positive area."""
        if len(self.label) > _LONGEST_LABEL:
            raise BadInput(f"label: {self.label[:80]!r} has {len(self.label)} characters; at most {_LONGEST_LABEL}")
        if not self.label.strip() or not self.label.isprintable() or _UNSAFE & set(self.label):
            raise BadInput(
                f"label: {self.label[:80]!r} is not a name on one line without brackets, quotes or asterisks"
            )
        x1, y1, x2, y2 = self.corners
        if not (0 <= x1 < x2 < float("inf") and 0 <= y1 < y2 < float("inf")):
            raise BadInput(f"box: {list(self.corners)} is not [x1, y1, x2, y2] with 0 <= x1 < x2 and 0 <= y1 < y2")
        return self


class Point(msgspec.Struct, frozen=True):
    """A labelled point (x, y), in pixels of the record's picture, or as its reply writes it."""

    label: str
    at: tuple[float, float]


def as_corners(boxes: npt.ArrayLike) -> Float64[np.ndarray, "box 4"]:
    """Return boxes as an array, which has no rows if there is no box."""
    corners = np.asarray(boxes, np.float64)
    if corners.size == 0:
        return np.zeros((0, 4))
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise ValueError(f"boxes must have shape [box, 4]; got {corners.shape}")
    if not np.isfinite(corners).all():
        raise ValueError("coordinates must be finite")
    return corners


def iou(first: npt.ArrayLike, second: npt.ArrayLike) -> Float64[np.ndarray, "box other"]:
    """Return intersection over union of every pair of boxes; 0 where a box is empty, never NaN.

    GEMeX-RMCoT, Section 4.2.2 (grounding reward), with continuous areas.

    Args:
      second: [other, 4], corners in the same space.

    >>> iou([[0, 0, 2, 2]], [[1, 0, 3, 2], [5, 5, 5, 9]]).round(4).tolist()
    [[0.3333, 0.0]]
    """
    corners, others = as_corners(first), as_corners(second)
    largest = max(np.abs(corners).max(initial=0), np.abs(others).max(initial=0))
    if largest > _LARGEST:
        corners, others = corners / largest, others / largest
    sides, other_sides = np.maximum(corners[:, 2:] - corners[:, :2], 0), np.maximum(others[:, 2:] - others[:, :2], 0)
    lower = np.minimum(corners[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(lower - np.maximum(corners[:, None, :2], others[None, :, :2]), 0).prod(axis=-1)
    areas, other_areas = sides.prod(axis=-1), other_sides.prod(axis=-1)
    union = areas[:, None] + other_areas[None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def match(
    overlaps: Float64[np.ndarray, "box other"], *, matching: Matching = "optimal"
) -> tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]:
    """Pair boxes one to one, as many as the shorter side has.

    Args:
      matching: "optimal" for the pairs with the greatest sum of overlaps (not a greedy choice), "ordered" for the first
        with the first, the second with the second.
    """
    _check("matching", matching, Matching)
    if matching == "ordered":
        order = np.arange(min(overlaps.shape))
        return order, order
    if overlaps.size and 1 in overlaps.shape:  # nearly every reply, and scipy takes half a second to import
        row, column = divmod(int(overlaps.argmax()), overlaps.shape[1])
        return np.array([row]), np.array([column])
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(overlaps, maximize=True)
    return rows, columns


def mean_iou(
    predicted: npt.ArrayLike,
    true: npt.ArrayLike,
    *,
    matching: Matching = "optimal",
    unequal_counts: UnequalCounts = "penalise",
    empty_boxes: EmptyBoxes = "one",
) -> float:
    """Return the mean IoU of predicted and true boxes of one picture, from 0 to 1, never NaN.

    GEMeX-RMCoT, Section 4.2.2: mIoU over n pairs is the mean of their IoU. The paper does not say how boxes are paired
    or unequal counts treated; both are settings.

    Args:
      true: [box, 4], corners in the same space.
      unequal_counts: "penalise" divides the sum over the pairs by the greater number of boxes, "matched" by the
        smaller, "zero" makes unequal numbers worth 0.
      empty_boxes: worth of no box on either side: "one" or "zero". No box on one side alone is worth 0.

    >>> mean_iou([[0, 0, 2, 2], [8, 8, 9, 9]], [[0, 0, 2, 1]])
    0.25
    """
    _check("matching", matching, Matching)
    _check("unequal_counts", unequal_counts, UnequalCounts)
    _check("empty_boxes", empty_boxes, EmptyBoxes)
    overlaps = iou(predicted, true)
    fewer, more = sorted(overlaps.shape)
    if more == 0:
        return 1.0 if empty_boxes == "one" else 0.0
    if fewer == 0 or (fewer != more and unequal_counts == "zero"):
        return 0.0
    total = float(overlaps[match(overlaps, matching=matching)].sum())
    return total / (fewer if unequal_counts == "matched" else more)


def convert(boxes: npt.ArrayLike, *, source: Space, target: Space) -> Float64[np.ndarray, "box 4"]:
    """Return boxes of one space in another, unrounded.

    Args:
      boxes: [box, 4], as `source` writes them.

    >>> convert([[250, 0, 500, 1000]], source=GRID_1000, target=pixels((64, 128))).tolist()
    [[0.0, 32.0, 64.0, 64.0]]
    """
    return _scale(as_corners(boxes), source=source, target=target, times=1.0)


def convert_rounded(boxes: npt.ArrayLike, *, source: Space, target: Space) -> Float64[np.ndarray, "box 4"]:
    """Return boxes of one space as another writes them: rounded half up to its number of decimals.

    The rounding is exact for whole coordinates below 2^31: 2.5 becomes 3, whatever the sizes of the spaces are.

    >>> convert_rounded([[1, 2, 3, 40]], source=pixels((400, 80)), target=GRID_1000).tolist()
    [[25.0, 3.0, 500.0, 8.0]]
    """
    factor = 10.0**target.decimals
    return np.floor(_scale(as_corners(boxes), source=source, target=target, times=factor) + 0.5) / factor


def _scale(
    corners: Float64[np.ndarray, "box 4"], *, source: Space, target: Space, times: float
) -> Float64[np.ndarray, "box 4"]:
    x_first = corners[:, [1, 0, 3, 2]] if source.y_first else corners
    # Multiplied before it is divided: the product is exact, and one division rounds a tie to a tie.
    scaled = x_first * (np.array([target.width, target.height] * 2) * times)
    scaled /= np.array([source.width, source.height] * 2)
    return scaled[:, [1, 0, 3, 2]] if target.y_first else scaled


def _check(name: str, value: str, accepted: object) -> None:
    if value not in get_args(accepted):
        raise ValueError(f"{name} must be one of {', '.join(get_args(accepted))}; got {value!r}")
