"""Plan a scene from seven answers: each answer decides something visible in the picture.

Detection decides air or density, distribution the number of lesions, pattern their texture, location their
zone, morphology their edge, secondary effects a sign beside them, and the diagnosis their size and density.
"""

import dataclasses

import numpy as np

from stepcot_jax.data.phantom.anatomy import Anatomy, lung_edges
from stepcot_jax.data.phantom.scene import Air, Fluid, Focus, Scene, Texture, change_anatomy

EMPHYSEMA = "Emphysema"
"""Box label of the bullae that make a detection "Mixed" if nothing else is lucent."""

_ZONES = {"Upper lung zone": (0.17, 0.31), "Middle lung zone": (0.44, 0.58), "Lower lung zone": (0.72, 0.86)}
_ANYWHERE = (0.2, 0.85)
_SOFTNESS = {"Well-circumscribed": 0.12, "Spiculated": 0.25, "Calcified": 0.15, "Ill-defined": 0.75, "N/A": 1.2}


@dataclasses.dataclass(frozen=True)
class _Look:
    """Ranges of density and semi-axes of a diagnosis' lesions."""

    density: tuple[float, float]
    radius_x: tuple[float, float]
    radius_y: tuple[float, float] | None = None


_LOOKS = {
    "Nodule": _Look((0.16, 0.28), (0.045, 0.075)),
    "Mass": _Look((0.16, 0.28), (0.11, 0.18)),
    "Atelectasis": _Look((0.14, 0.23), (0.14, 0.20), (0.05, 0.08)),
    "Infiltration": _Look((0.12, 0.20), (0.12, 0.18), (0.12, 0.20)),
    "Pneumonia": _Look((0.14, 0.24), (0.14, 0.22), (0.12, 0.19)),
    "Effusion": _Look((0.11, 0.17), (0.12, 0.16), (0.10, 0.14)),
    "Cardiomegaly": _Look((0.11, 0.18), (0.14, 0.20), (0.16, 0.24)),
    "Pneumothorax": _Look((0.12, 0.18), (0.12, 0.16), (0.10, 0.14)),
}


def plan_scene(answers: tuple[str, ...], anatomy: Anatomy, rng: np.random.Generator) -> Scene:
    """Return the scene that shows seven answers (option texts) in one patient."""
    detection, distribution, pattern, _, _, secondary, diagnosis = answers
    if diagnosis == "Normal":
        return Scene(anatomy, anatomy)
    side = 1 if rng.random() < 0.5 else -1
    changed, signs = change_anatomy(answers, anatomy, side, rng)
    lucent = pattern == "Cavity" or secondary == "Pneumothorax" or diagnosis == "Pneumothorax"
    foci = [
        *_lesions(answers, changed, side, rng),
        *(_nodes(changed, rng) if secondary == "Lymphadenopathy" else ()),
        *(_bullae(changed, rng) if detection == "Mixed" and not lucent else ()),
    ]
    pleural = (*_primary_pleural(answers, side, rng), *_secondary_pleural(answers, side, rng))
    both = distribution == "Multifocal" or (distribution == "Diffuse" and diagnosis not in ("Effusion", "Pneumothorax"))
    words = "bilateral" if both else "right" if side < 0 else "left"
    return Scene(anatomy, changed, tuple(foci), pleural, signs, words)


def _place(anatomy: Anatomy, side: int, location: str, rng: np.random.Generator) -> tuple[float, float]:
    """Draw a place in a location, in body coordinates."""
    if location == "Hilar/Mediastinal":
        return anatomy.midline + side * rng.uniform(0.16, 0.23), rng.uniform(-0.10, 0.08)
    depth = rng.uniform(0.3, 0.75) if location == "Pleura/Chest wall" else rng.uniform(*_ZONES.get(location, _ANYWHERE))
    y = anatomy.apex + depth * (anatomy.dome(side) - anatomy.apex)
    inner, outer = (float(edge) for edge in lung_edges((y - anatomy.apex) / (anatomy.base - anatomy.apex)))
    across = rng.uniform(0.96, 1.0) if location == "Pleura/Chest wall" else rng.uniform(0.35, 0.75)
    return anatomy.midline + side * anatomy.width(side) * (inner + across * (outer - inner)), y


