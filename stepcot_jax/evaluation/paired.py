"""Whether two models differ on the same cases: McNemar's test for accuracy, DeLong's for the area under a ROC curve.

Both take the cases as independent. Where patients have several radiographs they are not, the tests find differences
too easily, and `intervals.bootstrap_differences`, which goes by patient, is the one to believe. Neither test looks
beyond one trained model: what another seed would have given is `seeds.summarise_seeds`.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED


@dataclasses.dataclass(frozen=True)
class McNemar:
    """McNemar's test: of the cases that one model answers right and the other wrong, is each the better in half?

    Attributes:
      num_cases: number of annotated cases.
      only_first: number of cases that only the first model answers right.
      only_second: number of cases that only the second one answers right.
      exact_p: two-sided probability of a split as uneven as this (binomial).
      chi2: (|only_first - only_second| - 1)^2 / (only_first + only_second), corrected for continuity; NaN
        where the models agree in every case.
      chi2_p: its probability on one degree of freedom; NaN where `chi2` is.
    """

    num_cases: int
    only_first: int
    only_second: int
    exact_p: float
    chi2: float
    chi2_p: float


@dataclasses.dataclass(frozen=True)
class DeLong:
    """DeLong's test of two areas under the ROC curve over the same cases.

    Attributes:
      num_positive: number of cases that have the answer.
      num_negative: number of cases that have another.
      first: area of the first model; NaN, as all that follow, where one kind of case is missing.
      second: area of the second model.
      standard_error: of the difference; 0 where the models rank all cases alike.
      z: difference in standard errors; NaN where those are 0.
      p: two-sided; 1 where the areas are equal, NaN where they differ without any standard error.
      low: lower end of the 95 % interval of the difference.
      high: upper end.
    """

    num_positive: int
    num_negative: int
    first: float
    second: float
    standard_error: float
    z: float
    p: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Area of the first model less that of the second."""
        return self.first - self.second


def compare_accuracy(*, labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> McNemar:
    """McNemar's test (McNemar 1947; continuity correction of Edwards 1948) for the answers of two models.

    Args:
      labels: int [case], the true answers, `NOT_ANNOTATED` where nobody answered: such cases take no part.
      first: int [case], what the first model answered.
      second: int [case], what the second model answered.

    Raises:
      ValueError: the shapes differ.

    >>> test = compare_accuracy(labels=[0, 1, 1, 0, -100], first=[0, 1, 1, 0, 0], second=[1, 1, 0, 1, 1])
    >>> test.num_cases, test.only_first, test.only_second, test.exact_p
    (4, 3, 0, 0.25)
    """
    truth, answers, others = np.asarray(labels), np.asarray(first), np.asarray(second)
    if truth.ndim != 1 or answers.shape != truth.shape or others.shape != truth.shape:
        raise ValueError(
            f"found labels {truth.shape} and answers {answers.shape} and {others.shape}, accepted is one shape [case]"
        )
    annotated = truth != NOT_ANNOTATED
    right, other_right = (answers == truth)[annotated], (others == truth)[annotated]
    only_first, only_second = int((right & ~other_right).sum()), int((~right & other_right).sum())
    uneven = only_first + only_second
    chi2 = max(abs(only_first - only_second) - 1, 0) ** 2 / uneven if uneven else math.nan
    return McNemar(
        num_cases=len(right),
        only_first=only_first,
        only_second=only_second,
        exact_p=_binomial_p(min(only_first, only_second), uneven),
        chi2=chi2,
        chi2_p=math.erfc(math.sqrt(chi2 / 2)),
    )


def compare_areas(*, positive: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> DeLong:
    """DeLong's test (DeLong et al. 1988) by the midranks of Sun and Xu (2014), in O(n log n).

    Args:
      positive: bool [case], whether the case has the answer in question; annotated cases only.
      first: float [case], the first model's score for that answer; a higher one means more likely.
      second: float [case], the second model's.

    Raises:
      ValueError: the shapes differ or a score is not a number.
    """
    has_answer = np.asarray(positive, dtype=bool)
    scores = np.stack([np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)])
    if has_answer.ndim != 1 or scores.shape != (2, len(has_answer)):
        raise ValueError(f"found cases {has_answer.shape} and scores {scores.shape[1:]}, accepted is one shape [case]")
    if np.isnan(scores).any():
        raise ValueError("found a score that is not a number, accepted are numbers")
    num_positive, num_negative = int(has_answer.sum()), int((~has_answer).sum())
    if not num_positive or not num_negative:
        return DeLong(num_positive, num_negative, *[math.nan] * 7)
    above, below = _placements(scores, has_answer)
    areas = above.mean(axis=1)
    # The difference of the placements, so that models that rank all cases alike leave an error of exactly 0.
    variance = _variance_of_mean(above[0] - above[1]) + _variance_of_mean(below[0] - below[1])
    difference, error = float(areas[0] - areas[1]), math.sqrt(variance)
    z = difference / error if error else math.nan
    same = abs(difference) < 1e-12
    p = 1.0 if same else math.erfc(abs(z) / math.sqrt(2))
    margin = _NORMAL_97_5 * error
    return DeLong(
        num_positive,
        num_negative,
        float(areas[0]),
        float(areas[1]),
        error,
        z,
        p,
        difference - margin,
        difference + margin,
    )


_NORMAL_97_5 = 1.959963984540054


def _placements(
    scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """For each positive case the share of negative ones that it beats, and for each negative one those that beat it.

    Ties count half. Shapes are [model, positive case] and [model, negative case].
    """
    from scipy import stats

    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    among_all = stats.rankdata(scores, axis=1)
    among_positive = stats.rankdata(scores[:, positive], axis=1)
    among_negative = stats.rankdata(scores[:, ~positive], axis=1)
    beats = (among_all[:, positive] - among_positive) / num_negative
    beaten = 1 - (among_all[:, ~positive] - among_negative) / num_positive
    return beats, beaten


def _variance_of_mean(values: npt.NDArray[np.float64]) -> float:
    """Variance of the mean of a sample; NaN for a single value, which has no spread to learn from."""
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else math.nan


def _binomial_p(smaller: int, total: int) -> float:
    """Two-sided probability that a fair coin falls as unevenly as `smaller` of `total`."""
    from scipy import stats

    # Both tails, which overlap where the split is even.
    return min(1.0, 2 * float(stats.binom.cdf(smaller, total, 0.5))) if total else 1.0
