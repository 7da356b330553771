"""Split-conformal thresholds, with the coverage that one validation split guarantees (Vovk 2012; Park et al. 2020).

The k-th smallest of n scores has a coverage over new cases drawn from Beta(k, n + 1 - k).
"""

import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.statistics import name_patients

_SEED = 0


def find_rank(num_cases: int, *, coverage: float, confidence: float = 0.0) -> int:
    """Return the rank of the threshold, above `num_cases` for too few; a confidence of 0: on average over splits."""
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
    """Return the score that a new case's true answer exceeds with probability 1 - coverage at most."""
    rank = find_rank(len(scores), coverage=coverage, confidence=confidence)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def spread_of_coverage(num_cases: int, *, coverage: float, confidence: float = 0.0) -> tuple[float, float] | None:
    """Return the 2.5th and 97.5th percentile of the coverage; None where every set holds every answer."""
    rank = find_rank(num_cases, coverage=coverage, confidence=confidence)
    if rank > num_cases:
        return None
    from scipy.special import betaincinv  # see `find_rank`

    low, high = betaincinv(rank, num_cases + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


def choose_one_per_patient(patients: npt.NDArray[np.str_]) -> npt.NDArray[np.intp]:
    """Return the positions of one case of each patient, ascending, drawn at random with a fixed seed."""
    order = np.random.default_rng(_SEED).permutation(len(patients))
    _, first = np.unique(name_patients(patients)[order], return_index=True)
    return np.sort(order[first])
