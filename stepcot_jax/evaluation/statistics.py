"""Intervals, the bootstrap by patient (Davison and Hinkley 1997, 3.8), and exact tests.

A resample is the number of times that each case counts: figures are matrix products with weights [resample, case].
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from jaxtyping import Int64

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.host.ranges import Interval

Weights = npt.NDArray[np.float64]  # [resample, case]; whole numbers

Key = TypeVar("Key")

LEVEL = 0.95
MIN_PATIENTS = 10  # Smallest number of annotated patients for a verdict, and for figures of a subgroup

_WEIGHTS_AT_ONCE = 2_000_000  # bounds the memory of a block of resamples to some tens of MB


def count_once(num_cases: int) -> Weights:
    """Return the weights [1, case] of the split itself."""
    return np.ones((1, num_cases))


def name_patients(patients: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """Return a name for the patient of each case; a case without one ("") counts as another patient."""
    return np.array([patient or f"\n{case}" for case, patient in enumerate(patients.tolist())], dtype=np.str_)


def draw_weights(
    patients: npt.NDArray[np.str_], *, num_resamples: int, seed: int, num_at_once: int = _WEIGHTS_AT_ONCE
) -> Iterator[Weights]:
    """Draw patients with replacement, each with all their cases; the draws do not depend on `num_at_once`."""
    names, member = np.unique(name_patients(patients), return_inverse=True)
    rng = np.random.default_rng(seed)
    size = max(1, num_at_once // len(member))
    for start in range(0, num_resamples, size):
        block = min(size, num_resamples - start)
        counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=block)
        # Whole numbers far below 2^53: sums and products are exact in float64, and fast.
        yield counts.astype(np.float64)[:, member]


def resample(
    compute: Callable[[Weights], Mapping[Key, npt.NDArray]],
    patients: npt.NDArray[np.str_],
    *,
    num_resamples: int,
    seed: int,
) -> dict[Key, npt.NDArray]:
    """Compute figures [resample, ...] by name; for none, or with fewer than two patients, one resample, of NaN."""
    if not num_resamples or count_patients(patients) < 2:
        return dict(compute(np.zeros((1, len(patients)))))
    blocks = [compute(weights) for weights in draw_weights(patients, num_resamples=num_resamples, seed=seed)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def count_patients(patients: npt.NDArray[np.str_]) -> int:
    """Return the number of patients; a case without one ("") counts as another patient."""
    unknown = patients == ""
    return len(np.unique(patients[~unknown])) + int(unknown.sum())


def divide(part: npt.NDArray, total: npt.NDArray) -> npt.NDArray[np.float64]:
    """Return the quotient, NaN where the divisor is 0."""
    return np.divide(part, total, out=np.full(np.broadcast(part, total).shape, np.nan), where=total != 0)


def mean_where(values: npt.NDArray[np.float64], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean over the last axis of the values that count; NaN where none does."""
    return divide(np.where(counted, values, 0).sum(axis=-1), counted.sum(axis=-1))


