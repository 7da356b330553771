"""What is said of one step beyond the metrics: calibration, answer sets and selective reading, on a split or resampled.

Both come from the same arrays of the cases, so that a figure and its interval are about the same thing.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.reliability import reliability, score_cases
from stepcot_jax.evaluation.selective import selective_curve
from stepcot_jax.evaluation.weighted_statistics import weigh_ece, weigh_means, weigh_surest

COVERAGES = (0.5, 0.7, 0.9, 1.0)
"""Shares of the cases that are read, the surest first."""


@dataclasses.dataclass(frozen=True)
class StepCases:
    """What a model says of every case at one step.

    Attributes:
      name: name of the step.
      labels: [case], `NOT_ANNOTATED` where nobody answered.
      raw: [case, answer], the model's own probabilities.
      calibrated: [case, answer], after temperature scaling.
      sets: [case, answer], True for an answer in the answer set.
    """

    name: str
    labels: npt.NDArray[np.integer]
    raw: npt.NDArray[np.float64]
    calibrated: npt.NDArray[np.float64]
    sets: npt.NDArray[np.bool_]

    @property
    def annotated(self) -> npt.NDArray[np.bool_]:
        """[case], whether somebody answered."""
        return self.labels != NOT_ANNOTATED


def step_cases(predictions: Predictions, chain: Chain, *, model: str, calibration: Calibration) -> list[StepCases]:
    """The cases at each step of the chain, in its order.

    Args:
      predictions: labels and logits.
      chain: the steps.
      model: name of the model that is to speak.
      calibration: its temperatures and thresholds.

    Raises:
      BadInput: the calibration knows no such model.
      ValueError: the logits do not fit the chain.
    """
    logits = predictions.logits[model]
    calibrated = calibrated_probabilities(logits, model, calibration, chain)
    sets = answer_sets(calibrated, model, calibration, chain)
    return [
        StepCases(
            name=step.name,
            labels=predictions.labels[:, position],
            raw=softmax(own),
            calibrated=calibrated[:, position, : step.num_answers],
            sets=sets[:, position, : step.num_answers],
        )
        for position, (step, own) in enumerate(
            zip(chain.steps, own_logits(logits, chain=chain, model=model), strict=True)
        )
    ]


def step_statistics(cases: StepCases) -> dict[str, Any]:
    """Figures of one step on the split itself, NaN without annotated cases.

    Returns:
      Numbers by the figure's name; `accuracy_of_the_surest` has one for each of `COVERAGES`, by its name in percent.
    """
    before, after = (reliability(probabilities=own, labels=cases.labels) for own in (cases.raw, cases.calibrated))
    sets, truth = cases.sets[cases.annotated], cases.labels[cases.annotated]
    curve = selective_curve(probabilities=cases.calibrated, labels=cases.labels)
    return {
        "ece": before.ece,
        "ece_calibrated": after.ece,
        "brier": before.brier,
        "nll": before.nll,
        "nll_calibrated": after.nll,
        "answer_set_coverage": float(sets[np.arange(len(sets)), truth].mean()) if len(sets) else math.nan,
        "answer_set_size": float(sets.sum(axis=1).mean()) if len(sets) else math.nan,
        "accuracy_of_the_surest": {
            f"{share:.0%}": next(
                (a for a, c in zip(curve.accuracy, curve.coverage, strict=True) if c >= share), math.nan
            )
            for share in COVERAGES
        },
        "selective_area": curve.area,
    }


def weigh_step(weights: npt.NDArray[np.int64], cases: StepCases) -> dict[str, npt.NDArray[np.float64]]:
    """What `step_statistics` gives for each resample.

    Args:
      weights: [resample, case], how often a case counts.
      cases: the cases of the step.

    Returns:
      By the figure's name [resample]; `accuracy_of_the_surest` is [resample, share] in the order of `COVERAGES`.
      NaN without annotated cases in the resample.
    """
    truth = np.where(cases.annotated, cases.labels, 0)  # what this makes of unannotated cases is not counted
    brier, nll = score_cases(probabilities=cases.raw, truth=truth)
    _, nll_calibrated = score_cases(probabilities=cases.calibrated, truth=truth)
    means = {
        "brier": brier,
        "nll": nll,
        "nll_calibrated": nll_calibrated,
        "answer_set_coverage": cases.sets[np.arange(len(truth)), truth],
        "answer_set_size": cases.sets.sum(axis=1),
    }
    values = np.stack(list(means.values()), axis=1)
    counted = np.broadcast_to(cases.annotated[:, None], values.shape)
    weighed = weigh_means(weights, values=values, counted=counted)
    accuracies, area = weigh_surest(weights, probabilities=cases.calibrated, labels=cases.labels, shares=COVERAGES)
    return {
        "ece": weigh_ece(weights, probabilities=cases.raw, labels=cases.labels),
        "ece_calibrated": weigh_ece(weights, probabilities=cases.calibrated, labels=cases.labels),
        **{name: weighed[:, column] for column, name in enumerate(means)},
        "accuracy_of_the_surest": accuracies,
        "selective_area": area,
    }
