"""A schematic frontal chest in attenuation: 0 is air, 1 nearly opaque.

Lengths are in body coordinates: a patient looks the same at every size, since `render_anatomy` alone sees pixels.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32, UInt8

# The trunk spans about -1 to 1; x grows to the right of the picture (the patient's left) and y downwards. The styles
# differ in tone curve, sharpness, noise, field of view, collimation and marker. They stand for three origins, so that
# a model trained on one can be tested on another.

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
    """The pixels of one picture in body coordinates."""

    x: Image
    y: Image
    pixel: float  # side of a pixel in body coordinates
    pose: Pose  # maps body coordinates to pixels

    @classmethod
    def of(cls, pose: Pose, size: int) -> "Frame":
        """Return the frame of a square picture with sides of `size` pixels."""
        steps = (2 * (np.arange(size, dtype=np.float32) + 0.5) / size - 1) * pose.field_of_view
        cosine, sine = float(np.cos(pose.rotation)), float(np.sin(pose.rotation))
        across, down = steps[None, :] - pose.shift_x, steps[:, None] - pose.shift_y
        return cls(cosine * across + sine * down, cosine * down - sine * across, 2 * pose.field_of_view / size, pose)

    def to_pixels(self, x: float, y: float) -> tuple[float, float]:
        """Return the fractional column and row of a point in the body; 0 is the outer edge of the first pixel."""
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
    position = (np.arange(size) + 0.5) / size * (num_knots - 1)
    distance = np.abs(position[:, None] - np.arange(num_knots)[None, :])
    near, far = np.clip(1 - distance, 0, None), np.clip(2 - distance, 0, None)
    weights = (far**3 - 4 * near**3) / 6
    # Unit variance in two dimensions when the knots have it.
    return (weights / np.sqrt((weights**2).sum(1, keepdims=True))).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Style:
    """Appearance of one institution's pictures."""

    origin: str
    num_published: int  # published cases of the origin that it stands for
    fields_of_view: tuple[float, float]  # least and greatest half-width of the picture in body units
    darkest: float
    brightest: float
    gamma: float  # exponent of the tone curve; above 1 darkens the middle tones
    blur: float  # standard deviation of the point spread as a share of the picture's side
    noise: float  # standard deviation of a pixel's noise, in grey levels of 0 to 1
    border: float  # width of the unexposed border as a share of the picture's side
    marker: str
    marker_corner: tuple[float, float]  # left and upper edge of the letter as shares of the picture's side


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
    """Return the picture of an attenuation."""
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
    left, top = (round(share * size) for share in style.marker_corner)
    region = tones[top : top + letter.shape[0], left : left + letter.shape[1]]
    region[letter[: region.shape[0], : region.shape[1]]] = 0.97


@functools.lru_cache(maxsize=8)
def _point_spread(sigma: float, size: int) -> Float32[np.ndarray, "size size"] | None:
    if sigma < 0.2:
        return None  # narrower than a pixel
    distance = np.arange(size)[:, None] - np.arange(size)[None, :]
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


_NUM_COARSE, _NUM_MIDDLE, _NUM_KNOTS = 12, 28, 42


def _within(least: float, most: float) -> float:
    """A field that `draw_anatomy` draws between two limits."""
    field: float = dataclasses.field(metadata={"limits": (least, most)})
    return field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anatomy:
    """One patient's chest: lengths, shares and densities."""

    midline: float = _within(-0.02, 0.02)
    right_width: float = _within(0.62, 0.74)
    left_width: float = _within(0.60, 0.72)
    apex: float = _within(-0.80, -0.70)
    base: float = _within(0.66, 0.74)
    right_dome: float = _within(0.40, 0.49)
    left_dome: float = _within(0.46, 0.54)
    dome_curve: float = _within(0.50, 0.80)
    heart_x: float = _within(0.09, 0.14)
    heart_y: float = _within(0.26, 0.34)
    heart_size: float = _within(0.235, 0.29)
    heart_stretch: float = _within(1.15, 1.35)
    heart_angle: float = _within(0.5, 0.8)
    heart_blur: float = _within(0.02, 0.03)
    mediastinum: float = _within(0.085, 0.125)
    knob: float = _within(0.055, 0.08)
    rib_spacing: float = _within(0.155, 0.19)
    rib_phase: float = _within(0.0, 1.0)
    rib_density: float = _within(0.06, 0.115)
    clavicle_y: float = _within(-0.62, -0.54)
    clavicle_slope: float = _within(-0.25, -0.02)
    spine_density: float = _within(0.03, 0.08)
    vessel_density: float = _within(0.05, 0.10)
    vessel_phase: float = _within(0.0, 6.28)
    breast_density: float = _within(-0.05, 0.07)
    soft_tissue: float = _within(0.50, 0.60)
    texture: Float32[np.ndarray, "3 knot knot"] = dataclasses.field(repr=False)
    mediastinal_shift: float = 0.0

    def width(self, side: int) -> float:
        """Return the distance of the lung's outermost edge from the midline; side -1 is the patient's right lung."""
        return self.right_width if side < 0 else self.left_width

    def dome(self, side: int) -> float:
        """Return the height (y) of the top of the diaphragm."""
        return self.right_dome if side < 0 else self.left_dome