def mean_defined(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the exactly rounded mean over the last axis of the values that are not NaN; NaN where all are."""
    defined = ~np.isnan(values)
    rows = np.where(defined, values, 0).reshape(-1, values.shape[-1])
    return divide(np.reshape([math.fsum(row) for row in rows], values.shape[:-1]), defined.sum(axis=-1))


def weighted_mean(weights: Weights, *, values: npt.NDArray, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean [resample, figure] of each column of values [case, figure] over the cases that count in it."""
    return divide(weights @ np.where(counted, values, 0.0), weights @ counted.astype(np.float64))


def bootstrap(
    compute: Callable[[Weights], Mapping[Key, npt.NDArray]],
    patients: npt.NDArray[np.str_],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[Key, Any]:
    """Return the 95 % intervals of figures, by resampling patients with all their cases.

    Args:
      compute: from weights [resample, case], how often each case counts, to figures [resample, ...] by name.
      patients: [case], whose case it is; "" for a patient of its own.
      num_resamples: 1000 give ends that are stable to about a tenth of the interval.
      seed: of the draws.

    Returns:
      By name an `Interval`; (nested) lists of them for a figure of several numbers.
    """
    values = compute(count_once(len(patients)))
    resampled = resample(compute, patients, num_resamples=num_resamples, seed=seed)
    return {key: intervals(value[0], resampled[key]) for key, value in values.items()}


def bootstrap_means(
    columns: Mapping[Key, npt.ArrayLike], patients: npt.NDArray[np.str_], *, num_resamples: int = 1000, seed: int = 0
) -> dict[Key, Interval]:
    """Return the mean of each column [case], over the cases in which it is not NaN, with its interval by patient."""
    values = np.array(list(columns.values()), np.float64).T

    def compute(weights: Weights) -> dict[Key, npt.NDArray]:
        return dict(zip(columns, weighted_mean(weights, values=values, counted=~np.isnan(values)).T, strict=True))

    return bootstrap(compute, patients, num_resamples=num_resamples, seed=seed)


def intervals(values: npt.NDArray, resampled: npt.NDArray) -> Any:
    """Return the interval of a figure; of figures [...], resampled [resample, ...], (nested) lists of them."""
    if resampled.ndim == 1:
        return percentiles(float(values), resampled)
    return [intervals(value, resampled[:, index]) for index, value in enumerate(values)]


def percentiles(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    """Return the interval of a figure; resamples in which it is undefined are left out and counted."""
    defined = resampled[~np.isnan(resampled)]
    undefined = 1 - len(defined) / len(resampled)
    if not len(defined) or math.isnan(value):
        return Interval(value, undefined=undefined)
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), undefined=undefined)


def widen_agreement(interval: Interval, *, num_patients: int) -> Interval:
    """Return the exact interval of Clopper and Pearson for a share of 0 or 1, of which all resamples are alike."""
    if interval.value not in (0, 1) or math.isnan(interval.low + interval.high):
        return interval
    margin = 1 - ((1 - LEVEL) / 2) ** (1 / num_patients)
    ends = {"high": margin} if interval.value == 0 else {"low": 1 - margin}
    return dataclasses.replace(interval, **ends)


def summarise(seeds: Sequence[Interval]) -> Interval:
    """Summarise the intervals of all seeds as one: means, with the values' deviation.

    >>> summarise([Interval(0.5, 0.4, 0.6), Interval(0.5, 0.2, 0.8)])
    Interval(value=0.5, low=0.30000000000000004, high=0.7, deviation=0.0, undefined=0.0)
    """
    value, low, high, undefined = (
        math.fsum(getattr(interval, part) for interval in seeds) / len(seeds)
        for part in ("value", "low", "high", "undefined")
    )
    return Interval(value, low, high, mean_of_seeds([interval.value for interval in seeds]).deviation, undefined)


def mean_of_seeds(values: Sequence[float]) -> Interval:
    """Return a mean with its sample deviation, where there are several values and all are defined; without ends."""
    known = len(values) > 1 and not any(map(math.isnan, values))
    return Interval(statistics.fmean(values), deviation=statistics.stdev(values) if known else None)


def as_plain(tree: Any) -> Any:
    """Return a tree as plain values for strict JSON: None for what is not finite, intervals without deviation."""
    if dataclasses.is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
        tree.pop("deviation", None)
    if isinstance(tree, Mapping):
        return {name: as_plain(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [as_plain(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def is_difference(interval: Interval) -> bool:
    """Return whether the interval of a difference excludes 0."""
    return interval.low > 0 or interval.high < 0


@dataclasses.dataclass(frozen=True)
class McNemar:
    """McNemar's test: among the cases that one model alone answers correctly, does each model have half?"""

    num_cases: int
    only_first: int  # number of cases that only the first model answers correctly
    only_second: int  # number of cases that only the second model answers correctly
    exact_p: float
    chi2: float  # corrected for continuity; NaN where the models agree in every case
    chi2_p: float  # its p on one degree of freedom; NaN where `chi2` is


def compare_accuracy(*, labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> McNemar:
    """Run McNemar's test (1947; continuity correction of Edwards 1948), which takes cases as independent.

    Args:
      labels: true answers [case]; a negative one is not annotated and does not count.
      first: answers of one model, [case].
      second: answers of the other.

    Returns:
      The discordant cases of each model, with the exact p and that of chi squared.
    """
    from scipy import stats  # takes half a second to import

    truth, answers, others = np.asarray(labels), np.asarray(first), np.asarray(second)
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


def flip_signs(differences: Int64[np.ndarray, "patient"]) -> float:
    """Return the exact two-sided p of a sum of differences under random signs (Fisher's randomisation test)."""
    sizes = np.abs(differences[differences != 0])
    chances = np.ones(1)  # of the sums from -sizes.sum() on, in steps of 2
    for size in sizes.tolist():
        chances = np.pad(chances / 2, (0, size)) + np.pad(chances / 2, (size, 0))
    sums = 2 * np.arange(len(chances)) - sizes.sum()
    return min(1.0, float(chances[np.abs(sums) >= abs(differences.sum())].sum()))


def interval_over_sets(values: Sequence[float]) -> Interval:
    """Return the mean of independent figures, one a set, with its 95 % interval by Student's t; none with one set."""
    mean = mean_of_seeds(values)
    if mean.deviation is None:
        return mean
    from scipy import stats  # see `mcnemar`

    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)) * mean.deviation / math.sqrt(len(values))
    return dataclasses.replace(mean, low=mean.value - half, high=mean.value + half)


def correct(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm, Scand. J. Statist. 6 (1979)).

    Args:
      p_values: of all tests that were made; NaN for one that is undefined, which does not count.

    Returns:
      The corrected values in the same order, at most 1; NaN stays.

    >>> correct([0.01, 0.04])
    [0.02, 0.04]
    """
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    corrected, largest = list(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
