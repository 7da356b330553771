"""An image with boxed findings: what detection lists, grounded reports and phantoms have in common."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from stepcot_jax.boxes import Corners
from stepcot_jax.reasoning.record import VqaBox

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding with its place.

    Attributes:
      label: of the finding, such as "Effusion".
      box: corners in pixels of the image's `image_size`.
      sentence: the grounded report's sentence about it; "" if the source has none.
      region: name of the anatomical region that it lies in; "" if unknown.
    """

    label: str
    box: Corners
    sentence: str = ""
    region: str = ""


@dataclasses.dataclass(frozen=True)
class GroundedImage:
    """One image before questions are asked about it.

    Attributes:
      id: unique name within its source.
      image_path: image, relative to the source's folder, with "/" as separator.
      image_size: width and height in pixels that the boxes refer to.
      split: "train", "val" or "test"; "" if none is assigned.
      findings: boxed findings in the order of the source.
      regions: boxes of anatomical regions; empty if the source has none.
      absent: labels that the source denies; a label that is neither found nor absent is unknown.
      facts: what else is known, by name, such as "side" and "zone".
      provenance: file, row and licence that it comes from.
    """

    id: str
    image_path: str
    image_size: tuple[int, int]
    patient_id: str
    origin: str = ""
    split: str = ""
    findings: tuple[Finding, ...] = ()
    regions: tuple[VqaBox, ...] = ()
    absent: tuple[str, ...] = ()
    facts: Mapping[str, str] = dataclasses.field(default_factory=lambda: NOTHING)
    provenance: Mapping[str, str] = dataclasses.field(default_factory=lambda: NOTHING)

    def region_box(self, name: str) -> Corners | None:
        """Return the box of a region by name; None if the source has no such region."""
        return next((region.box for region in self.regions if region.label == name), None)
