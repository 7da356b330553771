"""Corrections without training anew: a network's logits plus log-ratios of pairs of answers.

A network trained as published ignores its earlier answers. What a given answer says of a later one can be counted in
the training labels instead: log P(later | earlier) / P(later). Added up over the given answers this is the naive Bayes
rule, which counts twice what they have in common; a weight for each later step, chosen on validation cases, mends that.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.consistency import Pair, count_pairs
from stepcot_jax.evaluation.interventions import as_distributions

_SMOOTHING = 2.0  # cases that an answer has in addition, spread as the later step's answers are over all cases
_LARGEST_WEIGHT = 2.0

Counts = Mapping[Pair, npt.NDArray[np.integer]]
"""Training chains that have each pair of answers, see `consistency.count_pairs`."""


@dataclasses.dataclass(frozen=True)
class PairRatios:
    """Log-ratios with the weight that each later step gives them.

    Attributes:
      ratios: [step, answer, step, answer], of an earlier step's answer on a later step's; 0 for all other pairs.
      weights: of each step, 0 or more, in units of the network's logits.
    """

    ratios: npt.NDArray[np.float64]
    weights: tuple[float, ...]

    def of(self, given: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Return what given answers [..., step, answer] add to the logits; a soft answer adds its mean ratio."""
        return np.tensordot(given.astype(np.float64), self.ratios, axes=2) * np.asarray(self.weights)[:, None]

    def follow(self, read_logits: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function from given answers [..., step, answer] to logits that adds the ratios to a network's."""
        return lambda given: np.asarray(read_logits(given), np.float64) + self.of(given)


def make_ratios(counts: Counts, chain: Chain) -> npt.NDArray[np.float64]:
    """Return log P(later answer | earlier answer) / P(later answer) over cases in which both are annotated.

    Returns:
      [step, answer, step, answer], 0 where the second step is not a later one.
    """
    most = max(chain.answers_per_step)
    ratios = np.zeros((chain.num_steps, most, chain.num_steps, most))
    for (earlier, later), own in counts.items():
        shares = (own.sum(axis=0) + 1) / (own.sum() + own.shape[1])
        given = (own + _SMOOTHING * shares) / (own.sum(axis=1, keepdims=True) + _SMOOTHING)
        ratios[earlier, : own.shape[0], later, : own.shape[1]] = np.log(given / shares)
    return ratios


def count_answers(labels: npt.NDArray[np.integer], chain: Chain) -> Callable[[Any], npt.NDArray[np.float64]]:
    """Return naive Bayes without a picture: a function from given answers [..., step, answer] to log probabilities.

    A step's log share of the training labels plus the log-ratios of the given earlier answers.

    Args:
      labels: [case, step] of training cases, negative where not annotated.
    """
    prior = np.full((chain.num_steps, max(chain.answers_per_step)), -np.inf)
    for step, number in enumerate(chain.answers_per_step):
        counts = np.bincount(labels[labels[:, step] >= 0, step], minlength=number) + 1
        prior[step, :number] = np.log(counts / counts.sum())
    ratios = make_ratios(count_pairs(labels, chain), chain)
    return PairRatios(ratios, (1.0,) * chain.num_steps).follow(lambda given: np.broadcast_to(prior, given.shape))


def give_prefixes(labels: npt.NDArray[np.integer], chain: Chain) -> npt.NDArray[np.float32]:
    """Return the true answers of the first 0, 1, ... and all but the last step: [step, case, step, answer]."""
    truth = as_distributions(labels, chain)
    return np.stack([truth * (np.arange(chain.num_steps) < count)[:, None] for count in range(chain.num_steps)])


def fit_pair_ratios(
    logits: npt.NDArray[np.floating],
    *,
    counts: Counts,
    labels: npt.NDArray[np.integer],
    temperatures: Sequence[float],
    chain: Chain,
) -> PairRatios:
    """Choose each step's weight by the likelihood of validation answers.

    A later step's weight is that of the largest likelihood over the readings with 1, 2, ... of the earlier true answers
    given, at the temperatures that calibrate the network without corrections: so the corrected probabilities are
    calibrated on these readings, as far as one factor can.

    Args:
      logits: [step, case, step, answer] of the validation cases, given `give_prefixes`.
      labels: [case, step] of the validation cases.
    """
    from scipy.optimize import minimize_scalar  # takes half a second to import, and only fitting needs it
    from scipy.special import log_softmax

    ratios, weights = make_ratios(counts, chain), [0.0]
    said = PairRatios(ratios, (1.0,) * chain.num_steps).of(give_prefixes(labels, chain))
    for later in range(1, chain.num_steps):
        known = labels[:, later] != NOT_ANNOTATED
        own = labels[known, later]

        def loss(weight: float, later: int = later, known: Any = known, own: Any = own) -> float:
            summed = (logits[1 : later + 1, :, later] + weight * said[1 : later + 1, :, later]) / temperatures[later]
            return float(-log_softmax(summed, axis=-1)[:, known][:, np.arange(len(own)), own].mean())

        bounds = (0.0, _LARGEST_WEIGHT * temperatures[later])
        best = minimize_scalar(loss, bounds=bounds, method="bounded").x if len(own) else 0.0
        weights.append(float(best))
    return PairRatios(ratios, tuple(weights))
