"""Regions of interest of a question, for MEDSAGE's reasoning-path augmentation: perturbed, widened, inner, whole.

MEDSAGE, Equations 1 to 6: regions and templates are paired, with one answer. Sizes are ours. The variants change text
and crop of a trajectory; references stay the unperturbed boxes.
"""

import dataclasses
import hashlib

import numpy as np

from stepcot_jax.annotate.vqa.items import bare_box
from stepcot_jax.boxes import Corners
from stepcot_jax.data.grounded.regions import enclose_boxes
from stepcot_jax.reasoning.record import VqaRecord

VARIANTS = ("given", "perturbed", "widened", "inner")
WHOLE = "whole"

MOST_SHIFT = 0.1
"""Greatest shift of a side, as a share of the box's width or height."""

WIDENED, INNER = 1.25, 0.75


@dataclasses.dataclass(frozen=True)
class Roi:
    """A region of interest.

    Attributes:
      variant: one of `VARIANTS`, or "whole".
      box: corners in pixels of the record's `image_size`.
    """

    variant: str
    box: Corners

    @property
    def shown(self) -> str:
        """The region as provenance and hints say it."""
        return f"{self.variant}: {bare_box(self.box)}"


def list_rois(record: VqaRecord, *, num_regions: int, seed: int) -> list[Roi]:
    """Return the first variants of the box around all references, and the whole picture.

    A text cue is untouched: its only box is the given one. An image cue and a record without references have the whole
    picture alone.
    """
    width, height = record.image_size
    whole = Roi(WHOLE, (0.0, 0.0, float(width), float(height)))
    if not record.references or record.cue == "image":
        return [whole]
    box = enclose_boxes([reference.box for reference in record.references])
    variants = VARIANTS[:1] if record.cue == "text" else VARIANTS
    return [*(Roi(name, vary_box(box, name, record, seed)) for name in variants[:num_regions]), whole]


def vary_box(box: Corners, variant: str, record: VqaRecord, seed: int) -> Corners:
    """Return a variant of a box within the picture, not empty."""
    corners = np.array(box, np.float64)
    sides = np.array([box[2] - box[0], box[3] - box[1]] * 2)
    if variant == "perturbed":
        digest = hashlib.sha256(f"{seed} {record.id}".encode()).digest()
        corners += np.random.default_rng(int.from_bytes(digest[:8])).uniform(-MOST_SHIFT, MOST_SHIFT, 4) * sides
    elif variant in ("widened", "inner"):
        grown = (WIDENED if variant == "widened" else INNER) - 1
        corners += np.array([-0.5, -0.5, 0.5, 0.5]) * grown * sides
    x1, y1, x2, y2 = np.clip(corners, 0, [*record.image_size, *record.image_size]).tolist()
    return x1, y1, x2, y2
