"""What stands where in a phantom chest, in body coordinates and before any pixel."""

import dataclasses
from typing import Literal

from stepcot_jax.data.phantom.anatomy import Anatomy

Texture = Literal["solid", "mottled", "net", "dots", "ring", "bulla", "flecks"]


@dataclasses.dataclass(frozen=True)
class Focus:
    """An elliptic lesion.

    Attributes:
      label: text of its box.
      texture: what fills it.
      side: -1 for the patient's right lung, 1 for the left.
      x: its centre, in body coordinates.
      y: its centre, in body coordinates.
      radius_x: semi-axis along its angle.
      radius_y: the other semi-axis.
      angle: rotation in radians, clockwise on the picture.
      density: attenuation at its densest.
      softness: width of its edge as a share of its radius.
      phase: what tells its texture from another's.
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
      label: text of its box.
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
      label: text of its box.
      side: -1 for the patient's right lung, 1 for the left.
      apical: depth of the air above the lung as a share of the lung's height.
      lateral: width of the air beside the lung as a share of the lung's width.
      total: whether the whole lung has collapsed upon its hilum.
      line: attenuation of the visceral pleura; 0 where it cannot be made out.
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
    """A change of the anatomy, with its left, upper, right and lower limits in body coordinates."""

    label: str
    limits: tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class Scene:
    """One case before it has pixels.

    Attributes:
      healthy: the patient without findings.
      anatomy: the patient with heart, mediastinum and diaphragm as the findings make them.
      foci: lesions in front of the lungs.
      pleural: fluid and air around the lungs.
      signs: changes of the anatomy, of which `anatomy` is the outcome.
      side: "right", "left" or "bilateral"; "" for a normal chest.
    """

    healthy: Anatomy
    anatomy: Anatomy
    foci: tuple[Focus, ...] = ()
    pleural: tuple[Fluid | Air, ...] = ()
    signs: tuple[Sign, ...] = ()
    side: str = ""
