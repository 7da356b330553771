"""Draw lesions as layers of attenuation over a rendered chest, each with its bounding box."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from stepcot_jax.box import Box
from stepcot_jax.data.phantom.anatomy import Anatomy, Chest, Frame, Image, lung_edges, smooth_step

# The contents of a phantom chest in body coordinates: lesions, fluid, air and changes of the anatomy.

Texture = Literal["solid", "mottled", "net", "dots", "ring", "bulla", "flecks"]


@dataclasses.dataclass(frozen=True)
class Focus:
    """An elliptic lesion."""

    label: str
    texture: Texture
    side: int  # -1 for the patient's right lung, 1 for the left
    x: float  # its centre, in body coordinates
    y: float  # its centre, in body coordinates
    radius_x: float
    radius_y: float
    angle: float  # rotation in radians, clockwise on the picture
    density: float
    softness: float  # width of its edge as a share of its radius
    phase: float  # offset of its texture, different for each lesion
    spiculated: bool = False  # whether spikes stand out of it
    calcified: bool = False  # whether it holds flecks as dense as bone
    confined: bool = True  # whether it ends where the lung ends


@dataclasses.dataclass(frozen=True)
class Fluid:
    """Fluid in one pleural space."""

    label: str
    side: int  # -1 for the patient's right lung, 1 for the left
    height: float  # height of the level as a share of the lung's height
    rim: float  # width of the rim by the chest wall as a share of the lung's width
    softness: float  # width of its edge as a share of the lung
    veil: float = 0.0  # attenuation that a layer of fluid behind the lung adds to the whole lung
    calcified: bool = False  # whether the pleura holds flecks as dense as bone


@dataclasses.dataclass(frozen=True)
class Air:
    """Air in one pleural space."""

    label: str
    side: int  # -1 for the patient's right lung, 1 for the left
    apical: float  # depth of the air above the lung as a share of the lung's height
    lateral: float  # width of the air beside the lung as a share of the lung's width
    total: bool  # whether the whole lung has collapsed upon its hilum
    line: float  # attenuation of the visceral pleura; 0 if invisible
    softness: float  # width of its edge as a share of the lung
    collapse: float = 0.0  # attenuation that the collapsed lung gains


@dataclasses.dataclass(frozen=True)
class Sign:
    """A change of the anatomy, with its left, upper, right and lower limits in body coordinates."""

    label: str
    limits: tuple[float, float, float, float]
    side: int = 0


@dataclasses.dataclass(frozen=True)
class Scene:
    """One case before its pixels."""

    healthy: Anatomy
    anatomy: Anatomy  # the patient after findings changed heart, mediastinum and diaphragm
    foci: tuple[Focus, ...] = ()  # lesions in front of the lungs
    pleural: tuple[Fluid | Air, ...] = ()  # fluid and air around the lungs
    signs: tuple[Sign, ...] = ()  # the changes from `healthy` to `anatomy`
    side: str = ""  # "right", "left" or "bilateral"; "" for a normal chest


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


_CHANGED = {
    "Cardiomegaly": ("heart_size", "heart_x", "heart_blur"),
    "Mediastinal shift": ("mediastinal_shift",),
    "Volume loss": ("right_dome", "left_dome"),
}
"""Fields of the anatomy that each sign changes."""


def remove_findings(scene: Scene, is_removed: Callable[[str], bool]) -> Scene:
    """Return a scene without the lesions, fluid, air and signs of some labels; everything else stays as it is."""
    changed = {name for sign in scene.signs if is_removed(sign.label) for name in _CHANGED[sign.label]}
    restored: dict[str, Any] = {name: getattr(scene.healthy, name) for name in changed}
    return dataclasses.replace(
        scene,
        anatomy=dataclasses.replace(scene.anatomy, **restored),
        foci=tuple(focus for focus in scene.foci if not is_removed(focus.label)),
        pleural=tuple(fluid for fluid in scene.pleural if not is_removed(fluid.label)),
        signs=tuple(sign for sign in scene.signs if not is_removed(sign.label)),
    )


def _around_heart(anatomy: Anatomy) -> tuple[float, float, float, float]:
    middle, edge = anatomy.midline + anatomy.heart_x, anatomy.heart_blur / 2
    long, short = anatomy.heart_size * anatomy.heart_stretch, anatomy.heart_size
    cosine, sine = float(np.cos(anatomy.heart_angle)), float(np.sin(anatomy.heart_angle))
    across, down = float(np.hypot(long * cosine, short * sine)), float(np.hypot(long * sine, short * cosine))
    # The right atrium, a circle, may extend beyond the ellipse of the ventricles.
    left = min(middle - across, anatomy.midline + 0.2 * anatomy.heart_x - 0.78 * short)
    return left - edge, anatomy.heart_y - down - edge, middle + across + edge, anatomy.heart_y + down + edge


_SHOWN = 0.08  # a box encloses the pixels where a layer exceeds this share of its maximum
_DOT_CELL = 0.11
_THINNEST_BLOB = 0.03
_LARGEST_NODULE = 0.09


@dataclasses.dataclass(frozen=True)
class Mark:
    """A drawn finding with its box."""

    box: Box  # label and limits in pixels
    side: int  # -1 for the patient's right lung, 1 for the left, 0 for heart and mediastinum
    kind: str  # "focus", "fluid", "air" or "sign" (a change of the anatomy)


def draw_findings(scene: Scene, *, chest: Chest, frame: Frame, margin: int = 0) -> tuple[Image, tuple[Mark, ...]]:
    """Draw a chest with its findings and return their boxes."""
    attenuation = chest.attenuation.copy()
    boxes = [(_box_of_sign(sign, frame), sign.side, "sign") for sign in scene.signs]
    for collection in scene.pleural:
        layer = _fluid(collection, chest) if isinstance(collection, Fluid) else _air(collection, chest, frame)
        attenuation += layer
        box = _box_of_layer(collection.label, layer, top=0, left=0)
        boxes.append((box, collection.side, "fluid" if isinstance(collection, Fluid) else "air"))
    for focus in scene.foci:
        rows, columns = _window(focus, frame)
        if rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        layer = _focus(focus, chest=chest, frame=frame, rows=rows, columns=columns)
        attenuation[rows, columns] += layer
        box = _box_of_layer(focus.label, layer, top=rows.start, left=columns.start)
        boxes.append((box, 0 if focus.texture == "flecks" else focus.side, "focus"))
    size = frame.x.shape[0]
    marks: dict[Box, Mark] = {}
    for box, side, kind in boxes:
        if box is not None:
            wide = _widened(box, margin, size)
            marks.setdefault(wide, Mark(wide, side, kind))
    return attenuation, tuple(
        mark for box, mark in marks.items() if not any(_holds(other, box) for other in marks if other != box)
    )


def _box_of_sign(sign: Sign, frame: Frame) -> Box | None:
    left, upper, right, lower = sign.limits
    corners = [frame.to_pixels(x, y) for x in (left, right) for y in (upper, lower)]
    limits = [limit for values in zip(*corners, strict=True) for limit in (min(values), max(values))]
    first_x, last_x, first_y, last_y = np.clip(limits, 0, frame.x.shape[0]).tolist()
    x, y = int(first_x), int(first_y)
    return _box(sign.label, x, y, int(np.ceil(last_x)) - x, int(np.ceil(last_y)) - y)


def _box_of_layer(label: str, layer: Image, *, top: int, left: int) -> Box | None:
    shown = np.abs(layer) > _SHOWN * np.abs(layer).max(initial=0)
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    if not rows.size:
        return None
    height, width = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
    return _box(label, left + int(columns[0]), top + int(rows[0]), width, height)


def _box(label: str, x: int, y: int, width: int, height: int) -> Box | None:
    return Box.of_size(label, x, y, width, height) if width > 0 and height > 0 else None


def _widened(box: Box, margin: int, size: int) -> Box:
    x, y = max(0, box.x1 - margin), max(0, box.y1 - margin)
    right, lower = min(size, box.x2 + margin), min(size, box.y2 + margin)
    return Box(box.label, (x, y, right, lower))


def _holds(outer: Box, inner: Box) -> bool:
    reaches = outer.x1 <= inner.x1 and outer.y1 <= inner.y1 and outer.x2 >= inner.x2 and outer.y2 >= inner.y2
    return outer.label == inner.label and reaches


def _fluid(fluid: Fluid, chest: Chest) -> Image:
    lung = chest.lungs[fluid.side]
    # The lung ends at a depth of about 0.85, where the diaphragm begins.
    level = 0.82 - fluid.height - (0.12 + 0.5 * fluid.rim) * np.clip(chest.across, 0, 1) ** 3
    below = smooth_step(chest.depth - level, fluid.softness)
    start = 0.8 - 2 * fluid.rim
    rim = smooth_step(chest.across - (1 - fluid.rim * chest.depth), fluid.softness)
    rim *= smooth_step(chest.depth - start, fluid.softness + 0.1)
    layer = lung * (0.30 * np.maximum(below, rim) + fluid.veil * np.clip(0.4 + chest.depth, 0, 1))
    if fluid.calcified:
        plaque = smooth_step(chest.net + 0.2, 0.4) * smooth_step(0.05 - np.abs(chest.across - 0.9), 0.06)
        layer += 0.30 * lung * plaque * smooth_step(chest.depth - 0.25, 0.2)
    return layer


def _air(air: Air, chest: Chest, frame: Frame) -> Image:
    lung = chest.lungs[air.side]
    across, depth = np.clip(chest.across, 0, 1), chest.depth
    if air.total:
        outside = np.hypot(across / 0.55, (depth - 0.55) / 0.36) - 1
    else:
        above = air.apical - depth + 0.12 * across * across
        outside = np.maximum(above, across - (1 - air.lateral * (1.15 - 0.7 * depth)))
    gone = smooth_step(outside, air.softness)
    # Only the vessels of this lung: those of the other one stay.
    layer = -gone * (chest.vessels * (lung > 0) + 0.13 * lung)
    layer += air.collapse * lung * (1 - gone) * (1.0 if air.total else smooth_step(0.6 - across, 0.5))
    if air.line:
        breadth = max(0.022, 1.2 * frame.pixel)
        layer += air.line * lung * np.clip(1 - np.abs(outside) / breadth, 0, 1)
    return layer


def _window(focus: Focus, frame: Frame) -> tuple[slice, slice]:
    column, row = frame.to_pixels(focus.x, focus.y)
    reach = 2.0 if focus.spiculated else 1.02 + focus.softness / 2
    if abs(focus.angle) > 0:
        across = down = reach * max(focus.radius_x, focus.radius_y) / frame.pixel + 1
    else:
        across, down = (reach * 1.05 * radius / frame.pixel + 1 for radius in (focus.radius_x, focus.radius_y))
    size = frame.x.shape[0]
    top, bottom, left, right = np.clip([row - down, row + down, column - across, column + across], 0, size).tolist()
    return slice(int(top), int(np.ceil(bottom))), slice(int(left), int(np.ceil(right)))


def _focus(focus: Focus, *, chest: Chest, frame: Frame, rows: slice, columns: slice) -> Image:
    window = (rows, columns)
    x, y = frame.x[window] - focus.x, frame.y[window] - focus.y
    cosine, sine = float(np.cos(focus.angle)), float(np.sin(focus.angle))
    # A lesion thinner than a pixel would fall between the samples.
    along = (cosine * x + sine * y) / focus.radius_x
    aside = (cosine * y - sine * x) / max(focus.radius_y, 0.6 * frame.pixel)
    radius = np.hypot(along, aside)
    mottle = chest.mottle[window]
    softness = max(focus.softness, frame.pixel / focus.radius_x)
    if focus.texture in ("mottled", "net", "dots"):
        radius = radius * (1 + 0.12 * mottle)
    inside = smooth_step(1 - radius, softness)
    if focus.spiculated:
        angle = np.arctan2(aside, along)
        rays = np.clip(np.cos(9 * angle + focus.phase) + 0.3 * np.cos(4 * angle + 2 * focus.phase), 0, 1)
        inside = np.maximum(inside, rays * rays * np.clip(2.0 - radius, 0, 1))
    filling = _filling(focus, chest=chest, frame=frame, window=window, radius=radius)
    layer = focus.density * inside * filling
    if focus.calcified:
        layer += inside * _calcification(focus, mottle=mottle, frame=frame, window=window, radius=radius)
    return layer * chest.overlaid[focus.side][window] if focus.confined else layer


def _filling(focus: Focus, *, chest: Chest, frame: Frame, window: tuple[slice, slice], radius: Image) -> Image | float:
    net = chest.net[window]
    match focus.texture:
        case "mottled":
            return np.clip(0.9 + 0.3 * chest.mottle[window], 0.2, 1.4)
        case "net":
            # Where a smooth random field changes sign it draws a network of lines.
            return 0.15 + 1.3 * np.clip(1 - np.abs(net) / 0.45, 0, 1)
        case "dots":
            return 0.2 + 1.4 * _dots(focus, frame=frame, window=window)
        case "ring":
            return 1 - 1.7 * smooth_step(0.62 - radius, 0.2)
        case "bulla":
            return 0.8 * smooth_step(radius - 0.85, 0.15) - 1.0
        case "flecks":
            return smooth_step(net - 0.2, 0.3)
        case _:
            return 1.15 - 0.25 * np.minimum(radius, 1)


def _dots(focus: Focus, *, frame: Frame, window: tuple[slice, slice]) -> Image:
    """Draw small round nodules, one in most cells of a grid, at a random point of the cell."""
    cell = _DOT_CELL if focus.label == "Nodule" else 0.75 * _DOT_CELL
    x, y = frame.x[window] / cell, frame.y[window] / cell
    # Bent rows and columns hide the grid.
    x, y = x + 0.5 * np.sin(0.45 * y + focus.phase), y + 0.5 * np.sin(0.5 * x + 2 * focus.phase)
    column, row = np.floor(x), np.floor(y)
    # Sines of large multiples: pseudo-random numbers that depend only on the cell.
    chance = np.sin(12.9898 * column + 78.233 * row + focus.phase)
    across, down = x - column - 0.5 - 0.24 * np.sin(91.7 * chance), y - row - 0.5 - 0.24 * np.sin(57.3 * chance)
    edge = max(0.15 * (1 + focus.softness), frame.pixel / cell)
    return smooth_step(0.24 + 0.05 * chance - np.hypot(across, down), edge) * (chance > -0.3)


def _calcification(focus: Focus, *, mottle: Image, frame: Frame, window: tuple[slice, slice], radius: Image) -> Image:
    if focus.texture in ("dots", "net"):
        return 0.15 * _dots(focus, frame=frame, window=window)  # scattered granulomas
    if focus.radius_y < _THINNEST_BLOB:
        return 0.15 * smooth_step(mottle - 0.3, 0.6)
    if focus.radius_x < _LARGEST_NODULE:
        return 0.35 * smooth_step(0.7 - radius, 0.4)  # a granuloma: all of its core
    return 0.3 * smooth_step(mottle - 0.6, 0.4)


# Detection decides air or density, distribution the number of lesions, pattern their texture, location their zone,
# morphology their edge, secondary effects a sign beside them, and the diagnosis their size and density.

EMPHYSEMA = "Emphysema"  # box label of the bullae that make a detection "Mixed" if nothing else is lucent
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


def _draw_point(anatomy: Anatomy, side: int, location: str, rng: np.random.Generator) -> tuple[float, float]:
    """Draw a point of a location, in body coordinates."""
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
        foci += [_plan_diffuse_focus(answers, anatomy, lung, location, rng) for lung in (-1, 1)]
    elif pattern != "N/A":
        least, most = _num_foci(diagnosis, distribution, pattern)
        for number in range(int(rng.integers(least, most + 1))):
            lung = -side if distribution != "Focal" and number % 2 else side
            foci.append(_plan_focus(answers, anatomy, lung, location, rng))
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


def _plan_focus(
    answers: tuple[str, ...], anatomy: Anatomy, side: int, location: str, rng: np.random.Generator
) -> Focus:
    _, _, pattern, _, morphology, _, diagnosis = answers
    look = _LOOKS[diagnosis]
    if diagnosis == "Effusion":
        location = "Middle lung zone"  # consolidation or a fissure above the fluid: below, the fluid hides it
    x, y = _draw_point(anatomy, side, location, rng)
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


def _plan_diffuse_focus(
    answers: tuple[str, ...], anatomy: Anatomy, side: int, location: str, rng: np.random.Generator
) -> Focus:
    _, _, pattern, _, morphology, _, diagnosis = answers
    height = anatomy.dome(side) - anatomy.apex
    x, y = _draw_point(anatomy, side, location, rng)
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
        centre = (anatomy.midline + x + rng.uniform(-0.02, 0.02), y + rng.uniform(-0.02, 0.02))
        radii = (rng.uniform(0.065, 0.09), rng.uniform(0.065, 0.09))
        density = rng.uniform(0.13, 0.20)
        foci.append(Focus("Lymphadenopathy", "solid", side, *centre, *radii, 0.0, density, 0.4, 0.0, confined=False))
    return foci


def _bullae(anatomy: Anatomy, rng: np.random.Generator) -> list[Focus]:
    foci = []
    for number in range(4):
        side = -1 if number % 2 else 1
        centre = _draw_point(anatomy, side, "Upper lung zone", rng)
        radii = (rng.uniform(0.09, 0.13), rng.uniform(0.09, 0.13))
        foci.append(Focus(EMPHYSEMA, "bulla", side, *centre, *radii, 0.0, rng.uniform(0.10, 0.14), 0.2, 0.0))
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
            Fluid(diagnosis, lung, rng.uniform(*height), rng.uniform(*rim), softness, veil, calcified) for lung in sides
        ]
    if diagnosis != "Pneumothorax":
        return []
    line, softness = (rng.uniform(0.10, 0.16), 0.03) if morphology == "Well-circumscribed" else (0.0, 0.15)
    upper = location == "Upper lung zone"
    collapse = rng.uniform(0.13, 0.18) if detection == "Mixed" and secondary != "Pleural effusion" else 0.04
    apical, lateral = ((0.26, 0.40), (0.0, 0.08)) if upper else ((0.05, 0.10), (0.34, 0.50))
    total = distribution == "Diffuse"
    return [
        Air(diagnosis, lung, rng.uniform(*apical), rng.uniform(*lateral), total, line, softness, collapse)
        for lung in sides
    ]


def _secondary_pleural(answers: tuple[str, ...], side: int, rng: np.random.Generator) -> list[Fluid | Air]:
    secondary = answers[5]
    if secondary == "Pleural effusion":
        return [Fluid(secondary, side, rng.uniform(0.06, 0.12), rng.uniform(0.06, 0.12), 0.06)]
    if secondary == "Pneumothorax":
        return [Air(secondary, side, rng.uniform(0.14, 0.20), rng.uniform(0.08, 0.16), False, 0.12, 0.03)]
    return []
