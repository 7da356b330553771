"""What several seeds of one experiment say together: a figure of one run is one draw."""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class SeedSummary:
    """A figure over several seeds.

    Attributes:
      num_seeds: number of seeds in which the figure is defined.
      mean: their mean; NaN without any.
      deviation: sample deviation (divisor n - 1); NaN for fewer than two seeds.
      low: lower end of the interval of the mean by Student's t; NaN for fewer than two seeds.
      high: upper end.
      num_undefined: number of seeds in which the figure is undefined and which take no part.
    """

    num_seeds: int
    mean: float
    deviation: float
    low: float
    high: float
    num_undefined: int = 0


def summarise_seeds(values: Sequence[float], *, level: float = 0.95) -> SeedSummary:
    """Mean, deviation and interval of a figure over seeds.

    For a comparison of two models give the differences, seed by seed: the interval is then that of the mean
    difference. It takes seeds as independent draws and says nothing of other patients.

    Args:
      values: the figure, one value a seed; NaN where it is undefined.
      level: confidence of the interval, above 0 and below 1.

    Raises:
      ValueError: the level is outside.

    >>> summary = summarise_seeds([0.70, 0.72, 0.74])
    >>> f"{summary.mean:.2f} {summary.deviation:.2f} [{summary.low:.4f}, {summary.high:.4f}]"
    '0.72 0.02 [0.6703, 0.7697]'
    """
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}, accepted is a share above 0 and below 1")
    defined = [float(value) for value in values if not math.isnan(value)]
    num, num_undefined = len(defined), len(values) - len(defined)
    mean = math.fsum(defined) / num if num else math.nan
    if num < 2:
        return SeedSummary(num, mean, math.nan, math.nan, math.nan, num_undefined)
    from scipy import special

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in defined) / (num - 1))
    margin = float(special.stdtrit(num - 1, (1 + level) / 2)) * deviation / math.sqrt(num)
    return SeedSummary(num, mean, deviation, mean - margin, mean + margin, num_undefined)
