"""The ways of before, which the bounds of `benchmarks.corrections` name: as published and counted pairs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.consistency import count_pairs
from stepcot_jax.evaluation.interventions import as_distributions, as_probabilities

Labels = Int[np.ndarray, "case step"]
ReadLogits = Callable[[Any], Any]
"""Given answers [variant, case, step, answer] -> a network's logits with each answer written back to it."""


@dataclasses.dataclass(frozen=True)
class Cases:
    """Cases that a network has read."""

    read: ReadLogits
    logits: Float[np.ndarray, "case step answer"]  # of a pass without given answers
    labels: Labels
    patients: Int[np.ndarray, "case"]

    def take(self, rows: Int[np.ndarray, "case"]) -> "Cases":
        """Return some of the cases; a row may be another case's picture."""

        def read(given: Any) -> Any:
            spread = np.zeros((len(given), *self.logits.shape), np.float32)
            spread[:, rows] = given
            return np.asarray(self.read(spread))[:, rows]

        return Cases(read, self.logits[rows], self.labels[rows], self.patients[rows])


# Counted pairs: log-ratios of pairs of answers are added to the logits of later steps (the package until version 3).


@dataclasses.dataclass(frozen=True)
class PairRatios:
    """Log-ratios [step, answer, step, answer] of pairs of answers, with the weight that each later step gives them."""

    ratios: Float64[np.ndarray, "step answer step answer"]
    weights: tuple[float, ...]

    def follow(self, read: ReadLogits) -> ReadLogits:
        """Return a function that adds what given answers say of later steps."""
        return lambda given: (
            np.asarray(read(given), np.float64)
            + np.tensordot(given.astype(np.float64), self.ratios, axes=2) * np.asarray(self.weights)[:, None]
        )


def fit_pairs(training: Labels, cases: Cases, chain: Chain, temperatures: Sequence[float]) -> PairRatios:
    """Choose each step's weight by the likelihood of validation answers, given the true earlier ones."""
    most = max(chain.answers_per_step)
    ratios = np.zeros((chain.num_steps, most, chain.num_steps, most))
    for (known, asked), counts in count_pairs(training, chain).items():
        shares = (counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])
        given = (counts + 2 * shares) / (counts.sum(axis=1, keepdims=True) + 2)
        ratios[known, : counts.shape[0], asked, : counts.shape[1]] = np.log(given / shares)
    truth = as_distributions(cases.labels, chain)
    prefixes = np.stack([truth * (np.arange(chain.num_steps) < count)[:, None] for count in range(chain.num_steps)])
    logits, added = cases.read(prefixes), np.tensordot(prefixes.astype(np.float64), ratios, axes=2)
    weights = [0.0]
    for later in range(1, chain.num_steps):
        known = cases.labels[:, later] != NOT_ANNOTATED
        answers = cases.labels[known, later]

        def loss(weight: float, later: int = later, known: Any = known, answers: Any = answers) -> float:
            summed = (logits[1 : later + 1, :, later] + weight * added[1 : later + 1, :, later]) / temperatures[later]
            return float(-log_softmax(summed, axis=-1)[:, known][:, np.arange(len(answers)), answers].mean())

        bounds = (0.0, 2 * temperatures[later])
        weights.append(float(minimize_scalar(loss, bounds=bounds, method="bounded").x))
    return PairRatios(ratios, tuple(weights))


def as_published(cases: Cases, temperatures: Sequence[float]) -> Any:
    """Return the network itself, each given answer written back to it."""
    return as_probabilities(cases.read, temperatures)
