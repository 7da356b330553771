"""Statistics of one step beyond the metrics: calibration, answer sets and selective reading."""

import dataclasses

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities
from stepcot_jax.evaluation.distributions import own_probabilities
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.reliability import calibration_figures
from stepcot_jax.evaluation.resamples import Weights, weighted_mean
from stepcot_jax.evaluation.selective import selective_figures

COVERAGES = (0.5, 0.7, 0.9, 1.0)
"""Shares of the cases that are read, the most confident first."""


@dataclasses.dataclass(frozen=True)
class StepCases:
    """A model's predictions on every case at one step.

    Attributes:
      name: name of the step.
      labels: [case], `NOT_ANNOTATED` where unannotated.
      raw: [case, answer], the model's own probabilities.
      calibrated: [case, answer], after temperature scaling.
      sets: [case, answer], True for an answer in the answer set.
    """

    name: str
    labels: npt.NDArray[np.integer]
    raw: npt.NDArray[np.float64]
    calibrated: npt.NDArray[np.float64]
    sets: npt.NDArray[np.bool_]


def step_cases(predictions: Predictions, chain: Chain, *, model: str, calibration: Calibration) -> list[StepCases]:
    """Return a model's predictions at each step of the chain.

    Args:
      predictions: labels and logits.
      chain: the steps.
      model: name of the model.
      calibration: its temperatures and thresholds.

    Raises:
      BadInput: the calibration lacks the model.
      ValueError: the logits do not fit the chain.
    """
    logits = predictions.logits[model]
    calibrated = calibrated_probabilities(logits, model, calibration, chain)
    sets = answer_sets(calibrated, model, calibration, chain)
    return [
        StepCases(
            name=step.name,
            labels=predictions.labels[:, position],
            raw=raw,
            calibrated=calibrated[:, position, : step.num_answers],
            sets=sets[:, position, : step.num_answers],
        )
        for position, (step, raw) in enumerate(
            zip(chain.steps, own_probabilities(logits, chain=chain, model=model), strict=True)
        )
    ]


def step_statistics(weights: Weights, cases: StepCases) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the statistics of one step in each resample.

    Args:
      weights: [resample, case].
      cases: predictions at the step.

    Returns:
      By figure name [resample]; `accuracy_of_the_surest` is [resample, share] in the order of `COVERAGES`. NaN where
      no annotated case counts.
    """
    raw, calibrated = (
        calibration_figures(weights, probabilities=own, labels=cases.labels) for own in (cases.raw, cases.calibrated)
    )
    annotated = cases.labels != NOT_ANNOTATED
    truth = np.where(annotated, cases.labels, 0)
    covered_and_size = np.stack([cases.sets[np.arange(len(truth)), truth], cases.sets.sum(axis=1)], axis=1)
    sets = weighted_mean(
        weights, values=covered_and_size, counted=np.broadcast_to(annotated[:, None], covered_and_size.shape)
    )
    accuracies, area = selective_figures(weights, probabilities=cases.calibrated, labels=cases.labels, shares=COVERAGES)
    return {
        "ece": raw["ece"],
        "ece_calibrated": calibrated["ece"],
        "brier": raw["brier"],
        "nll": raw["nll"],
        "nll_calibrated": calibrated["nll"],
        "answer_set_coverage": sets[:, 0],
        "answer_set_size": sets[:, 1],
        "accuracy_of_the_surest": accuracies,
        "selective_area": area,
    }
