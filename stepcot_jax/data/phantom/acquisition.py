"""Acquisition of a phantom radiograph: body coordinates, their pixels, and three styles.

The trunk spans about -1 to 1; x grows to the right of the picture (the patient's left) and y downwards. The styles
differ in tone curve, sharpness, noise, field of view, collimation and marker. They stand for three origins, so that a
model trained on one can be tested on another.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32, UInt8

Image = Float32[np.ndarray, "height width"]


@dataclasses.dataclass(frozen=True)
class Pose:
    """One exposure: rotation in radians, shifts, field of view (1: the trunk); gain and offset of the attenuation."""

    rotation: float
    shift_x: float
    shift_y: float
    field_of_view: float
    gain: float
    offset: float


@dataclasses.dataclass(frozen=True)
class Frame:
    """The pixels of one picture in body coordinates.

    Attributes:
      pixel: side of a pixel in body coordinates.
      pose: maps body coordinates to pixels.
    """

    x: Image
    y: Image
    pixel: float
    pose: Pose

    @classmethod
    def of(cls, pose: Pose, size: int) -> "Frame":
        """Return the frame of a square picture with sides of `size` pixels."""
        steps = (2 * (np.arange(size, dtype=np.float32) + 0.5) / size - 1) * pose.field_of_view
        cosine, sine = float(np.cos(pose.rotation)), float(np.sin(pose.rotation))
        across, down = steps[None, :] - pose.shift_x, steps[:, None] - pose.shift_y
        return cls(cosine * across + sine * down, cosine * down - sine * across, 2 * pose.field_of_view / size, pose)

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the fractional column and row of a place in the body; 0 is the outer edge of the first pixel."""
        cosine, sine = float(np.cos(self.pose.rotation)), float(np.sin(self.pose.rotation))
        across, down = cosine * x - sine * y + self.pose.shift_x, sine * x + cosine * y + self.pose.shift_y
        return (across + self.pose.field_of_view) / self.pixel, (down + self.pose.field_of_view) / self.pixel

    def ramp(self, distance: Image, width: float) -> Image:
        """Return 0 outside, 1 inside, smooth over `width` (at least one pixel, against aliasing) around distance 0."""
        return smooth_step(distance, max(width, self.pixel))


def smooth_step(distance: Image, width: float) -> Image:
    """Return a cubic ramp from 0 to 1 centred on distance 0."""
    share = np.clip(distance / width + 0.5, 0, 1)
    return share * share * (3 - 2 * share)


def stretch(values: Float32[np.ndarray, "knot knot"], size: int) -> Image:
    """Interpolate a smooth random field with sides of `size` pixels from values at knots, with their variance."""
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


@dataclasses.dataclass(frozen=True)
class Style:
    """Appearance of one institution's pictures.

    Attributes:
      num_published: published cases of the origin that it stands for.
      fields_of_view: least and greatest half-width of the picture in body units.
      gamma: exponent of the tone curve; above 1 darkens the middle tones.
      blur: standard deviation of the point spread as a share of the picture's side.
      noise: standard deviation of a pixel's noise, in grey levels of 0 to 1.
      border: width of the unexposed border as a share of the picture's side.
      marker_place: left and upper edge of the letter as shares of the picture's side.
    """

    origin: str
    num_published: int
    fields_of_view: tuple[float, float]
    darkest: float
    brightest: float
    gamma: float
    blur: float
    noise: float
    border: float
    marker: str
    marker_place: tuple[float, float]


STYLES = (
    Style("Phantom A", 3749, (0.88, 0.97), 0.08, 0.98, 1.0, 0.003, 0.022, 0.0, "L", (0.90, 0.06)),
    Style("Phantom B", 3230, (0.92, 1.02), 0.07, 0.86, 1.2, 0.0, 0.030, 0.035, "R", (0.06, 0.08)),
    Style("Phantom C", 3089, (0.98, 1.10), 0.0, 1.10, 0.85, 0.007, 0.034, 0.0, "P", (0.07, 0.88)),
)

_LETTERS = {
    "L": ("10000", "10000", "10000", "10000", "10000", "10000", "11111"),
    "R": ("11110", "10001", "10001", "11110", "10100", "10010", "10001"),
    "P": ("11110", "10001", "10001", "11110", "10000", "10000", "10000"),
}
_LETTER_HEIGHT = 0.055


def draw_style(rng: np.random.Generator) -> Style:
    """Draw a style, each as frequent as the origin that it stands for."""
    shares = np.array([style.num_published for style in STYLES], dtype=float)
    return STYLES[int(rng.choice(len(STYLES), p=shares / shares.sum()))]


def draw_pose(rng: np.random.Generator, style: Style) -> Pose:
    """Draw the patient's position before the detector, and the exposure."""
    return Pose(
        rotation=rng.uniform(-0.07, 0.07),
        shift_x=rng.uniform(-0.04, 0.04),
        shift_y=rng.uniform(-0.05, 0.03),
        field_of_view=rng.uniform(*style.fields_of_view),
        gain=rng.uniform(0.94, 1.06),
        offset=rng.uniform(-0.03, 0.03),
    )


def expose(
    attenuation: Image, *, style: Style, pose: Pose, rng: np.random.Generator
) -> UInt8[np.ndarray, "height width"]:
    """Return the picture of an attenuation.

    Args:
      attenuation: [height, width], square; 0 is air.
    """
    size = attenuation.shape[0]
    sharp = pose.gain * attenuation + pose.offset
    spread = _point_spread(style.blur * size, size)
    blurred = sharp if spread is None else spread @ sharp @ spread.T
    tones = np.clip((blurred - style.darkest) / (style.brightest - style.darkest), 0, 1) ** np.float32(style.gamma)
    tones += style.noise * rng.standard_normal(tones.shape, dtype=np.float32)
    _lay_marker(tones, style)
    border = round(style.border * size)
    if border:
        tones[:border] = tones[-border:] = 0.02
        tones[:, :border] = tones[:, -border:] = 0.02
    return np.rint(255 * np.clip(tones, 0, 1)).astype(np.uint8)


def _lay_marker(tones: Image, style: Style) -> None:
    size = tones.shape[0]
    bits = np.array([[bit == "1" for bit in row] for row in _LETTERS[style.marker]])
    scale = max(1, round(_LETTER_HEIGHT * size / bits.shape[0]))
    letter = np.kron(bits, np.ones((scale, scale), bool))
    left, top = (round(share * size) for share in style.marker_place)
    place = tones[top : top + letter.shape[0], left : left + letter.shape[1]]
    place[letter[: place.shape[0], : place.shape[1]]] = 0.97


@functools.lru_cache(maxsize=8)
def _point_spread(sigma: float, size: int) -> Float32[np.ndarray, "size size"] | None:
    if sigma < 0.2:
        return None  # narrower than the pixel itself
    distance = np.arange(size)[:, None] - np.arange(size)[None, :]
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
