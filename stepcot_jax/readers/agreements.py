"""Who agrees with whom on the sample's cases, step by step: shares and kappas with intervals by patient."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float64, Int32

from stepcot_jax.annotate.agreement import cohen_kappa, fleiss_kappa
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.intervals import Interval, percentiles
from stepcot_jax.evaluation.weighted_metrics import divide, weigh_confusion

LEVEL = 0.95
"""Share of the resampled figures inside an interval."""

Answers = Mapping[str, Int32[np.ndarray, "case step"]]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far two readers, a reader and a model, or all readers agree at a step.

    Attributes:
      names: of those who are compared.
      kind: of the kappa: "Fleiss" of all readers, "Cohen" of two.
      num_cases: cases that all of them have answered, whether or not the right answer is known.
      share: of these with the same answer from all.
      kappa: NaN where there was one answer only.
    """

    names: tuple[str, ...]
    kind: str
    num_cases: int
    share: Interval
    kappa: Interval


def measure_agreements(
    people: Answers, models: Answers, chain: Chain, weights: Float64[np.ndarray, "resample case"]
) -> tuple[tuple[Agreement, ...], ...]:
    """Agreement of all readers, of each two, and of each reader with each model.

    Args:
      people: each reader's answers.
      models: each model's answers to the same cases.
      chain: the steps.
      weights: how often a case counts in each resample; all zeros if nothing can be resampled.

    Returns:
      For each step the agreements; none with one reader and no model.
    """
    return tuple(
        tuple(_measure_step(people, models, place, step.num_answers, weights)) for place, step in enumerate(chain.steps)
    )


def _measure_step(
    people: Answers, models: Answers, place: int, num_answers: int, weights: Float64[np.ndarray, "resample case"]
) -> Iterator[Agreement]:
    if len(people) > 1:
        yield _measure(people, "Fleiss", place, num_answers, weights)
    for one, other in itertools.combinations(people, 2):
        yield _measure({one: people[one], other: people[other]}, "Cohen", place, num_answers, weights)
    for one, other in itertools.product(people, models):
        yield _measure({one: people[one], other: models[other]}, "Cohen", place, num_answers, weights)


def _measure(
    answers: Answers, kind: str, place: int, num_answers: int, weights: Float64[np.ndarray, "resample case"]
) -> Agreement:
    found = np.stack([labels[:, place] for labels in answers.values()], axis=1)
    answered = (found != NOT_ANNOTATED).all(axis=1)
    found, weights = found[answered], weights[:, answered]
    alike = (found == found[:, :1]).all(axis=1)
    kappa = _fleiss if kind == "Fleiss" else _cohen

    def weigh(weights: Float64[np.ndarray, "resample case"]) -> Sequence[Float64[np.ndarray, "resample"]]:
        return divide(weights @ alike, weights.sum(axis=1)), kappa(found, num_answers, weights)

    whole, resampled = weigh(np.ones((1, len(found)))), weigh(weights)
    share, corrected = (
        percentiles(float(value[0]), drawn, level=LEVEL) for value, drawn in zip(whole, resampled, strict=True)
    )
    return Agreement(tuple(answers), kind, len(found), share, corrected)


def _fleiss(
    found: Int32[np.ndarray, "case reader"], num_answers: int, weights: Float64[np.ndarray, "resample case"]
) -> Float64[np.ndarray, "resample"]:
    return fleiss_kappa((found[:, :, None] == np.arange(num_answers)).sum(axis=1), weights)


def _cohen(
    found: Int32[np.ndarray, "case 2"], num_answers: int, weights: Float64[np.ndarray, "resample case"]
) -> Float64[np.ndarray, "resample"]:
    one, other = found.T
    return cohen_kappa(weigh_confusion(weights, truth=one, answers=other, num_answers=num_answers))
