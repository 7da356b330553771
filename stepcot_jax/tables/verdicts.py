"""When a difference is called one: not by few patients, one training run in many, or one comparison in many.

An interval by patient says nothing of other training runs, and one of few patients who are all alike has no width:
`decide` asks for more.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from stepcot_jax.evaluation.subgroups import MIN_PATIENTS
from stepcot_jax.tables.writing import Figure

HIGHER, LOWER, NONE_SHOWN, TOO_FEW = "higher", "lower", "no difference shown", "too few patients"
ALPHA = 0.05
MIN_RUNS = 3
"""Training runs from which on their own spread is believed; two give a t interval too wide for any use."""

CORRECTED = (
    f"A difference is called higher or lower only if {MIN_PATIENTS} patients or more are annotated, its paired "
    f"interval excludes 0 and its p is below {ALPHA}: the p of a normal distribution with an interval of that width, "
    "or the exact McNemar test's where that is larger (accuracy of a step). One training run, or two that must both "
    "have the sign, are spoken of as these runs; from three on p is Student's t, with an error that adds what other "
    "patients and what other training runs would change. The verdicts of this table are corrected for their number "
    "(Holm)."
)
_NORMAL = statistics.NormalDist().inv_cdf(0.975)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of a difference.

    Attributes:
      difference: the mean over the training runs, with its interval by patient.
      values: it in each training run.
      num_patients: annotated patients that it rests on.
      p: of a test that it must pass beside its interval; None where there is none.
    """

    difference: Figure
    values: tuple[float, ...]
    num_patients: int
    p: float | None = None


def decide(found: Sequence[Evidence]) -> list[str]:
    """What may be said of differences, corrected for their number: `HIGHER`, `LOWER`, `NONE_SHOWN` or `TOO_FEW`.

    The rule is that of the tables' note and of docs/tables.md. Those of too few patients are not tested and do not
    count among the others.

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

    The error by patient is told from the interval (Altman and Bland, BMJ 343 (2011), d2304), from its half towards 0
    where that is the wider. It is not told from how many resamples are beyond 0: of 1,000 none may be, which leaves
    nothing to correct. Degrees of freedom are Satterthwaite's. No p is below that of all patients having the sign.
    """
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    besides = 0.0 if found.p is None else found.p
    if low is None or high is None or math.isnan(value + low + high + besides):
        return math.nan
    from scipy import special

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
    """The p values corrected for their number (Holm, Scand. J. Statist. 6 (1979)); NaN stays and does not count.

    >>> [round(p, 3) for p in correct([0.02, 0.01, 0.04, math.nan])]
    [0.04, 0.03, 0.04, nan]
    """
    order = sorted((place for place, p in enumerate(p_values) if not math.isnan(p)), key=lambda place: p_values[place])
    corrected, largest = list(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
