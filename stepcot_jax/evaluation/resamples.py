"""Weighted means and the cluster bootstrap by patient.

A resample is the number of times that each case counts. With these numbers as weights [resample, case], most figures
are matrix products, so that a thousand resamples take about as long as one pass over the cases. The split itself is
one resample in which every case counts once (`count_once`): a figure and its interval come from the same code.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float64]
"""[resample, case]; whole numbers."""

Key = TypeVar("Key")

_WEIGHTS_AT_ONCE = 2_000_000  # bounds the memory of a block of resamples to some tens of MB


def count_once(num_cases: int) -> Weights:
    """Return the weights [1, case] of the split itself."""
    return np.ones((1, num_cases))


def name_patients(patients: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """Return a name for the patient of each case; a case without one ("") is a patient of its own."""
    return np.array([patient or f"\n{case}" for case, patient in enumerate(patients.tolist())], dtype=np.str_)


def draw_weights(
    patients: npt.NDArray[np.str_], *, num_resamples: int, seed: int, num_at_once: int = _WEIGHTS_AT_ONCE
) -> Iterator[Weights]:
    """Draw patients with replacement, each with all their cases.

    Args:
      num_at_once: approximate number of weights in a block; the draws do not depend on it.
    """
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
    """Compute figures in each resample.

    Returns:
      Figures [resample, ...] by name. With fewer than two patients all resamples would be alike: there is one, in
    """
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be 1 or more; got {num_resamples}")
    if count_patients(patients) < 2:
        return dict(compute(np.zeros((1, len(patients)))))
    blocks = [compute(weights) for weights in draw_weights(patients, num_resamples=num_resamples, seed=seed)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def count_patients(patients: npt.NDArray[np.str_]) -> int:
    """Return the number of patients; a case without one ("") is a patient of its own.

    >>> count_patients(np.array(["a", "b", "a", "", ""]))
    4
    """
    unknown = patients == ""
    return len(np.unique(patients[~unknown])) + int(unknown.sum())


def divide(part: npt.NDArray, whole: npt.NDArray) -> npt.NDArray[np.float64]:
    """Return the quotient, NaN where the divisor is 0."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)


def mean_where(values: npt.NDArray[np.float64], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean over the last axis of the values that count; NaN where none does."""
    return divide(np.where(counted, values, 0).sum(axis=-1), counted.sum(axis=-1))


def mean_defined(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the mean over the last axis of the values that are not NaN; NaN where all are.

    The sum is exactly rounded, so that scores of the same values in another order tie.
    """
    defined = ~np.isnan(values)
    rows = np.where(defined, values, 0).reshape(-1, values.shape[-1])
    return divide(np.reshape([math.fsum(row) for row in rows], values.shape[:-1]), defined.sum(axis=-1))


def weighted_mean(weights: Weights, *, values: npt.NDArray, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean of each column over the cases that count in it.

    Args:
      values: [case, figure], numbers or booleans; anything, NaN included, where a case does not count.

    Returns:
      [resample, figure]; NaN where no case counts.
    """
    if values.ndim != 2 or counted.shape != values.shape or weights.shape[1:] != values.shape[:1]:
        raise ValueError(
            "weights, values and counted must have shapes [resample, case], [case, figure] and [case, figure]; "
            f"got {weights.shape}, {values.shape} and {counted.shape}"
        )
    return divide(weights @ np.where(counted, values, 0.0), weights @ counted.astype(np.float64))


def check_cases(weights: Weights, *, probabilities: npt.NDArray, labels: npt.NDArray) -> None:
    """Check that weights [resample, case], probabilities [case, answer] and labels [case] are of the same cases."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or weights.shape[1:] != labels.shape:
        raise ValueError(
            "weights, probabilities and labels must have shapes [resample, case], [case, answer] and [case]; "
            f"got {weights.shape}, {probabilities.shape} and {labels.shape}"
        )
    if np.isnan(probabilities).any():
        raise ValueError("probabilities must be numbers; got NaN")
