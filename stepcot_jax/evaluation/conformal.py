"""Split-conformal thresholds, with the coverage that one validation split guarantees.

The threshold is the k-th smallest of n scores. Its coverage over new cases is a draw from Beta(k, n + 1 - k) over
validation splits (Vovk 2012; Angelopoulos and Bates 2023). With k = ceil((n + 1) * coverage) the mean of that
distribution is the stated coverage, and nearly half of all splits fall short of it. At a confidence, k is the smallest
rank whose coverage falls short in at most 1 - confidence of the splits (training-conditional validity: Vovk 2012; Park
et al. 2020). Equal scores can only raise the coverage.

Cases of one patient are not independent. At a confidence the thresholds therefore use one case of each patient.
"""

import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.statistics import name_patients

_SEED = 0


def find_rank(num_cases: int, *, coverage: float, confidence: float = 0.0) -> int:
    """Return the rank of the score that is the threshold; above `num_cases` where these are too few.

    Args:
      confidence: share of validation splits that reach the coverage, from 0 to below 1; 0: on average over the splits.

    >>> find_rank(100, coverage=0.9), find_rank(100, coverage=0.9, confidence=0.95), find_rank(28, coverage=0.9, confidence=0.95)
    (91, 96, 29)
    """  # noqa: E501 - the doctest
    if not 0 <= confidence < 1:
        raise ValueError(f"confidence must be from 0 to below 1; got {confidence}")
    # Rounding must not ask for one case more than (n + 1) * coverage does.
    rank = math.ceil((num_cases + 1) * coverage - 1e-9)
    if not confidence:
        return rank
    from scipy.special import betainc  # takes a quarter of a second to import, which readings need not wait for

    ranks = np.arange(rank, num_cases + 1)
    enough = 1 - betainc(ranks, num_cases + 1 - ranks, coverage) >= confidence
    return int(ranks[enough.argmax()]) if enough.any() else num_cases + 1


def conformal_threshold(scores: npt.NDArray[np.float64], *, coverage: float, confidence: float = 0.0) -> float:
    """Return the score that a new case's true answer exceeds with probability 1 - coverage at most.

    >>> conformal_threshold(np.arange(19) / 19, coverage=0.9) == 17 / 19
    True
    """
    rank = find_rank(len(scores), coverage=coverage, confidence=confidence)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def spread_of_coverage(num_cases: int, *, coverage: float, confidence: float = 0.0) -> tuple[float, float] | None:
    """Return the 2.5th and 97.5th percentile of the coverage over new cases, given so many validation cases.

    None where there are too few cases for a threshold, so that every set holds every answer.

    >>> [round(end, 3) for end in spread_of_coverage(100, coverage=0.9)]
    [0.836, 0.951]
    """
    rank = find_rank(num_cases, coverage=coverage, confidence=confidence)
    if rank > num_cases:
        return None
    from scipy.special import betaincinv  # see `find_rank`

    low, high = betaincinv(rank, num_cases + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


def choose_one_per_patient(patients: npt.NDArray[np.str_]) -> npt.NDArray[np.intp]:
    """Return the positions of one case of each patient, ascending, drawn at random with a fixed seed.

    >>> choose_one_per_patient(np.array(["a", "b", "a", "", ""])).tolist()
    [1, 2, 3, 4]
    """
    order = np.random.default_rng(_SEED).permutation(len(patients))
    _, first = np.unique(name_patients(patients)[order], return_index=True)
    return np.sort(order[first])
