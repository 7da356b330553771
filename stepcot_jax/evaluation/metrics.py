"""Figures of one step over the annotated cases: accuracy, macro one-vs-rest rates, confusion matrix.

The figures are those of the paper's tables, beside the accuracy of the strictest constant answer. A case
whose question nobody answered takes part in none of them, and an answer that no case has is left out of
the macro averages (and named), because its sensitivity and its AUC do not exist.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Step

_SUM_TOLERANCE = 1e-4  # a float32 softmax over 26 answers stays well inside it


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """Figures of one step, each in 0..1, NaN where it is undefined.

    Attributes:
      name: name of the step.
      answers: the step's options in label order; they label both axes of `confusion`.
      num_cases: number of annotated cases, the only ones that count.
      accuracy: share of the cases answered right.
      majority_accuracy: share of the most frequent answer among the same cases: what the best constant
        answer would reach.
      auc: macro one-vs-rest area under the ROC curve; NaN where only one answer occurs.
      sensitivity: macro recall.
      specificity: macro one-vs-rest specificity; NaN where only one answer occurs.
      f1: macro F1.
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


def step_metrics(*, step: Step, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> StepMetrics:
    """Figures of one step (paper: Tables 3 and 8).

    Args:
      step: the step the answers belong to.
      probabilities: float [case, answer], each row summing to 1; the answer given is the most probable
        one, the first of several equally probable ones.
      labels: int [case], `NOT_ANNOTATED` where nobody answered.

    Returns:
      The figures over the annotated cases; without any, `num_cases` is 0 and every figure NaN.

    Raises:
      ValueError: the shapes do not fit, a row is no distribution or a label is none of the step's.

    >>> size = Step("Size", "How large?", ("Small", "Large", "N/A"))
    >>> figures = step_metrics(step=size, probabilities=[[0.8, 0.2, 0], [0.6, 0.4, 0], [1, 0, 0]], labels=[0, 1, -100])
    >>> figures.num_cases, figures.accuracy, figures.auc, figures.left_out
    (2, 0.5, 1.0, ('N/A',))
    """
    distributions = _read_probabilities(step, probabilities)
    truth = _read_labels(step, labels, num_cases=len(distributions))
    annotated = truth != NOT_ANNOTATED
    distributions, truth = distributions[annotated], truth[annotated]
    confusion = _count_confusion(truth=truth, answers=distributions.argmax(axis=1), num_answers=step.num_answers)
    cases_per_answer = confusion.sum(axis=1)
    sensitivity, specificity, f1, precision = _macro_rates(confusion)
    return StepMetrics(
        name=step.name,
        answers=step.options,
        num_cases=len(truth),
        accuracy=_share(np.trace(confusion), len(truth)),
        majority_accuracy=_share(cases_per_answer.max(), len(truth)),
        auc=_macro_auc(distributions=distributions, truth=truth),
        sensitivity=sensitivity,
        specificity=specificity,
        f1=f1,
        precision=precision,
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        left_out=tuple(option for option, count in zip(step.options, cases_per_answer, strict=True) if count == 0),
    )


def chain_accuracy(*, answers: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of the cases whose annotated steps are all answered right.

    Args:
      answers: int [case, step], the labels given.
      labels: int [case, step], `NOT_ANNOTATED` where nobody answered; a case without any annotated step
        does not count.

    Returns:
      The share, in 0..1; NaN if no case counts.

    Raises:
      ValueError: the two arrays differ in shape or do not have the axes [case, step].

    >>> chain_accuracy(answers=[[0, 1], [0, 1], [2, 2]], labels=[[0, 1], [0, 2], [-100, -100]])
    0.5
    """
    given, truth = np.asarray(answers), np.asarray(labels)
    if given.shape != truth.shape or truth.ndim != 2:
        raise ValueError(f"found answers {given.shape} and labels {truth.shape}, accepted is one shape [case, step]")
    annotated = truth != NOT_ANNOTATED
    counts = annotated.any(axis=1)
    right = ((given == truth) | ~annotated).all(axis=1)
    return _share((right & counts).sum(), counts.sum())


def _read_probabilities(step: Step, probabilities: npt.ArrayLike) -> npt.NDArray[np.float64]:
    found = np.asarray(probabilities, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] != step.num_answers:
        raise ValueError(
            f"step {step.name!r}: found probabilities of shape {found.shape}, accepted is [case, {step.num_answers}]"
        )
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"step {step.name!r}: probabilities must be finite and not negative")
    sums = found.sum(axis=1)
    if (abs(sums - 1) > _SUM_TOLERANCE).any():
        worst = int(abs(sums - 1).argmax())
        raise ValueError(
            f"step {step.name!r}: each row of probabilities must sum to 1, row {worst} sums to {sums[worst]:.6g}"
        )
    return found


def _read_labels(step: Step, labels: npt.ArrayLike, *, num_cases: int) -> npt.NDArray[np.int64]:
    found = np.asarray(labels)
    if found.shape != (num_cases,):
        raise ValueError(f"step {step.name!r}: found labels of shape {found.shape}, accepted is ({num_cases},)")
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"step {step.name!r}: found labels of type {found.dtype}, accepted are integers")
    outside = (found != NOT_ANNOTATED) & ((found < 0) | (found >= step.num_answers))
    if outside.any():
        raise ValueError(
            f"step {step.name!r}: found label {found[outside][0]}, "
            f"accepted are 0 to {step.num_answers - 1} and {NOT_ANNOTATED}"
        )
    return found.astype(np.int64)


def _count_confusion(
    *, truth: npt.NDArray[np.int64], answers: npt.NDArray[np.intp], num_answers: int
) -> npt.NDArray[np.intp]:
    """Number of cases [truth, answer]."""
    cells = np.bincount(truth * num_answers + answers, minlength=num_answers**2)
    return cells.reshape(num_answers, num_answers)


def _macro_rates(confusion: npt.NDArray[np.intp]) -> tuple[float, float, float, float]:
    """Sensitivity, specificity, F1 and precision of a confusion matrix [truth, answer], macro."""
    occurs = confusion.sum(axis=1) > 0
    right = np.diag(confusion)[occurs]
    positive = confusion.sum(axis=1)[occurs]
    answered = confusion.sum(axis=0)[occurs]
    negative = confusion.sum() - positive
    rejected = negative - (answered - right)
    contrasted = negative > 0
    return (
        _mean(right / positive),
        _mean(rejected[contrasted] / negative[contrasted]),
        _mean(2 * right / (positive + answered)),
        # An answer that is never given has nothing right, so that any divisor gives the 0 that is wanted.
        _mean(right / np.maximum(answered, 1)),
    )


def _macro_auc(*, distributions: npt.NDArray[np.float64], truth: npt.NDArray[np.int64]) -> float:
    """Mean over the occurring answers of the area under the one-vs-rest ROC curve."""
    from sklearn import metrics

    occurring = np.unique(truth)
    if len(occurring) < 2:
        return math.nan
    # One answer at a time: the multi-class form of roc_auc_score refuses answers that no case has.
    areas = [metrics.roc_auc_score(truth == label, distributions[:, label]) for label in occurring]
    return _mean(np.asarray(areas))


def _share(part: int | np.integer, whole: int | np.integer) -> float:
    return float(part / whole) if whole else math.nan


def _mean(values: npt.NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan
