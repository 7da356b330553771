"""A reply as it was read: answer, boxes, stages, and what is wrong with its form."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from jaxtyping import Float64

from stepcot_jax.boxes import Corners, Space, convert, pixels

NOTHING: Mapping[str, str] = MappingProxyType({})

Missing = Literal["wrong", "stop", "skip"]
"""What a missing reply is: wrong, a reason to refuse the file, or left out."""


@dataclasses.dataclass(frozen=True)
class Region:
    """A named box of a reply.

    Attributes:
      box: as written, in the reply's space.
    """

    name: str
    box: Corners


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a dialect's reader found in a text. Reading never raises; `problems` says what is wrong with the form.

    Attributes:
      dialect: name of the dialect it was read as.
      answer: text of the answer; None if no single answer part could be read.
      references: boxes of the answer; None if the part that holds them is missing or cannot be read.
      regions: boxes named within the reasoning.
      thinking: the reasoning before the answer; "" for none.
      preamble: text before the first stage.
      stages: text of each stage that could be read, by the names of `record.STAGE_NAMES`.
      problems: why the text violates the dialect's grammar, each a short phrase; empty if it is well formed.
      space: coordinates of its boxes; None for pixels of the record's `image_size`.
    """

    dialect: str
    answer: str | None = None
    references: tuple[Region, ...] | None = None
    regions: tuple[Region, ...] = ()
    thinking: str = ""
    preamble: str = ""
    stages: Mapping[str, str] = dataclasses.field(default_factory=lambda: NOTHING)
    problems: tuple[str, ...] = ()
    space: Space | None = None

    @property
    def is_well_formed(self) -> bool:
        """Whether the text follows the dialect's grammar."""
        return not self.problems

    def boxes(self, image_size: Sequence[float]) -> Float64[np.ndarray, "box 4"]:
        """Return the references as corners in pixels of a picture of (width, height), x first."""
        written = [region.box for region in self.references or ()]
        return convert(written, source=self.space or pixels(image_size), target=pixels(image_size))
