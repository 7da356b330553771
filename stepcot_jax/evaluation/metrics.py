"""Metrics of one step over its annotated cases: accuracy, macro one-vs-rest rates, confusion matrix.

These are the metrics of the paper's tables, with the accuracy of the best constant answer. Unannotated cases do not
count. An answer that no case has is left out of the macro averages (and named), because its sensitivity and its AUC
are undefined.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.evaluation.resamples import Weights, count_once, divide, mean_defined, mean_where, weighted_mean

FIGURES = ("accuracy", "auc", "sensitivity", "specificity", "f1", "precision")
"""Names of a step's figures in the order of `step_figures`, as in `StepMetrics`."""

_SUM_TOLERANCE = 1e-4  # a float32 softmax over 26 answers stays well inside it


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step, each in 0..1, NaN where undefined.

    Attributes:
      answers: the step's options in label order; they label both axes of `confusion`.
      num_cases: number of annotated cases; no others count.
      majority_accuracy: share of the most frequent answer, which is the accuracy of the best constant answer.
      auc: macro one-vs-rest area under the ROC curve; NaN where only one answer occurs.
      specificity: macro one-vs-rest specificity; NaN where only one answer occurs.
      precision: macro precision; 0 for an answer that is never given.
      confusion: number of cases [truth, answer].
      left_out: options that no annotated case has; the macro averages leave them out.
    """

    name: str
    answers: tuple[str, ...]
    num_cases: int
    accuracy: float
    majority_accuracy: float
    auc: float
    sensitivity: float
    specificity: float
    f1: float
    precision: float
    confusion: tuple[tuple[int, ...], ...]
    left_out: tuple[str, ...]

    @property
    def has_one_answer(self) -> bool:
        """Whether all annotated cases have the same answer, so that means over steps leave this one out."""
        return len(self.answers) - len(self.left_out) == 1


def step_metrics(*, step: Step, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> StepMetrics:
    """Compute the metrics of one step (paper: Tables 3 and 8).

    Args:
      probabilities: float [case, answer], each row summing to 1; the answer is the most probable one, the first of
        several equally probable ones.

    Returns:
      The metrics over the annotated cases; without any, `num_cases` is 0 and every figure NaN.

    >>> size = Step("Size", "How large?", ("Small", "Large", "N/A"))
    >>> figures = step_metrics(step=size, probabilities=[[0.8, 0.2, 0], [0.6, 0.4, 0], [1, 0, 0]], labels=[0, 1, -100])
    >>> figures.num_cases, figures.accuracy, figures.auc, figures.left_out
    (2, 0.5, 1.0, ('N/A',))
    """
    distributions = _check_probabilities(step, probabilities)
    truth = _check_labels(step, labels, num_cases=len(distributions))
    annotated = truth != NOT_ANNOTATED
    weights = count_once(len(truth))
    found = step_figures(weights, probabilities=distributions, labels=truth)[0].tolist()
    confusion = weighted_confusion(
        weights[:, annotated],
        truth=truth[annotated],
        answers=distributions[annotated].argmax(axis=1),
        num_answers=step.num_answers,
    )[0]
    cases_per_answer = confusion.sum(axis=1)
    return StepMetrics(
        name=step.name,
        answers=step.options,
        num_cases=int(annotated.sum()),
        majority_accuracy=float(divide(cases_per_answer.max(), cases_per_answer.sum())),
        confusion=tuple(tuple(map(int, row)) for row in confusion.tolist()),
        left_out=tuple(option for option, count in zip(step.options, cases_per_answer, strict=True) if not count),
        **dict(zip(FIGURES, found, strict=True)),
    )


def step_figures(
    weights: Weights, *, probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Compute the figures of one step in each resample.

    Returns:
      [resample, figure] in the order of `FIGURES`; NaN where undefined.
    """
    annotated = labels != NOT_ANNOTATED
    weights, probabilities, truth = weights[:, annotated], probabilities[annotated], labels[annotated]
    num_answers, answers = probabilities.shape[1], probabilities.argmax(axis=1)
    accuracy, _ = answer_accuracy(weights, answers=answers[:, None], labels=truth[:, None])
    confusion = weighted_confusion(weights, truth=truth, answers=answers, num_answers=num_answers)
    positive, answered = confusion.sum(axis=2), confusion.sum(axis=1)
    correct = np.diagonal(confusion, axis1=1, axis2=2)
    negative = positive.sum(axis=1, keepdims=True) - positive
    occurs, contrasted = positive > 0, (positive > 0) & (negative > 0)
    areas = [_weighted_auc(weights, scores=probabilities[:, label], positive=truth == label)
             for label in range(num_answers)]  # fmt: skip
    return np.stack(
        [
            accuracy[:, 0],
            mean_where(np.stack(areas, axis=1), contrasted),
            mean_where(divide(correct, positive), occurs),
            mean_where(divide(negative - (answered - correct), negative), contrasted),
            mean_where(divide(2 * correct, positive + answered), occurs),
            # An answer that is never given has no correct one: any divisor gives its precision of 0.
            mean_where(correct / np.maximum(answered, 1), occurs),
        ],
        axis=1,
    )


