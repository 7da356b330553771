"""Statistics of one step beyond the metrics: calibration, answer sets and selective reading."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities, calibration_figures
from stepcot_jax.evaluation.predictions import Predictions, own_probabilities
from stepcot_jax.evaluation.resamples import Weights, check_cases, count_once, divide, weighted_mean

COVERAGES = (0.5, 0.7, 0.9, 1.0)
"""Shares of the cases that are read, the most confident first."""

SUREST, BY_ANSWER = "accuracy_of_the_surest", "answer_set_coverage_by_answer"
"""Figures of several numbers: one for each of `COVERAGES`, and one for each answer of the step."""


@dataclasses.dataclass(frozen=True)
class StepCases:
    """A model's predictions on every case at one step.

    Attributes:
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
    """Return a model's predictions at each step of the chain."""
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

    Returns:
      By figure name [resample]; `accuracy_of_the_surest` is [resample, share] in the order of `COVERAGES`,
      `answer_set_coverage_by_answer` [resample, answer] is of the cases with each true answer. NaN where no annotated
    """
    raw, calibrated = (
        calibration_figures(weights, probabilities=own, labels=cases.labels) for own in (cases.raw, cases.calibrated)
    )
    annotated = cases.labels != NOT_ANNOTATED
    truth = np.where(annotated, cases.labels, 0)
    covered = cases.sets[np.arange(len(truth)), truth]
    covered_and_size = np.stack([covered, cases.sets.sum(axis=1)], axis=1)
    sets = weighted_mean(
        weights, values=covered_and_size, counted=np.broadcast_to(annotated[:, None], covered_and_size.shape)
    )
    has_answer = cases.labels[:, None] == np.arange(cases.sets.shape[1])
    by_answer = weighted_mean(weights, values=np.repeat(covered[:, None], has_answer.shape[1], 1), counted=has_answer)
    accuracies, area = selective_figures(weights, probabilities=cases.calibrated, labels=cases.labels, shares=COVERAGES)
    return {
        "ece": raw["ece"],
        "ece_calibrated": calibrated["ece"],
        "brier": raw["brier"],
        "nll": raw["nll"],
        "nll_calibrated": calibrated["nll"],
        "answer_set_coverage": sets[:, 0],
        "answer_set_size": sets[:, 1],
        BY_ANSWER: by_answer,
        SUREST: accuracies,
        "selective_area": area,
    }


@dataclasses.dataclass(frozen=True)
class SelectiveCurve:
    """Accuracy of the most confident cases; cases of equal confidence are read together.

    Attributes:
      confidence: for each point the lowest confidence that is still read, falling.
      coverage: for each point the share of the cases read, rising to 1.
      accuracy: for each point the share of those that are correct.
      area: mean accuracy over all numbers of cases read, from one to all; cases of equal confidence stand for every
        order among themselves. It equals the accuracy where confidence carries no information; NaN without cases.
    """

    num_cases: int
    confidence: tuple[float, ...]
    coverage: tuple[float, ...]
    accuracy: tuple[float, ...]
    area: float


def selective_curve(*, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> SelectiveCurve:
    """Compute accuracy against coverage of one step (El-Yaniv and Wiener 2010), by the probability of the answer.

    >>> curve = selective_curve(probabilities=[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], labels=[0, 1, 1])
    >>> [f"{accuracy:.2f} of {share:.2f}" for accuracy, share in zip(curve.accuracy, curve.coverage)]
    ['1.00 of 0.33', '1.00 of 0.67', '0.67 of 1.00']
    """
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    once = count_once(len(truth))
    levels, num_read, num_correct = _read_by_confidence(once, probabilities=distributions, labels=truth)
    num_cases = int((truth != NOT_ANNOTATED).sum())
    return SelectiveCurve(
        num_cases=num_cases,
        confidence=tuple(levels.tolist()),
        coverage=tuple((num_read[0] / max(num_cases, 1)).tolist()),
        accuracy=tuple((num_correct[0] / num_read[0]).tolist()),
        area=float(_area(num_read, num_correct)[0]),
    )


def selective_figures(
    weights: Weights,
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    shares: Sequence[float],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the accuracy among the most confident cases of one step, and the area, in each resample.

    Args:
      shares: smallest shares of the cases to read, above 0 and up to 1; cases of equal confidence are read together.

    Returns:
      Accuracies [resample, share] and `SelectiveCurve.area` [resample]; NaN where no case counts.
    """
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares must be above 0 and up to 1; got {list(shares)}")
    _, num_read, num_correct = _read_by_confidence(weights, probabilities=probabilities, labels=labels)
    accuracies = np.full((len(weights), len(shares)), np.nan)
    if num_read.size:
        coverage = num_read / np.maximum(num_read[:, -1:], 1)
        rows = np.arange(len(weights))
        for column, share in enumerate(shares):
            # In a resample without cases no level suffices: the first one stands for it and gives NaN.
            place = (coverage >= share).argmax(axis=1)
            accuracies[:, column] = divide(num_correct[rows, place], num_read[rows, place])
    return accuracies, _area(num_read, num_correct)


def _read_by_confidence(
    weights: Weights, *, probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Levels of confidence [level], falling; numbers of cases read and correct down to each [resample, level]."""
    check_cases(weights, probabilities=probabilities, labels=labels)
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    confidence = probabilities[annotated].max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    correct = (probabilities[annotated].argmax(axis=1) == labels[annotated])[order]
    last_of_level = np.flatnonzero(np.diff(confidence[order], append=-1.0))
    ordered = weights[:, annotated[order]]
    num_read = np.cumsum(ordered, axis=1)[:, last_of_level]
    num_correct = np.cumsum(ordered * correct, axis=1)[:, last_of_level]
    return confidence[order][last_of_level], num_read, num_correct


def _area(num_read: npt.NDArray[np.float64], num_correct: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean accuracy [resample] over all numbers of cases read."""
    if not num_read.size:
        return np.full(len(num_read), np.nan)
    total = num_read[:, -1]
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, total.max(initial=0) + 1))])
    earlier, earlier_correct = (np.pad(own[:, :-1], ((0, 0), (1, 0))) for own in (num_read, num_correct))
    # Within a level the expected number of correct ones is a line, offset + slope * cases: its mean accuracies sum up
    # to the correct ones of the level and the offset times the sum of 1 / cases.
    slope = (num_correct - earlier_correct) / np.maximum(num_read - earlier, 1)
    sums = harmonic[num_read.astype(np.intp)]
    curved = (earlier_correct - slope * earlier) * np.diff(sums, prepend=0.0, axis=1)
    return divide(num_correct[:, -1] + curved.sum(axis=1), total)
