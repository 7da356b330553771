"""Draw lesions as layers of attenuation over a rendered chest, each with its bounding box."""

import dataclasses

import numpy as np

from stepcot_jax.data.phantom.acquisition import Frame, Image, smooth_step
from stepcot_jax.data.phantom.anatomy import Chest
from stepcot_jax.data.phantom.scene import Air, Fluid, Focus, Scene, Sign
from stepcot_jax.data.records.cases import Box

_SHOWN = 0.08
"""A box encloses the pixels where a layer exceeds this share of its maximum."""

_DOT_CELL = 0.11
_THINNEST_BLOB = 0.03
_LARGEST_NODULE = 0.09


@dataclasses.dataclass(frozen=True)
class Mark:
    """A drawn finding with its place.

    Attributes:
      box: label and limits in pixels.
      side: -1 for the patient's right lung, 1 for the left, 0 for heart and mediastinum.
      kind: "focus", "fluid", "air" or "sign" (a change of the anatomy).
    """

    box: Box
    side: int
    kind: str


def draw_findings(scene: Scene, *, chest: Chest, frame: Frame, margin: int = 0) -> tuple[Image, tuple[Mark, ...]]:
    """Draw a chest with its findings and return their boxes.

    Returns:
      Attenuation [height, width], and one mark for each visible finding, without boxes inside another box of the same
    """
    attenuation = chest.attenuation.copy()
    found = [(_box_of_sign(sign, frame), sign.side, "sign") for sign in scene.signs]
    for collection in scene.pleural:
        layer = _fluid(collection, chest) if isinstance(collection, Fluid) else _air(collection, chest, frame)
        attenuation += layer
        box = _box_of_layer(collection.label, layer, top=0, left=0)
        found.append((box, collection.side, "fluid" if isinstance(collection, Fluid) else "air"))
    for focus in scene.foci:
        rows, columns = _window(focus, frame)
        if rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        layer = _focus(focus, chest=chest, frame=frame, rows=rows, columns=columns)
        attenuation[rows, columns] += layer
        box = _box_of_layer(focus.label, layer, top=rows.start, left=columns.start)
        found.append((box, 0 if focus.texture == "flecks" else focus.side, "focus"))
    size = frame.x.shape[0]
    marks: dict[Box, Mark] = {}
    for box, side, kind in found:
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
    return Box(label, x, y, width, height) if width > 0 and height > 0 else None


def _widened(box: Box, margin: int, size: int) -> Box:
    x, y = max(0, box.x - margin), max(0, box.y - margin)
    right, lower = min(size, box.x + box.width + margin), min(size, box.y + box.height + margin)
    return Box(box.label, x, y, right - x, lower - y)


def _holds(outer: Box, inner: Box) -> bool:
    return (
        outer.label == inner.label
        and outer.x <= inner.x
        and outer.y <= inner.y
        and outer.x + outer.width >= inner.x + inner.width
        and outer.y + outer.height >= inner.y + inner.height
    )


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
    # The vessels of this lung alone: the other one keeps its own.
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
    place = (rows, columns)
    x, y = frame.x[place] - focus.x, frame.y[place] - focus.y
    cosine, sine = float(np.cos(focus.angle)), float(np.sin(focus.angle))
    # A lesion thinner than a pixel would fall between the samples.
    along = (cosine * x + sine * y) / focus.radius_x
    aside = (cosine * y - sine * x) / max(focus.radius_y, 0.6 * frame.pixel)
    radius = np.hypot(along, aside)
    mottle = chest.mottle[place]
    softness = max(focus.softness, frame.pixel / focus.radius_x)
    if focus.texture in ("mottled", "net", "dots"):
        radius = radius * (1 + 0.12 * mottle)
    inside = smooth_step(1 - radius, softness)
    if focus.spiculated:
        angle = np.arctan2(aside, along)
        rays = np.clip(np.cos(9 * angle + focus.phase) + 0.3 * np.cos(4 * angle + 2 * focus.phase), 0, 1)
        inside = np.maximum(inside, rays * rays * np.clip(2.0 - radius, 0, 1))
    filling = _filling(focus, chest=chest, frame=frame, place=place, radius=radius)
    layer = focus.density * inside * filling
    if focus.calcified:
        layer += inside * _calcification(focus, mottle=mottle, frame=frame, place=place, radius=radius)
    return layer * chest.overlaid[focus.side][place] if focus.confined else layer


def _filling(focus: Focus, *, chest: Chest, frame: Frame, place: tuple[slice, slice], radius: Image) -> Image | float:
    net = chest.net[place]
    match focus.texture:
        case "mottled":
            return np.clip(0.9 + 0.3 * chest.mottle[place], 0.2, 1.4)
        case "net":
            # Where a smooth random field changes sign it draws a network of lines.
            return 0.15 + 1.3 * np.clip(1 - np.abs(net) / 0.45, 0, 1)
        case "dots":
            return 0.2 + 1.4 * _dots(focus, frame=frame, place=place)
        case "ring":
            return 1 - 1.7 * smooth_step(0.62 - radius, 0.2)
        case "bulla":
            return 0.8 * smooth_step(radius - 0.85, 0.15) - 1.0
        case "flecks":
            return smooth_step(net - 0.2, 0.3)
        case _:
            return 1.15 - 0.25 * np.minimum(radius, 1)


def _dots(focus: Focus, *, frame: Frame, place: tuple[slice, slice]) -> Image:
    """Draw small round nodules, one in most cells of a grid, at a random place in its cell."""
    cell = _DOT_CELL if focus.label == "Nodule" else 0.75 * _DOT_CELL
    x, y = frame.x[place] / cell, frame.y[place] / cell
    # Bent rows and columns hide the grid.
    x, y = x + 0.5 * np.sin(0.45 * y + focus.phase), y + 0.5 * np.sin(0.5 * x + 2 * focus.phase)
    column, row = np.floor(x), np.floor(y)
    # Sines of large multiples: pseudo-random numbers that depend only on the cell.
    chance = np.sin(12.9898 * column + 78.233 * row + focus.phase)
    across, down = x - column - 0.5 - 0.24 * np.sin(91.7 * chance), y - row - 0.5 - 0.24 * np.sin(57.3 * chance)
    edge = max(0.15 * (1 + focus.softness), frame.pixel / cell)
    return smooth_step(0.24 + 0.05 * chance - np.hypot(across, down), edge) * (chance > -0.3)


def _calcification(focus: Focus, *, mottle: Image, frame: Frame, place: tuple[slice, slice], radius: Image) -> Image:
    if focus.texture in ("dots", "net"):
        return 0.15 * _dots(focus, frame=frame, place=place)  # scattered granulomas
    if focus.radius_y < _THINNEST_BLOB:
        return 0.15 * smooth_step(mottle - 0.3, 0.6)
    if focus.radius_x < _LARGEST_NODULE:
        return 0.35 * smooth_step(0.7 - radius, 0.4)  # a granuloma: all of its core
    return 0.3 * smooth_step(mottle - 0.6, 0.4)
