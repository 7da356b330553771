"""The contents of a phantom chest in body coordinates: lesions, fluid, air and changes of the anatomy."""

import dataclasses
from typing import Literal

import numpy as np

from stepcot_jax.data.phantom.anatomy import Anatomy

Texture = Literal["solid", "mottled", "net", "dots", "ring", "bulla", "flecks"]


@dataclasses.dataclass(frozen=True)
class Focus:
    """An elliptic lesion.

    Attributes:
      side: -1 for the patient's right lung, 1 for the left.
      x: its centre, in body coordinates.
      y: its centre, in body coordinates.
      angle: rotation in radians, clockwise on the picture.
      softness: width of its edge as a share of its radius.
      phase: offset of its texture, different for each lesion.
      spiculated: whether spikes stand out of it.
      calcified: whether it holds flecks as dense as bone.
      confined: whether it ends where the lung ends.
    """

    label: str
    texture: Texture
    side: int
    x: float
    y: float
    radius_x: float
    radius_y: float
    angle: float
    density: float
    softness: float
    phase: float
    spiculated: bool = False
    calcified: bool = False
    confined: bool = True


@dataclasses.dataclass(frozen=True)
class Fluid:
    """Fluid in one pleural space.

    Attributes:
      side: -1 for the patient's right lung, 1 for the left.
      height: height of the level as a share of the lung's height.
      rim: width of the rim by the chest wall as a share of the lung's width.
      softness: width of its edge as a share of the lung.
      veil: attenuation that a layer of fluid behind the lung adds to the whole lung.
      calcified: whether the pleura holds flecks as dense as bone.
    """

    label: str
    side: int
    height: float
    rim: float
    softness: float
    veil: float = 0.0
    calcified: bool = False


@dataclasses.dataclass(frozen=True)
class Air:
    """Air in one pleural space.

    Attributes:
      side: -1 for the patient's right lung, 1 for the left.
      apical: depth of the air above the lung as a share of the lung's height.
      lateral: width of the air beside the lung as a share of the lung's width.
      total: whether the whole lung has collapsed upon its hilum.
      line: attenuation of the visceral pleura; 0 if invisible.
      softness: width of its edge as a share of the lung.
      collapse: attenuation that the collapsed lung gains.
    """

    label: str
    side: int
    apical: float
    lateral: float
    total: bool
    line: float
    softness: float
    collapse: float = 0.0


@dataclasses.dataclass(frozen=True)
class Sign:
    """A change of the anatomy, with its left, upper, right and lower limits in body coordinates.

    `side` is -1 for the patient's right lung, 1 for the left, 0 for heart and mediastinum.
    """

    label: str
    limits: tuple[float, float, float, float]
    side: int = 0


@dataclasses.dataclass(frozen=True)
class Scene:
    """One case before its pixels.

    Attributes:
      anatomy: the patient after findings changed heart, mediastinum and diaphragm.
      foci: lesions in front of the lungs.
      pleural: fluid and air around the lungs.
      signs: the changes from `healthy` to `anatomy`.
      side: "right", "left" or "bilateral"; "" for a normal chest.
    """

    healthy: Anatomy
    anatomy: Anatomy
    foci: tuple[Focus, ...] = ()
    pleural: tuple[Fluid | Air, ...] = ()
    signs: tuple[Sign, ...] = ()
    side: str = ""


def change_anatomy(
    answers: tuple[str, ...], anatomy: Anatomy, side: int, rng: np.random.Generator
) -> tuple[Anatomy, tuple[Sign, ...]]:
    """Change heart, mediastinum and diaphragm as the findings do; return the anatomy and its changes."""
    _, _, _, _, morphology, secondary, diagnosis = answers
    signs = []
    if "Cardiomegaly" in (secondary, diagnosis):
        anatomy = dataclasses.replace(
            anatomy,
            heart_size=anatomy.heart_size * rng.uniform(1.25, 1.45),
            heart_x=anatomy.heart_x + 0.03,
            heart_blur=0.12 if (diagnosis, morphology) == ("Cardiomegaly", "Ill-defined") else anatomy.heart_blur,
        )
        signs.append(Sign("Cardiomegaly", _around_heart(anatomy)))
    if secondary == "Mediastinal shift":
        # A collapsed lobe pulls the mediastinum, everything else pushes it.
        shift = side * rng.uniform(0.10, 0.16) * (1 if diagnosis == "Atelectasis" else -1)
        first, _, last, lower = _around_heart(anatomy)
        signs.append(Sign(secondary, (first + min(0.0, shift), -1.2, last + max(0.0, shift), lower)))
        anatomy = dataclasses.replace(anatomy, mediastinal_shift=shift)
    if secondary == "Volume loss":
        top, ends = anatomy.dome(side), sorted((anatomy.midline, anatomy.midline + side * anatomy.width(side)))
        lifted = top - rng.uniform(0.14, 0.22)
        signs.append(Sign(secondary, (ends[0], lifted - 0.01, ends[1], top + 0.27), side))
        right, left = (lifted, anatomy.left_dome) if side < 0 else (anatomy.right_dome, lifted)
        anatomy = dataclasses.replace(anatomy, right_dome=right, left_dome=left)
    return anatomy, tuple(signs)


def _around_heart(anatomy: Anatomy) -> tuple[float, float, float, float]:
    middle, edge = anatomy.midline + anatomy.heart_x, anatomy.heart_blur / 2
    long, short = anatomy.heart_size * anatomy.heart_stretch, anatomy.heart_size
    cosine, sine = float(np.cos(anatomy.heart_angle)), float(np.sin(anatomy.heart_angle))
    across, down = float(np.hypot(long * cosine, short * sine)), float(np.hypot(long * sine, short * cosine))
    # The right atrium, a circle, may extend beyond the ellipse of the ventricles.
    left = min(middle - across, anatomy.midline + 0.2 * anatomy.heart_x - 0.78 * short)
    return left - edge, anatomy.heart_y - down - edge, middle + across + edge, anatomy.heart_y + down + edge
