"""Three ways to take a radiograph: tone curve, sharpness, noise, field of view, collimation and marker.

They stand for three origins, so that a model trained on one can be tried on another.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32, UInt8

from stepcot_jax.data.phantom.frame import Image, Pose


@dataclasses.dataclass(frozen=True)
class Style:
    """How one institution's pictures look.

    Attributes:
      origin: name of the institution.
      num_published: cases of the published origin it stands for.
      fields_of_view: least and greatest half-width of the picture in body units.
      darkest: attenuation shown as black.
      brightest: attenuation shown as white.
      gamma: exponent of the tone curve; above 1 darkens the middle tones.
      blur: standard deviation of the point spread as a share of the picture's side.
      noise: standard deviation of a pixel's noise, in grey levels of 0 to 1.
      border: width of the unexposed border as a share of the picture's side.
      marker: the letter laid on the cassette.
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


@dataclasses.dataclass(frozen=True)
class Exposure:
    """The differences between two pictures of one style: factor and offset of the attenuation."""

    gain: float
    offset: float


def draw_style(rng: np.random.Generator) -> Style:
    """A style, each as frequent as the origin that it stands for."""
    shares = np.array([style.num_published for style in STYLES], dtype=float)
    return STYLES[int(rng.choice(len(STYLES), p=shares / shares.sum()))]


def draw_pose(rng: np.random.Generator, style: Style) -> Pose:
    """A random position of the patient before the detector."""
    return Pose(
        rotation=rng.uniform(-0.07, 0.07),
        shift_x=rng.uniform(-0.04, 0.04),
        shift_y=rng.uniform(-0.05, 0.03),
        field_of_view=rng.uniform(*style.fields_of_view),
    )


def draw_exposure(rng: np.random.Generator) -> Exposure:
    """A random exposure."""
    return Exposure(gain=rng.uniform(0.94, 1.06), offset=rng.uniform(-0.03, 0.03))


def expose(
    attenuation: Image, *, style: Style, exposure: Exposure, rng: np.random.Generator
) -> UInt8[np.ndarray, "height width"]:
    """The picture of an attenuation.

    Args:
      attenuation: [height, width], square; 0 is air.
      style: how the picture looks.
      exposure: the gain and offset of this picture.
      rng: stream of the noise. The same stream gives the same noise whatever the attenuation.

    Returns:
      Grey levels from 0 to 255.
    """
    size = attenuation.shape[0]
    sharp = exposure.gain * attenuation + exposure.offset
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
