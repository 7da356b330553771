"""Reading only what one is sure of: accuracy among the surest cases against the share of cases read."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED


@dataclasses.dataclass(frozen=True)
class SelectiveCurve:
    """Accuracy of the surest cases; cases of equal confidence are read together or not at all.

    Attributes:
      num_cases: number of annotated cases.
      confidence: for each point the lowest confidence that is still read, falling.
      coverage: for each point the share of the cases read, rising to 1.
      accuracy: for each point the share of those answered right.
      area: mean accuracy over all shares of cases read, from one case to all of them; equally sure cases stand
        for every order among themselves. It is the accuracy where confidence says nothing; NaN without cases.
    """

    num_cases: int
    confidence: tuple[float, ...]
    coverage: tuple[float, ...]
    accuracy: tuple[float, ...]
    area: float


def selective_curve(*, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> SelectiveCurve:
    """Accuracy against coverage of one step (El-Yaniv and Wiener 2010), by the probability of the answer given.

    Args:
      probabilities: float [case, answer].
      labels: int [case], `NOT_ANNOTATED` where nobody answered: such cases take no part.

    Raises:
      ValueError: the shapes do not fit or a probability is not a number.

    >>> curve = selective_curve(probabilities=[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], labels=[0, 1, 1])
    >>> [f"{accuracy:.2f} of {share:.2f}" for accuracy, share in zip(curve.accuracy, curve.coverage)]
    ['1.00 of 0.33', '1.00 of 0.67', '0.67 of 1.00']
    """
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if distributions.ndim != 2 or truth.shape != distributions.shape[:1] or np.isnan(distributions).any():
        raise ValueError(
            f"found probabilities {distributions.shape} and labels {truth.shape}, "
            "accepted are numbers [case, answer] and [case]"
        )
    annotated = truth != NOT_ANNOTATED
    distributions, truth = distributions[annotated], truth[annotated]
    num_cases = len(truth)
    if not num_cases:
        return SelectiveCurve(0, (), (), (), math.nan)
    levels, place = np.unique(-distributions.max(axis=1), return_inverse=True)
    right = np.bincount(place, weights=distributions.argmax(axis=1) == truth, minlength=len(levels))
    num_read = np.cumsum(np.bincount(place, minlength=len(levels)))
    num_right = np.cumsum(right)
    # Within equally sure cases the expected number of right ones grows in a straight line.
    cases = np.arange(1, num_cases + 1)
    expected_right = np.interp(cases, np.concatenate([[0], num_read]), np.concatenate([[0], num_right]))
    return SelectiveCurve(
        num_cases=num_cases,
        confidence=tuple((-levels).tolist()),
        coverage=tuple((num_read / num_cases).tolist()),
        accuracy=tuple((num_right / num_read).tolist()),
        area=float((expected_right / cases).mean()),
    )
