"""The figures of a step for many weightings of its cases at once.

A resample is a number of times that each case counts. With those numbers as weights, a confusion matrix is one matrix
product and an area under the ROC curve one cumulative sum, so that a thousand resamples take about as long as one
pass over the cases.
"""

import numpy as np
import numpy.typing as npt

FIGURES = ("accuracy", "auc", "sensitivity", "specificity", "f1", "precision")
"""Names and order of a step's figures, as in `metrics.StepMetrics`."""


def weighted_figures(
    weights: npt.NDArray[np.int64], *, probabilities: npt.NDArray[np.float64], truth: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """What `metrics.step_metrics` gives for each resample.

    Args:
      weights: [resample, case], how often a case counts.
      probabilities: [case, answer].
      truth: [case], the true answers; every case is annotated.

    Returns:
      [resample, figure] in the order of `FIGURES`; NaN where a figure is undefined in the resample.
    """
    num_answers = probabilities.shape[1]
    confusion = weigh_confusion(weights, truth=truth, answers=probabilities.argmax(axis=1), num_answers=num_answers)
    positive = confusion.sum(axis=2)
    answered = confusion.sum(axis=1)
    right = np.diagonal(confusion, axis1=1, axis2=2)
    total = positive.sum(axis=1, keepdims=True)
    negative = total - positive
    occurs, contrasted = positive > 0, (positive > 0) & (negative > 0)
    areas = np.stack(
        [_weigh_auc(weights, scores=probabilities[:, label], positive=truth == label) for label in range(num_answers)],
        axis=1,
    )
    return np.stack(
        [
            divide(right.sum(axis=1), total[:, 0]),
            _macro(areas, contrasted),
            _macro(divide(right, positive), occurs),
            _macro(divide(negative - (answered - right), negative), contrasted),
            _macro(divide(2 * right, positive + answered), occurs),
            _macro(right / np.maximum(answered, 1), occurs),
        ],
        axis=1,
    )


def mean_defined(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean over the last axis of what is not NaN; NaN where nothing is."""
    return _macro(values, ~np.isnan(values))


def weigh_confusion(
    weights: npt.NDArray[np.int64], *, truth: npt.NDArray[np.integer], answers: npt.NDArray[np.intp], num_answers: int
) -> npt.NDArray[np.float64]:
    """How often each answer meets each truth in each resample.

    Args:
      weights: [resample, case], how often a case counts.
      truth: [case].
      answers: [case].
      num_answers: of the step.

    Returns:
      [resample, truth, answer].
    """
    cells = np.zeros((len(truth), num_answers**2))
    cells[np.arange(len(truth)), truth * num_answers + answers] = 1
    # Whole numbers far below 2^53: in float64 the product is exact, and it is the fast one.
    return (weights.astype(np.float64) @ cells).reshape(len(weights), num_answers, num_answers)


def _weigh_auc(
    weights: npt.NDArray[np.int64], *, scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Chance [resample] that a positive case scores above a negative one, ties counting half; NaN without both."""
    if positive.all() or not positive.any():
        return np.full(len(weights), np.nan)
    _, level = np.unique(scores, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    ordered = weights[:, order].astype(np.float64)
    above = np.add.reduceat(ordered * positive[order], starts, axis=1)
    below = np.add.reduceat(ordered * ~positive[order], starts, axis=1)
    won = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return divide(won, above.sum(axis=1) * below.sum(axis=1))


def _macro(values: npt.NDArray[np.float64], counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Mean over the last axis of what counts."""
    return divide(np.where(counted, values, 0).sum(axis=-1), counted.sum(axis=-1))


def divide(part: npt.NDArray, whole: npt.NDArray) -> npt.NDArray[np.float64]:
    """Quotient, NaN where the divisor is 0."""
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)
