"""When a difference counts as significant: sample size, seeds, Holm correction.

An interval by patient does not cover other training runs, and with few patients who are all alike it has no width:
`decide` requires more.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from scipy import special

from stepcot_jax.evaluation.summary import MIN_PATIENTS
from stepcot_jax.tables.writing import Figure

HIGHER, LOWER, NONE_SHOWN, TOO_FEW = "higher", "lower", "no difference shown", "too few patients"
ALPHA = 0.05
MIN_RUNS = 3
"""Smallest number of training runs whose spread is used; the t interval of two is too wide to be useful."""

CORRECTED = (
    f"A difference is higher or lower only if {MIN_PATIENTS} patients or more are annotated, its paired interval "
    f"excludes 0 and its p is below {ALPHA}: the p of a normal distribution with an interval of that width, or the "
    "exact McNemar test's where that is larger (accuracy of a step). Verdicts from one training run, or from two that "
    "must agree in sign, hold for these runs; from three on p is Student's t, with an error for other patients and for "
    "other training runs. The verdicts of this table are corrected for their number (Holm)."
)
_NORMAL = float(special.ndtri(0.975))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A difference with the evidence for it.

    Attributes:
      difference: the mean over the training runs, with its interval by patient.
      values: the difference in each training run.
      p: of a test that it must pass too; None without one.
    """

    difference: Figure
    values: tuple[float, ...]
    num_patients: int
    p: float | None = None


def decide(found: Sequence[Evidence]) -> list[str]:
    """Judge differences, corrected for their number: `HIGHER`, `LOWER`, `NONE_SHOWN` or `TOO_FEW`.

    The rule is in the tables' note and in docs/tables.md. Differences with too few patients are not tested and do not
    count for the correction.

    >>> decide([Evidence(Figure(0.02, 0.01, 0.03), (0.02,), 60), Evidence(Figure(0.02, -0.01, 0.05), (0.02,), 60)])
    ['higher', 'no difference shown']
    >>> decide([Evidence(Figure(1.0, 1.0, 1.0), (1.0,), 2)])
    ['too few patients']
    """
    p_values = [math.nan if each.num_patients < MIN_PATIENTS else _p_of_all(each) for each in found]
    return [_say(each, p) for each, p in zip(found, correct(p_values), strict=True)]


def _say(found: Evidence, p: float) -> str:
    if found.num_patients < MIN_PATIENTS:
        return TOO_FEW
    low, high = found.difference.low, found.difference.high
    if low is None or high is None or not p < ALPHA:
        return NONE_SHOWN
    by_sign = len(found.values) < MIN_RUNS
    if low > 0 and (not by_sign or min(found.values) > 0):
        return HIGHER
    return LOWER if high < 0 and (not by_sign or max(found.values) < 0) else NONE_SHOWN


def _p_of_all(found: Evidence) -> float:
    """The p of a difference by patients, from `MIN_RUNS` on by training runs too; NaN without an interval.

    The error by patient comes from the interval (Altman and Bland, BMJ 343 (2011), d2304), from its half towards 0 if
    that is wider. The share of resamples beyond 0 is not used: with 1,000 resamples it may be 0, which cannot be
    corrected. Degrees of freedom are Satterthwaite's. No p is below that of all patients having the sign.
    """
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    besides = 0.0 if found.p is None else found.p
    if low is None or high is None or math.isnan(value + low + high + besides):
        return math.nan
    by_patient = max(value - low if value > 0 else high - value, (high - low) / 2) / _NORMAL
    num_runs = len(found.values)
    by_run = statistics.stdev(found.values) / math.sqrt(num_runs) if num_runs >= MIN_RUNS else 0.0
    error = math.hypot(by_patient, by_run)
    if not error:
        p = float(value == 0)
    else:
        freedom = min((num_runs - 1) * (error / by_run) ** 4, 1e9) if by_run > 1e-6 * error else 1e9
        p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return max(p, 2.0 ** (1 - found.num_patients), besides)


def correct(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm, Scand. J. Statist. 6 (1979)); NaN stays and does not count.

    >>> [round(p, 3) for p in correct([0.02, 0.01, 0.04, math.nan])]
    [0.04, 0.03, 0.04, nan]
    """
    order = sorted((place for place, p in enumerate(p_values) if not math.isnan(p)), key=lambda place: p_values[place])
    corrected, largest = list(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