def _lesions(answers: tuple[str, ...], anatomy: Anatomy, side: int, rng: np.random.Generator) -> list[Focus]:
    _, distribution, pattern, location, morphology, _, diagnosis = answers
    if diagnosis == "Cardiomegaly" and location == "Cardiac":
        location = "Lower lung zone"  # where congestion is visible
    foci: list[Focus] = []
    if distribution == "Diffuse" and pattern not in ("Linear", "N/A") and diagnosis not in ("Effusion", "Pneumothorax"):
        foci += [_whole_lung(answers, anatomy, each, location, rng) for each in (-1, 1)]
    elif pattern != "N/A":
        least, most = _num_foci(diagnosis, distribution, pattern)
        for number in range(int(rng.integers(least, most + 1))):
            each = -side if distribution != "Focal" and number % 2 else side
            foci.append(_focus(answers, anatomy, each, location, rng))
    if (diagnosis, morphology) == ("Cardiomegaly", "Calcified"):
        valve = (anatomy.midline + anatomy.heart_x, anatomy.heart_y, 0.12, 0.09)
        foci.append(Focus(diagnosis, "flecks", 1, *valve, 0.5, 0.25, 0.3, rng.uniform(0, 6), confined=False))
    return foci


def _num_foci(diagnosis: str, distribution: str, pattern: str) -> tuple[int, int]:
    if diagnosis in ("Effusion", "Pneumothorax"):
        return (2, 2) if distribution == "Multifocal" else (1, 1)
    if distribution == "Diffuse":
        return (10, 14)
    if distribution == "Focal":
        return (2, 3) if diagnosis == "Infiltration" and pattern == "Linear" else (1, 1)
    return (3, 6) if diagnosis == "Nodule" or pattern == "Linear" else (2, 4)


def _focus(answers: tuple[str, ...], anatomy: Anatomy, side: int, location: str, rng: np.random.Generator) -> Focus:
    _, _, pattern, _, morphology, _, diagnosis = answers
    look = _LOOKS[diagnosis]
    if diagnosis == "Effusion":
        location = "Middle lung zone"  # consolidation or a fissure above the fluid: below, the fluid hides it
    x, y = _place(anatomy, side, location, rng)
    radius_x = rng.uniform(*look.radius_x)
    radius_y = rng.uniform(*look.radius_y) if look.radius_y else radius_x * rng.uniform(0.8, 1.0)
    angle = rng.uniform(-0.5, 0.5)
    softness = _SOFTNESS[morphology]
    if pattern == "Linear":
        radius_y = rng.uniform(0.016, 0.024)
        radius_x *= 0.6 if diagnosis in ("Infiltration", "Cardiomegaly") else 1.0
        softness = max(softness, 0.6)
    spread = diagnosis in ("Pneumonia", "Infiltration", "Pneumothorax")
    return Focus(
        diagnosis,
        _texture(diagnosis, pattern),
        side,
        *(x, y, radius_x, radius_y, angle),
        density=rng.uniform(*look.density) * (1.25 if pattern in ("Linear", "Cavity") else 1.0),
        softness=softness if diagnosis != "Effusion" else 0.5,
        phase=rng.uniform(0, 6.28),
        spiculated=morphology == "Spiculated",
        calcified=morphology == "Calcified" and diagnosis != "Effusion",
        confined=spread or location not in ("Hilar/Mediastinal", "Pleura/Chest wall"),
    )


def _texture(diagnosis: str, pattern: str) -> Texture:
    if pattern == "Nodular" and diagnosis == "Infiltration":
        return "dots"
    textures: dict[str, Texture] = {"Consolidation": "mottled", "Reticular": "net", "Cavity": "ring"}
    return textures.get(pattern, "solid")


