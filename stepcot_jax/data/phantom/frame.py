"""Body coordinates and the pixels that show them.

The trunk spans about -1 to 1; x grows to the right of the picture (the patient's left) and y downwards.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32

Image = Float32[np.ndarray, "height width"]


@dataclasses.dataclass(frozen=True)
class Pose:
    """How one exposure catches the patient: a rotation in radians, shifts and the field of view (1: the trunk)."""

    rotation: float
    shift_x: float
    shift_y: float
    field_of_view: float


@dataclasses.dataclass(frozen=True)
class Frame:
    """The pixels of one picture in body coordinates.

    Attributes:
      x: [height, width].
      y: [height, width].
      pixel: side of a pixel in body coordinates.
      pose: the pose that maps one onto the other.
    """

    x: Image
    y: Image
    pixel: float
    pose: Pose

    @classmethod
    def of(cls, pose: Pose, size: int) -> "Frame":
        """The frame of a square picture of `size` pixels a side."""
        steps = (2 * (np.arange(size, dtype=np.float32) + 0.5) / size - 1) * pose.field_of_view
        cosine, sine = float(np.cos(pose.rotation)), float(np.sin(pose.rotation))
        across, down = steps[None, :] - pose.shift_x, steps[:, None] - pose.shift_y
        return cls(cosine * across + sine * down, cosine * down - sine * across, 2 * pose.field_of_view / size, pose)

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Column and row (fractional, 0 is the outer edge of the first pixel) of a place in the body."""
        cosine, sine = float(np.cos(self.pose.rotation)), float(np.sin(self.pose.rotation))
        across, down = cosine * x - sine * y + self.pose.shift_x, sine * x + cosine * y + self.pose.shift_y
        return (across + self.pose.field_of_view) / self.pixel, (down + self.pose.field_of_view) / self.pixel

    def ramp(self, distance: Image, width: float) -> Image:
        """0 outside, 1 inside, smooth over `width` (at least one pixel, against stairs) around distance 0."""
        return smooth_step(distance, max(width, self.pixel))


def smooth_step(distance: Image, width: float) -> Image:
    """Cubic ramp from 0 to 1 centred on distance 0."""
    share = np.clip(distance / width + 0.5, 0, 1)
    return share * share * (3 - 2 * share)


def stretch(values: Float32[np.ndarray, "knot knot"], size: int) -> Image:
    """A smooth random field of `size` pixels a side from values at knots, with their variance."""
    weights = _spline(values.shape[0], size)
    return weights @ values @ weights.T


@functools.lru_cache(maxsize=32)
def _spline(num_knots: int, size: int) -> Float32[np.ndarray, "size knot"]:
    place = (np.arange(size) + 0.5) / size * (num_knots - 1)
    distance = np.abs(place[:, None] - np.arange(num_knots)[None, :])
    near, far = np.clip(1 - distance, 0, None), np.clip(2 - distance, 0, None)
    weights = (far**3 - 4 * near**3) / 6
    # Unit variance in two dimensions when the knots have it.
    return (weights / np.sqrt((weights**2).sum(1, keepdims=True))).astype(np.float32)
