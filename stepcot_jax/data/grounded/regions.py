"""Boxes of anatomical regions from masks of lungs and heart, and the organ that hosts a lesion.

Design: zones are thirds of a lung's box. This library's choice: hilar structures are the inner third of the middle
zone, a hemidiaphragm reaches a quarter of the lung's height above and below its lower edge, and the mediastinum reaches
from the heart to the top of the lungs. Names follow GEMeX where it has one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool

from stepcot_jax.boxes import Corners
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.record import VqaBox

Mask = Bool[np.ndarray, "height width"]

BOTH_LUNGS, HEART, MEDIASTINUM = "bilateral lung", "cardiac region", "mediastinum"
SIDES = ("right", "left")  # the patient's right is the picture's left
ZONES = ("upper", "middle", "lower")

_NONE = "no pixel inside; a mask of both lungs and one of the heart are required"


def zone_name(side: str, zone: str) -> str:
    """Return the name of a third of a lung."""
    return f"{side} {zone} lung zone"


def hilum_name(side: str) -> str:
    """Return the name of a lung's hilar structures."""
    return f"{side} hilar structures"


def diaphragm_name(side: str) -> str:
    """Return the name of a lung's half of the diaphragm."""
    return f"{side} hemidiaphragm"


def find_regions(lungs: Mask, heart: Mask) -> tuple[VqaBox, ...]:
    """Return the boxes of all regions, in whole pixels."""
    both, (x1, y1, x2, y2) = _enclose(lungs, "lungs"), _enclose(heart, "heart")
    right, left = (_enclose(part, f"{side} lung") for side, part in split_lungs(lungs).items())
    boxes: dict[str, Corners] = {BOTH_LUNGS: both, HEART: (x1, y1, x2, y2)}
    for side, (inner, top, outer, bottom) in zip(SIDES, (right, left), strict=True):
        boxes[f"{side} lung"] = (inner, top, outer, bottom)
        rows = [top + np.floor((bottom - top) * part / 3 + 0.5) for part in range(4)]
        for place, zone in enumerate(ZONES):
            boxes[zone_name(side, zone)] = (inner, rows[place], outer, rows[place + 1])
        third = np.floor((outer - inner) / 3 + 0.5)
        ends = (outer - third, outer) if side == "right" else (inner, inner + third)
        boxes[hilum_name(side)] = (ends[0], rows[1], ends[1], rows[2])
        quarter = np.floor((bottom - top) / 4 + 0.5)
        boxes[diaphragm_name(side)] = (inner, bottom - quarter, outer, min(bottom + quarter, lungs.shape[0]))
    boxes[MEDIASTINUM] = (min(right[2], x1), min(both[1], y1), max(left[0], x2), y2)
    try:
        return tuple(VqaBox(name, tuple(map(float, box))) for name, box in boxes.items())  # type: ignore[arg-type]
    except BadInput as error:
        raise BadInput(
            f"masks of {lungs.shape[1]} by {lungs.shape[0]} pixels are too small for regions: {error}"
        ) from None


def split_lungs(lungs: Mask) -> dict[str, Mask]:
    """Return the patient's right and left lung: the parts on either side of the emptiest column of the middle third.

    Of several equally empty columns the one closest to their mean counts.
    """
    x1, _, x2, _ = map(int, _enclose(lungs, "lungs"))
    first, last = x1 + (x2 - x1) // 3, x2 - (x2 - x1) // 3
    counts = lungs[:, first:last].sum(axis=0)
    emptiest = np.flatnonzero(counts == counts.min()) if counts.size else np.zeros(1, int)
    column = first + int(emptiest[np.abs(emptiest - emptiest.mean()).argmin()])
    columns = np.arange(lungs.shape[1])
    return {"right": lungs & (columns < column), "left": lungs & (columns >= column)}


def host_organ(box: Corners, organs: Mapping[str, Mask]) -> str:
    """Return the organ that covers the greatest share of a box; "" if none covers any of it.

    MedCLM's host organ by coverage: the share of the lesion box's pixels in an organ's mask.
    """
    x1, y1 = (int(np.floor(edge)) for edge in box[:2])
    x2, y2 = (int(np.ceil(edge)) for edge in box[2:])
    shares = {name: float(mask[y1:y2, x1:x2].mean()) for name, mask in organs.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0 else ""


def enclose_boxes(boxes: Sequence[Corners]) -> Corners:
    """Return the smallest box that holds all of at least one box."""
    x1, y1, x2, y2 = zip(*boxes, strict=True)
    return min(x1), min(y1), max(x2), max(y2)


def _enclose(mask: Mask, name: str) -> Corners:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        raise BadInput(f"mask of the {name}: {_NONE}")
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
