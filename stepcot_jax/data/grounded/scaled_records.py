"""Reasoning records whose boxes refer to a picture of another size."""

import re

import msgspec
import numpy as np

from stepcot_jax.boxes import Corners, Space, convert, convert_rounded, pixels
from stepcot_jax.reasoning.markup import IN_ROUND_BRACKETS, corners_of
from stepcot_jax.reasoning.record import VqaBox, VqaRecord

_THINNEST = 1e-6  # pixels


def scale_record(record: VqaRecord, image_size: tuple[int, int]) -> VqaRecord:
    """Return a record whose boxes refer to a picture that was stretched to another size.

    References are scaled along each axis by the ratio of the sizes, as floats, and never become empty. Boxes in the
    thinking, ([x1, y1, x2, y2]), are scaled and rounded half up to whole pixels; those that are a reference's box stay
    equal to the reference as dialects write it. Boxes within the unit square, as MedCLM writes them, stay as they are.
    """
    if record.image_size == image_size:
        return record
    source, target = pixels(record.image_size), pixels(image_size)
    corners = [reference.box for reference in record.references]
    scaled = [_within(box, image_size) for box in convert(corners, source=source, target=target).tolist()]
    written = dict(zip(_round(corners, source, source), _round(scaled, target, target), strict=True))
    references = tuple(VqaBox(reference.label, box) for reference, box in zip(record.references, scaled, strict=True))

    def rewrite(found: re.Match[str]) -> str:
        box = corners_of(found)
        if max(box) <= 1:
            return found[0]
        new = written.get(box) or _round([box], source, target)[0]
        return f"({[int(edge) for edge in new]})"

    thinking = IN_ROUND_BRACKETS.sub(rewrite, record.thinking)
    return msgspec.structs.replace(record, image_size=image_size, references=references, thinking=thinking)


def _round(boxes: list[Corners], source: Space, target: Space) -> list[Corners]:
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in convert_rounded(boxes, source=source, target=target).tolist()]


def _within(box: list[float], image_size: tuple[int, int]) -> Corners:
    """Return a scaled box within the picture, with a positive width and height whatever rounding did."""
    (x1, x2), (y1, y2) = (
        (min(low, float(np.nextafter(end, 0))), end)
        for low, high, side in zip(box[:2], box[2:], image_size, strict=True)
        for end in [min(max(high, _THINNEST), float(side))]
    )
    return x1, y1, x2, y2