@dataclasses.dataclass(frozen=True)
class Chest:
    """A rendered chest without lesions; every array is [height, width]."""

    attenuation: Image  # the sum of all tissues
    lungs: dict[int, Image]  # the share of aerated lung of the patient's right (-1) and left (1) side
    overlaid: dict[int, Image]  # the lungs including the parts behind heart and mediastinum
    heart: Image
    vessels: Image  # the lung vessels' part of the attenuation
    depth: Image  # 0 at the lung's apex, 1 at its base
    across: Image  # 0 at the lung's inner edge, 1 at the chest wall
    mottle: Image
    net: Image  # texture of networks, finer than the mottle


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Draw a healthy chest."""
    texture = rng.standard_normal((3, _NUM_KNOTS, _NUM_KNOTS), dtype=np.float32)
    drawn = [field for field in dataclasses.fields(Anatomy) if field.metadata]
    return Anatomy(texture=texture, **{field.name: rng.uniform(*field.metadata["limits"]) for field in drawn})


def lung_edges(depth: Image | float) -> tuple[Image, Image]:
    """Return the inner and outer edge of a lung of width 1 at a depth of 0 (apex) to 1 (base)."""
    squeeze = np.clip(1 - depth / 0.8, 0, 1)
    inner = 0.06 + 0.24 * squeeze * squeeze * squeeze
    return inner, inner + (1 - inner) * np.sqrt(1 - squeeze * squeeze)


def render_anatomy(anatomy: Anatomy, frame: Frame) -> Chest:
    """Render a chest and the parts that lesions depend on."""
    x, y = frame.x - anatomy.midline, frame.y
    left = x > 0
    from_midline = np.abs(x)
    width = np.where(left, np.float32(anatomy.left_width), np.float32(anatomy.right_width))
    across = from_midline / width
    depth = (y - anatomy.apex) / (anatomy.base - anatomy.apex)
    tissue, mottle, net = _textures(anatomy, frame.x.shape[0])
    lungs, thorax, within = _lung_field(anatomy, frame, across=across, depth=depth, left=left)
    heart, mediastinum = _mediastinum(anatomy, frame)
    aerated = lungs * (1 - heart) * (1 - mediastinum)
    overlaid = lungs * (1 - 0.5 * np.maximum(heart, mediastinum))
    trunk = frame.ramp(0.30 + 0.68 * smooth_step(y + 0.80, 0.4) - from_midline, 0.06)
    vessels = _vessels(anatomy, frame, from_midline=from_midline, left=left, tissue=tissue) * aerated
    tissues = anatomy.soft_tissue - 0.10 * from_midline + 0.02 * tissue + 0.08 * smooth_step(y - 0.5, 0.5)
    tissues += 0.15 * np.maximum(heart, 0.6 * mediastinum)
    tissues += _bones(anatomy, frame, ribs_over=thorax * (0.25 + 0.75 * lungs), across=across)
    tissues += _breasts(anatomy, frame, from_midline)
    air = 0.33 * aerated * (0.92 + 0.10 * across + 0.05 * mottle) + _trachea_and_stomach(anatomy, frame)
    return Chest(
        attenuation=tissues * trunk - air + vessels,
        lungs={-1: aerated * ~left, 1: aerated * left},
        overlaid={-1: overlaid * ~left, 1: overlaid * left},
        heart=heart * (1 - smooth_step(y - (anatomy.left_dome + 0.1), 0.1)),
        vessels=vessels,
        depth=depth,
        across=within,
        mottle=mottle,
        net=net,
    )


def _lung_field(
    anatomy: Anatomy, frame: Frame, *, across: Image, depth: Image, left: Image
) -> tuple[Image, Image, Image]:
    inner, outer = lung_edges(depth)
    thorax = frame.ramp(outer - across, 0.03) * frame.ramp(depth, 0.03)
    top = np.where(left, np.float32(anatomy.left_dome), np.float32(anatomy.right_dome))
    dome = top + anatomy.dome_curve * (across - 0.5) * (across - 0.5)
    lungs = thorax * frame.ramp(across - inner, 0.04) * frame.ramp(dome - frame.y, 0.025)
    return lungs, thorax, (across - inner) / np.maximum(outer - inner, np.float32(0.05))


def _mediastinum(anatomy: Anatomy, frame: Frame) -> tuple[Image, Image]:
    x, y = frame.x - anatomy.midline - anatomy.mediastinal_shift, frame.y
    cosine, sine = float(np.cos(anatomy.heart_angle)), float(np.sin(anatomy.heart_angle))
    along = (cosine * (x - anatomy.heart_x) + sine * (y - anatomy.heart_y)) / anatomy.heart_stretch
    aside = cosine * (y - anatomy.heart_y) - sine * (x - anatomy.heart_x)
    left_heart = anatomy.heart_size - np.hypot(along, aside)
    right_heart = 0.78 * anatomy.heart_size - np.hypot(x - 0.2 * anatomy.heart_x, y - anatomy.heart_y + 0.02)
    heart = frame.ramp(np.maximum(left_heart, right_heart), anatomy.heart_blur)
    pedicle = frame.ramp(anatomy.mediastinum + 0.05 * np.abs(y + 0.35) - np.abs(x - 0.01), 0.03)
    knob = frame.ramp(anatomy.knob - np.hypot(x - 0.10, y + 0.22), 0.02)
    return heart, np.maximum(pedicle, knob)


def _bones(anatomy: Anatomy, frame: Frame, *, ribs_over: Image, across: Image) -> Image:
    y = frame.y / anatomy.rib_spacing
    behind = _band(y - 1.6 * across * across + 0.9 * across + anatomy.rib_phase)
    before = _band(0.8 * y + 2.2 * across + anatomy.rib_phase)
    ribs = anatomy.rib_density * ribs_over * (behind + 0.55 * before * np.clip(2 * across - 0.4, 0, 1))
    from_midline = np.abs(frame.x - anatomy.midline)
    level = anatomy.clavicle_y + anatomy.clavicle_slope * from_midline - 0.06 * np.sin(5 * from_midline)
    clavicle = frame.ramp(0.03 - np.abs(frame.y - level), 0.02) * smooth_step(from_midline - 0.12, 0.06)
    spine = smooth_step(0.085 - from_midline, 0.04) * (0.8 + 0.4 * _band(y + anatomy.rib_phase))
    return ribs + 0.11 * clavicle + anatomy.spine_density * spine


def _band(phase: Image) -> Image:
    # A triangle wave costs a tenth of a cosine and looks the same after smoothing.
    distance = np.abs(phase - np.rint(phase))
    return smooth_step(0.24 - distance, 0.14)


def _vessels(anatomy: Anatomy, frame: Frame, *, from_midline: Image, left: Image, tissue: Image) -> Image:
    across, down = from_midline - 0.15, frame.y - np.where(left, np.float32(-0.06), np.float32(-0.02))
    radius = np.hypot(across, down) + 1e-3
    # Nine branches that split into twice as many: more contrast by the hilum, less at the periphery.
    angle = np.arctan2(down, across) + 0.35 * np.sin(9 * radius + anatomy.vessel_phase) + 0.05 * tissue
    branches = np.cos(9 * angle + anatomy.vessel_phase)
    twigs = np.cos(19 * angle - anatomy.vessel_phase)
    fan = np.clip(branches, 0, 1) * np.clip(1 - 2.2 * radius, 0, 1)
    fan += 0.6 * np.clip(twigs, 0, 1) * np.clip(1 - 1.3 * radius, 0, 1)
    return anatomy.vessel_density * (fan + 1.5 * np.clip(1 - radius / 0.16, 0, 1))


def _breasts(anatomy: Anatomy, frame: Frame, from_midline: Image) -> Image:
    if anatomy.breast_density <= 0:
        return np.zeros((), np.float32)
    distance = np.hypot(from_midline - 0.42, frame.y - 0.22)
    return anatomy.breast_density * frame.ramp(0.36 - distance, 0.05) * smooth_step(frame.y - 0.2, 0.5)


def _trachea_and_stomach(anatomy: Anatomy, frame: Frame) -> Image:
    x = frame.x - anatomy.midline
    trachea = smooth_step(0.045 - np.abs(x - anatomy.mediastinal_shift), 0.03) * smooth_step(-0.18 - frame.y, 0.06)
    stomach = smooth_step(1 - np.hypot((x - 0.36) / 0.14, (frame.y - anatomy.left_dome - 0.13) / 0.06), 0.5)
    return 0.13 * trachea + 0.20 * stomach


def _textures(anatomy: Anatomy, size: int) -> Float32[np.ndarray, "3 height width"]:
    smooth, patchy, fine = (
        stretch(values[:num_knots, :num_knots], size)
        for values, num_knots in zip(anatomy.texture, (_NUM_COARSE, _NUM_MIDDLE, _NUM_KNOTS), strict=True)
    )
    return np.stack([smooth, 0.7 * (patchy + stretch(anatomy.texture[1][-_NUM_COARSE:, -_NUM_COARSE:], size)), fine])
