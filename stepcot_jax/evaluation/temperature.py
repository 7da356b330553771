"""One number a step to divide its logits by, so that a probability of 0.8 is right four times in five."""

import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.distributions import softmax

MIN_CASES = 20
"""Fewer annotated cases fit no temperature."""

_LOG_BOUND = math.log(100)  # temperatures of 0.01 to 100
_NUM_HALVINGS = 40  # of a range of 9.2: to 1e-11


def fit_temperature(
    logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer], *, min_cases: int = MIN_CASES
) -> tuple[float, str]:
    """The temperature at which the true answers are the most probable together.

    The negative log-likelihood is convex in 1 / temperature, so that halving finds where its slope is 0.

    Args:
      logits: [case, answer] of the annotated cases.
      labels: [case], the true answers.
      min_cases: fewer cases fit nothing.

    Returns:
      The temperature, 0.01 to 100, and "" or why it is 1 or at a bound.
    """
    if len(labels) < min_cases:
        return 1.0, f"{len(labels)} annotated cases, fewer than {min_cases}: temperature 1"
    if (labels == labels[0]).all():
        return 1.0, "every case has the same answer: temperature 1"
    if (logits.argmax(axis=1) == labels).all():
        return 1.0, "every case is answered right, so that no temperature is the best one: temperature 1"
    true_logits = logits[np.arange(len(labels)), labels]

    def slope(log_sharpness: float) -> float:
        expected = (softmax(math.exp(log_sharpness) * logits) * logits).sum(axis=1)
        return float((expected - true_logits).mean())

    low, high = -_LOG_BOUND, _LOG_BOUND
    if slope(low) >= 0:
        return math.exp(_LOG_BOUND), "no better than guessing: temperature at its upper bound"
    if slope(high) <= 0:
        return math.exp(-_LOG_BOUND), "temperature at its lower bound"
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return math.exp(-(low + high) / 2), ""