def weighted_confusion(
    weights: Weights, *, truth: npt.NDArray[np.integer], answers: npt.NDArray[np.integer], num_answers: int
) -> npt.NDArray[np.float64]:
    """Count how often each answer is given for each truth.

    Returns:
      Confusion matrices [resample, truth, answer].
    """
    cells = np.zeros((len(truth), num_answers**2))
    cells[np.arange(len(truth)), truth * num_answers + answers] = 1
    return (weights @ cells).reshape(len(weights), num_answers, num_answers)


def answer_accuracy(
    weights: Weights, *, answers: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Accuracy of each step, and share of the cases whose annotated steps are all answered correctly.

    Args:
      answers: int [case, step], labels of the answers.
      labels: int [case, step], `NOT_ANNOTATED` where unannotated; the second figure leaves out cases without any
        annotated step.

    Returns:
      Shares [resample, step] and [resample]; NaN where no case counts.

    >>> steps, chain = answer_accuracy(count_once(3), answers=[[0, 1], [0, 1], [2, 2]], labels=[[0, 1], [0, 2], [-100] * 2])
    >>> steps.tolist(), chain.tolist()
    ([[1.0, 0.5]], [0.5])
    """  # noqa: E501 - the doctest
    given, truth = np.asarray(answers), np.asarray(labels)
    if given.shape != truth.shape or truth.ndim != 2:
        raise ValueError(f"answers and labels must have one shape [case, step]; got {given.shape} and {truth.shape}")
    annotated = truth != NOT_ANNOTATED
    correct = (given == truth) | ~annotated
    means = weighted_mean(
        weights,
        values=np.concatenate([correct, correct.all(axis=1, keepdims=True)], axis=1),
        counted=np.concatenate([annotated, annotated.any(axis=1, keepdims=True)], axis=1),
    )
    return means[:, :-1], means[:, -1]


def mean_over_steps(accuracies: npt.NDArray[np.float64], *, left_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean over the steps that measure something.

    Args:
      accuracies: [resample, step]; those that are NaN do not count.
    """
    return mean_defined(np.where(left_out, np.nan, accuracies))


def majority_chain_accuracy(labels: npt.NDArray[np.integer]) -> float:
    """Return the share of cases whose annotated steps are all right in the best of two constant chains.

    They are the most frequent answer of each step, and the most frequent chain of answers among the cases, completed by
    the former where it has none. NaN without annotated cases.

    Args:
      labels: [case, step], `NOT_ANNOTATED` where unannotated.

    >>> majority_chain_accuracy(np.array([[0, 0], [0, 1], [1, 0], [1, 1], [1, 1]]))
    0.4
    """
    annotated = labels != NOT_ANNOTATED
    known = labels[annotated.any(axis=1)]
    if not len(known):
        return float("nan")
    frequent = [np.bincount(own[own != NOT_ANNOTATED], minlength=1).argmax() for own in known.T]
    chains, counts = np.unique(known, axis=0, return_counts=True)
    repeated = np.where(chains[counts.argmax()] == NOT_ANNOTATED, frequent, chains[counts.argmax()])
    answers = (np.broadcast_to(chain, known.shape) for chain in (frequent, repeated))
    return max(float(answer_accuracy(count_once(len(known)), answers=own, labels=known)[1][0]) for own in answers)


def _weighted_auc(
    weights: Weights, *, scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Probability [resample] that a positive case scores above a negative one, ties counting half; NaN without both."""
    if positive.all() or not positive.any():
        return np.full(len(weights), np.nan)
    _, level = np.unique(scores, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    ordered = weights[:, order]
    above = np.add.reduceat(ordered * positive[order], starts, axis=1)
    below = np.add.reduceat(ordered * ~positive[order], starts, axis=1)
    won = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return divide(won, above.sum(axis=1) * below.sum(axis=1))


def _check_probabilities(step: Step, probabilities: npt.ArrayLike) -> npt.NDArray[np.float64]:
    found = np.asarray(probabilities, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != step.num_answers:
        raise ValueError(
            f"step {step.name!r}: probabilities must have shape [case, {step.num_answers}]; got {found.shape}"
        )
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"step {step.name!r}: probabilities must be finite and not negative")
    off = abs(found.sum(axis=1) - 1)
    if (off > _SUM_TOLERANCE).any():
        worst = int(off.argmax())
        raise ValueError(
            f"step {step.name!r}: each row of probabilities must sum to 1; row {worst} sums to {found[worst].sum():.6g}"
        )
    return found


def _check_labels(step: Step, labels: npt.ArrayLike, *, num_cases: int) -> npt.NDArray[np.int64]:
    found = np.asarray(labels)
    if found.shape != (num_cases,) or (found.size and not np.issubdtype(found.dtype, np.integer)):
        raise ValueError(
            f"step {step.name!r}: labels must be integers of shape ({num_cases},); got {found.dtype} {found.shape}"
        )
    outside = (found != NOT_ANNOTATED) & ((found < 0) | (found >= step.num_answers))
    if outside.any():
        raise ValueError(
            f"step {step.name!r}: labels must be 0 to {step.num_answers - 1} or {NOT_ANNOTATED}; "
            f"got {found[outside][0]}"
        )
    return found.astype(np.int64)
