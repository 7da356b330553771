"""Corrections without training anew: a network's logits plus log-ratios of pairs of answers.

A network trained as published ignores its earlier answers. What a given answer says of a later one can be counted in
the training labels instead: log P(later | earlier) / P(later). Added up over the given answers this is the naive Bayes
rule, which counts twice what they have in common; a weight for each later step, chosen on validation cases, mends that.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.interventions import as_distributions

_SMOOTHING = 2.0  # cases that an answer has in addition, spread as the later step's answers are over all cases
_LARGEST_WEIGHT = 2.0

Ratios = npt.NDArray[np.float64]
"""[step, answer, step, answer]: of an earlier step's answer on a later step's; 0 for all other pairs."""


def count_ratios(labels: npt.NDArray[np.integer], chain: Chain) -> Ratios:
    """Return log P(later answer | earlier answer) / P(later answer) over cases in which both are annotated.

    Args:
      labels: [case, step] of training cases, negative where not annotated.
      chain: the steps.
    """
    most = max(chain.answers_per_step)
    ratios = np.zeros((chain.num_steps, most, chain.num_steps, most))
    for earlier in range(chain.num_steps):
        for later in range(earlier + 1, chain.num_steps):
            known = labels[(labels[:, earlier] >= 0) & (labels[:, later] >= 0)]
            shape = chain.answers_per_step[earlier], chain.answers_per_step[later]
            counts = np.zeros(shape)
            np.add.at(counts, (known[:, earlier], known[:, later]), 1)
            shares = (counts.sum(axis=0) + 1) / (counts.sum() + shape[1])
            given = (counts + _SMOOTHING * shares) / (counts.sum(axis=1, keepdims=True) + _SMOOTHING)
            ratios[earlier, : shape[0], later, : shape[1]] = np.log(given / shares)
    return ratios


@dataclasses.dataclass(frozen=True)
class PairRatios:
    """Log-ratios with the weight that each later step gives them.

    Attributes:
      ratios: of the training labels, see `count_ratios`.
      weights: of each step, 0 or more.
      temperatures: of each step, that the network's logits are divided by first.
    """

    ratios: Ratios
    weights: tuple[float, ...]
    temperatures: tuple[float, ...]

    def follow(self, read_logits: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function from given answers [..., step, answer] to logits that adds the ratios to a network's."""

        def read(given: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
            logits = np.asarray(read_logits(given), np.float64) / np.asarray(self.temperatures)[:, None]
            said = np.tensordot(given.astype(np.float64), self.ratios, axes=2)
            return logits + said * np.asarray(self.weights)[:, None]

        return read


def fit_pair_ratios(
    read_logits: Callable[[Any], Any],
    *,
    train_labels: npt.NDArray[np.integer],
    labels: npt.NDArray[np.integer],
    temperatures: tuple[float, ...],
    chain: Chain,
) -> PairRatios:
    """Count ratios and choose each step's weight by the likelihood of validation answers.

    Each validation case is read with the true answers of its first 1, 2, ... steps given; a later step's weight is that
    of the largest likelihood over all of them, after the temperatures that calibrate the network without corrections.

    Args:
      read_logits: given answers [variant, case, step, answer] -> logits, of the validation cases.
      train_labels: [case, step], to count.
      labels: [case, step] of the validation cases.
      temperatures: [step], of the network.
      chain: the steps.
    """
    ratios, truth = count_ratios(train_labels, chain), as_distributions(labels, chain)
    variants = np.stack([truth * (np.arange(chain.num_steps) < count)[:, None] for count in range(chain.num_steps)])
    logits = np.asarray(read_logits(variants), np.float64) / np.asarray(temperatures)[:, None]
    said = np.tensordot(variants.astype(np.float64), ratios, axes=2)
    weights = [0.0]
    for later in range(1, chain.num_steps):
        known = labels[:, later] != NOT_ANNOTATED
        own = labels[known, later]

        def loss(weight: float, later: int = later, known: Any = known, own: Any = own) -> float:
            given = slice(1, later + 1)
            found = log_softmax(logits[given, :, later] + weight * said[given, :, later], axis=-1)[:, known]
            return float(-found[:, np.arange(len(own)), own].mean())

        best = minimize_scalar(loss, bounds=(0, _LARGEST_WEIGHT), method="bounded").x if len(own) else 0.0
        weights.append(float(best))
    return PairRatios(ratios, tuple(weights), temperatures)
