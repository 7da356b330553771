"""Numbers in a range, as types that msgspec checks, and figures with an interval."""

import dataclasses
import math
import sys
from typing import Annotated

import msgspec

MOST = sys.float_info.max
Count = Annotated[int, msgspec.Meta(ge=1)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]  # JAX and NumPy repeat their random numbers beyond
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
Layers = Annotated[int, msgspec.Meta(ge=1, le=256)]
Width = Annotated[int, msgspec.Meta(ge=1, le=2**17)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
"""Sizes of networks: an absurd one, such as in a damaged settings.json, is refused before anything is laid out."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure with its uncertainty.

    Attributes:
      value: NaN where undefined.
      low: lower end of 95 %; NaN without an interval, for example with a single patient.
      high: upper end.
      deviation: sample standard deviation over seeds; None with one seed.
      undefined: share of the resamples in which the figure is undefined; they do not count.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    deviation: float | None = None
    undefined: float = 0.0

    @property
    def is_bootstrapped(self) -> bool:
        """Whether there were resamples, defined or not."""
        return self.undefined > 0 or not math.isnan(self.low)
