"""Paired comparisons of two models on the same cases: one bootstrap difference, and McNemar's test.

McNemar's test takes cases as independent. Where patients have several radiographs they are not: the test rejects too
often, and the bootstrap, which goes by patient, is the one to believe. Neither looks beyond one trained model.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.intervals import Interval, bootstrap_differences
from stepcot_jax.evaluation.metrics import FIGURES
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.host.errors import BadInput


def bootstrap_difference(
    split: SplitPredictions,
    chain: Chain,
    *,
    first: str,
    second: str,
    figure: str = "mean_accuracy",
    step: str | None = None,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the interval of one figure of `intervals.bootstrap_differences`."""
    names = [own.name for own in chain.steps]
    if step is not None and step not in names:
        raise BadInput(f"step {step!r} is not one of {', '.join(names)}")
    known = ("mean_accuracy", "chain_accuracy") if step is None else FIGURES
    if figure not in known:
        raise BadInput(f"figure {figure!r} of {step or 'the chain'} is not one of {', '.join(known)}")
    found = bootstrap_differences(
        split, chain, first=first, second=second, num_resamples=num_resamples, level=level, seed=seed
    )
    return getattr(found if step is None else found.steps[names.index(step)], figure)


def is_difference(interval: Interval) -> bool:
    """Return whether the interval of a difference excludes 0.

    >>> is_difference(Interval(-0.02, -0.03, -0.01)), is_difference(Interval(0.1, 0.0, 0.2))
    (True, False)
    """
    return interval.low > 0 or interval.high < 0


@dataclasses.dataclass(frozen=True)
class McNemar:
    """McNemar's test: among the cases that one model alone answers correctly, does each model have half?

    Attributes:
      only_first: number of cases that only the first model answers correctly.
      only_second: number of cases that only the second model answers correctly.
      chi2: (|only_first - only_second| - 1)^2 / (only_first + only_second), corrected for continuity; NaN where the
        models agree in every case.
      chi2_p: its p on one degree of freedom; NaN where `chi2` is.
    """

    num_cases: int
    only_first: int
    only_second: int
    exact_p: float
    chi2: float
    chi2_p: float


def compare_accuracy(*, labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> McNemar:
    """Run McNemar's test (McNemar 1947; continuity correction of Edwards 1948) on the answers of two models.

    >>> test = compare_accuracy(labels=[0, 1, 1, 0, -100], first=[0, 1, 1, 0, 0], second=[1, 1, 0, 1, 1])
    >>> test.num_cases, test.only_first, test.only_second, test.exact_p
    (4, 3, 0, 0.25)
    """
    from scipy import stats  # takes half a second to import

    truth, answers, others = np.asarray(labels), np.asarray(first), np.asarray(second)
    if truth.ndim != 1 or answers.shape != truth.shape or others.shape != truth.shape:
        raise ValueError(
            "labels, first and second must have one shape [case]; "
            f"got {truth.shape}, {answers.shape} and {others.shape}"
        )
    annotated = truth != NOT_ANNOTATED
    correct, other_correct = (answers == truth)[annotated], (others == truth)[annotated]
    only_first, only_second = int((correct & ~other_correct).sum()), int((~correct & other_correct).sum())
    uneven = only_first + only_second
    chi2 = max(abs(only_first - only_second) - 1, 0) ** 2 / uneven if uneven else math.nan
    return McNemar(
        num_cases=len(correct),
        only_first=only_first,
        only_second=only_second,
        exact_p=float(stats.binomtest(only_first, uneven).pvalue) if uneven else 1.0,
        chi2=chi2,
        chi2_p=float(stats.chi2.sf(chi2, 1)),
    )