def _whole_lung(
    answers: tuple[str, ...], anatomy: Anatomy, side: int, location: str, rng: np.random.Generator
) -> Focus:
    _, _, pattern, _, morphology, _, diagnosis = answers
    height = anatomy.dome(side) - anatomy.apex
    x, y = _place(anatomy, side, location, rng)
    radius_x, radius_y = 0.34, 0.34
    if location != "Hilar/Mediastinal":
        x, radius_x = anatomy.midline + side * 0.5 * anatomy.width(side), 0.7 * anatomy.width(side)
        radius_y = 0.34 * height
    if location == "N/A":
        y, radius_y = anatomy.apex + 0.5 * height, 0.7 * height
    sharpness = {"Well-circumscribed": 1.15, "Calcified": 1.0, "Ill-defined": 0.9}.get(morphology, 0.75)
    return Focus(
        diagnosis,
        "dots" if pattern == "Nodular" else _texture(diagnosis, pattern),
        side,
        *(x, y, radius_x, radius_y, 0.0),
        density=rng.uniform(*_LOOKS[diagnosis].density) * sharpness,
        softness=_SOFTNESS[morphology],
        phase=rng.uniform(0, 6.28),
        calcified=morphology == "Calcified",
    )


def _nodes(anatomy: Anatomy, rng: np.random.Generator) -> list[Focus]:
    foci = []
    for side, x, y in ((-1, -0.19, 0.0), (-1, -0.15, -0.10), (1, 0.19, -0.04), (1, 0.16, 0.05), (-1, -0.12, -0.30)):
        place = (anatomy.midline + x + rng.uniform(-0.02, 0.02), y + rng.uniform(-0.02, 0.02))
        radii = (rng.uniform(0.065, 0.09), rng.uniform(0.065, 0.09))
        density = rng.uniform(0.13, 0.20)
        foci.append(Focus("Lymphadenopathy", "solid", side, *place, *radii, 0.0, density, 0.4, 0.0, confined=False))
    return foci


def _bullae(anatomy: Anatomy, rng: np.random.Generator) -> list[Focus]:
    foci = []
    for number in range(4):
        side = -1 if number % 2 else 1
        place = _place(anatomy, side, "Upper lung zone", rng)
        radii = (rng.uniform(0.09, 0.13), rng.uniform(0.09, 0.13))
        foci.append(Focus(EMPHYSEMA, "bulla", side, *place, *radii, 0.0, rng.uniform(0.10, 0.14), 0.2, 0.0))
    return foci


def _primary_pleural(answers: tuple[str, ...], side: int, rng: np.random.Generator) -> list[Fluid | Air]:
    detection, distribution, _, location, morphology, secondary, diagnosis = answers
    sides = (side, -side) if distribution == "Multifocal" else (side,)
    if diagnosis == "Effusion":
        flat = location == "Lower lung zone"
        softness = 0.25 if morphology in ("Ill-defined", "N/A") else 0.04
        veil = rng.uniform(0.13, 0.20) if distribution == "Diffuse" else 0.0
        height, rim = ((0.20, 0.38), (0.0, 0.05)) if flat else ((0.10, 0.16), (0.22, 0.34))
        calcified = morphology == "Calcified"
        return [
            Fluid(diagnosis, each, rng.uniform(*height), rng.uniform(*rim), softness, veil, calcified) for each in sides
        ]
    if diagnosis != "Pneumothorax":
        return []
    line, softness = (rng.uniform(0.10, 0.16), 0.03) if morphology == "Well-circumscribed" else (0.0, 0.15)
    upper = location == "Upper lung zone"
    collapse = rng.uniform(0.13, 0.18) if detection == "Mixed" and secondary != "Pleural effusion" else 0.04
    apical, lateral = ((0.26, 0.40), (0.0, 0.08)) if upper else ((0.05, 0.10), (0.34, 0.50))
    total = distribution == "Diffuse"
    return [
        Air(diagnosis, each, rng.uniform(*apical), rng.uniform(*lateral), total, line, softness, collapse)
        for each in sides
    ]


def _secondary_pleural(answers: tuple[str, ...], side: int, rng: np.random.Generator) -> list[Fluid | Air]:
    secondary = answers[5]
    if secondary == "Pleural effusion":
        return [Fluid(secondary, side, rng.uniform(0.06, 0.12), rng.uniform(0.06, 0.12), 0.06)]
    if secondary == "Pneumothorax":
        return [Air(secondary, side, rng.uniform(0.14, 0.20), rng.uniform(0.08, 0.16), False, 0.12, 0.03)]
    return []
