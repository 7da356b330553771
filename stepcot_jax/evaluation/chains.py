"""Figures of models that answer the steps of a chain, as in the paper's tables, and their bootstrap intervals.

Unannotated cases do not count; macro averages of a resample run over the answers that occur in it.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, find_one_answer
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities, calibration_figures
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions, probabilities_by_step
from stepcot_jax.evaluation.statistics import (
    Interval,
    Weights,
    count_once,
    divide,
    intervals,
    mean_defined,
    mean_where,
    resample,
    weighted_mean,
)

FIGURES = ("accuracy", "auc", "sensitivity", "specificity", "f1", "precision")
"""Names of a step's figures in the order of `step_figures`, as in `StepMetrics`."""


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step, each in 0..1, NaN where undefined; macro averages are one-vs-rest."""

    name: str
    num_cases: int  # number of annotated cases; no others count
    accuracy: float
    majority_accuracy: float  # share of the most frequent answer, which is the accuracy of the best constant answer
    auc: float  # macro one-vs-rest area under the ROC curve; NaN where only one answer occurs
    sensitivity: float
    specificity: float  # macro one-vs-rest specificity; NaN where only one answer occurs
    f1: float
    precision: float  # macro precision; 0 for an answer that is never given
    confusion: tuple[tuple[int, ...], ...]  # number of cases [truth, answer]
    answers: tuple[str, ...]  # the step's options in label order; they label both axes of `confusion`
    left_out: tuple[str, ...]  # options that no annotated case has; macro averages leave them out

    @property
    def has_one_answer(self) -> bool:
        """Whether all annotated cases have the same answer, so that means over steps leave this one out."""
        return len(self.answers) - len(self.left_out) == 1


def step_metrics(*, step: Step, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> StepMetrics:
    """Compute the metrics of one step (paper: Tables 3 and 8) from probabilities [case, answer]."""
    distributions, truth = np.asarray(probabilities, np.float64), np.asarray(labels)
    annotated = truth != NOT_ANNOTATED
    weights = count_once(len(truth))
    figures = step_figures(weights, probabilities=distributions, labels=truth)[0].tolist()
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
        **dict(zip(FIGURES, figures, strict=True)),
    )


def step_figures(
    weights: Weights, *, probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Compute the figures [resample, figure] of one step in the order of `FIGURES`; NaN where undefined."""
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
    """Return confusion matrices [resample, truth, answer]."""
    cells = np.zeros((len(truth), num_answers**2))
    cells[np.arange(len(truth)), truth * num_answers + answers] = 1
    return (weights @ cells).reshape(len(weights), num_answers, num_answers)


def answer_accuracy(
    weights: Weights, *, answers: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return shares of right answers [resample, step], and of cases whose annotated steps are all right [resample]."""
    given, truth = np.asarray(answers), np.asarray(labels)
    annotated = truth != NOT_ANNOTATED
    correct = (given == truth) | ~annotated
    means = weighted_mean(
        weights,
        values=np.concatenate([correct, correct.all(axis=1, keepdims=True)], axis=1),
        counted=np.concatenate([annotated, annotated.any(axis=1, keepdims=True)], axis=1),
    )
    return means[:, :-1], means[:, -1]


def mean_over_steps(accuracies: npt.NDArray[np.float64], *, left_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the mean over the steps that measure something and are defined, of [resample, step]."""
    return mean_defined(np.where(left_out, np.nan, accuracies))


def most_frequent(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """Return the most frequent annotated answer [step] of labels [case, step]; 0 where none is annotated."""
    return np.array([np.bincount(truth[truth != NOT_ANNOTATED], minlength=1).argmax() for truth in labels.T])


def majority_chain_accuracy(labels: npt.NDArray[np.integer]) -> float:
    """Return the share of cases right in the better of two constant chains: frequent answers or frequent chain."""
    annotated = labels != NOT_ANNOTATED
    known = labels[annotated.any(axis=1)]
    if not len(known):
        return float("nan")
    frequent = most_frequent(known)
    chains, counts = np.unique(known, axis=0, return_counts=True)
    repeated = np.where(chains[counts.argmax()] == NOT_ANNOTATED, frequent, chains[counts.argmax()])
    chains_of_cases = (np.broadcast_to(chain, known.shape) for chain in (frequent, repeated))
    once = count_once(len(known))
    return max(float(answer_accuracy(once, answers=answers, labels=known)[1][0]) for answers in chains_of_cases)


def _weighted_auc(
    weights: Weights, *, scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return the probability [resample] that a positive case outscores a negative one, ties counting half."""
    if positive.all() or not positive.any():
        return np.full(len(weights), np.nan)
    _, level = np.unique(scores, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    ordered = weights[:, order]
    above = np.add.reduceat(ordered * positive[order], starts, axis=1)
    below = np.add.reduceat(ordered, starts, axis=1) - above
    won = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return divide(won, above.sum(axis=1) * below.sum(axis=1))


@dataclasses.dataclass(frozen=True)
class ModelMetrics:
    """Metrics of one model on a split, in 0..1; means are over the steps with two or more answers."""

    mean_accuracy: float  # mean of the steps' accuracy, over the steps whose annotated cases have two or more answers
    mean_majority_accuracy: float  # mean of the steps' majority accuracy, over the same steps
    chain_accuracy: float  # share of the cases whose annotated steps are all answered correctly
    majority_chain_accuracy: float  # the same share of a constant chain (`majority_chain_accuracy`)
    steps: tuple[StepMetrics, ...]  # metrics of each step, in the chain's order


def evaluate(predictions: Predictions, chain: Chain) -> dict[str, ModelMetrics]:
    """Compute the metrics of each model.

    Args:
      predictions: labels and logits of the cases.
      chain: the steps with their numbers of answers; logits beyond them are padding.

    Returns:
      The metrics by model name, in the order of `predictions.logits`.

    Raises:
      ValueError: the logits do not fit the chain.
      FloatingPointError: a logit of an answer is not finite.
    """
    labels, metrics = predictions.labels, {}
    left_out = find_one_answer(labels)
    for model, logits in predictions.logits.items():
        probabilities = probabilities_by_step(logits, chain=chain, model=model)
        steps = tuple(
            step_metrics(step=step, probabilities=of_step, labels=truth)
            for step, of_step, truth in zip(chain.steps, probabilities, labels.T, strict=True)
        )
        answers = np.stack([of_step.argmax(axis=1) for of_step in probabilities], axis=1)
        accuracies, chain_accuracy = answer_accuracy(count_once(len(labels)), answers=answers, labels=labels)
        majorities = np.array([[step.majority_accuracy for step in steps]])
        metrics[model] = ModelMetrics(
            mean_accuracy=float(mean_over_steps(accuracies, left_out=left_out)[0]),
            mean_majority_accuracy=float(mean_over_steps(majorities, left_out=left_out)[0]),
            chain_accuracy=float(chain_accuracy[0]),
            majority_chain_accuracy=majority_chain_accuracy(labels),
            steps=steps,
        )
    return metrics


# Bootstrap intervals by patient.


Figures = dict[tuple[str, str], npt.NDArray[np.float64]]
"""By model and name: "mean_accuracy" [resample], "chain_accuracy" [resample], "steps" [resample, step, figure].

With the model "" there is "incomplete" [resample, step]: 1 where a resample lacks an answer of the split.
"""


@dataclasses.dataclass(frozen=True)
class StepIntervals:
    """Intervals of one step's figures; AUC, sensitivity and the like are macro averages, one-vs-rest."""

    name: str
    num_cases: int
    accuracy: Interval
    auc: Interval  # macro one-vs-rest area under the ROC curve
    sensitivity: Interval
    specificity: Interval
    f1: Interval
    precision: Interval
    share_incomplete: float = 0.0  # share of the resamples that lack an answer of the split


@dataclasses.dataclass(frozen=True)
class ModelIntervals:
    """Intervals of one model's figures, or of the differences between two models."""

    mean_accuracy: Interval  # over the steps with two or more answers
    chain_accuracy: Interval  # share of the cases whose annotated steps are all answered correctly
    steps: tuple[StepIntervals, ...]  # figures of each step, in the chain's order


def bootstrap(
    split: SplitPredictions,
    chain: Chain,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    left_out: npt.NDArray[np.bool_] | None = None,
) -> dict[str, ModelIntervals]:
    """Compute intervals of every figure of every model in the same resamples; `left_out` [step] are not in means."""
    compute, models = prepare_metrics(split, chain, left_out=left_out), list(split.predictions.logits)
    return _bootstrap(compute, models, split, chain, num_resamples=num_resamples, seed=seed)


def bootstrap_differences(
    split: SplitPredictions, chain: Chain, *, first: str, second: str, num_resamples: int = 1000, seed: int = 0
) -> ModelIntervals:
    """Compute intervals of one model's figures less another's, in the same resamples: paired, so narrower."""
    split = split.change(logits={model: split.predictions.logits[model] for model in dict.fromkeys((first, second))})
    both = prepare_metrics(split, chain)

    def compute(weights: Weights) -> Figures:
        figures = both(weights)
        less = {
            ("less", name): figures[first, name] - figures[second, name] for model, name in figures if model == first
        }
        return {**less, ("", "incomplete"): figures["", "incomplete"]}

    return _bootstrap(compute, ["less"], split, chain, num_resamples=num_resamples, seed=seed)["less"]


def _bootstrap(
    compute: Callable[[Weights], Figures],
    models: Sequence[str],
    split: SplitPredictions,
    chain: Chain,
    *,
    num_resamples: int,
    seed: int,
) -> dict[str, ModelIntervals]:
    labels = split.predictions.labels
    values = compute(count_once(len(labels)))
    resampled = resample(compute, split.facts["patient_id"], num_resamples=num_resamples, seed=seed)
    num_cases = (labels != NOT_ANNOTATED).sum(axis=0).tolist()
    incomplete = resampled["", "incomplete"].mean(axis=0).tolist()

    def describe(model: str) -> ModelIntervals:
        mean_accuracy, chain_accuracy, steps = (
            intervals(values[model, name][0], resampled[model, name])
            for name in ("mean_accuracy", "chain_accuracy", "steps")
        )
        columns = zip(chain.steps, num_cases, steps, incomplete, strict=True)
        of_steps = (
            StepIntervals(step.name, count, *figures, share_incomplete=share) for step, count, figures, share in columns
        )
        return ModelIntervals(mean_accuracy, chain_accuracy, tuple(of_steps))

    return {model: describe(model) for model in models}


def prepare_metrics(
    split: SplitPredictions, chain: Chain, *, left_out: npt.NDArray[np.bool_] | None = None
) -> Callable[[Weights], Figures]:
    """Return a function from weights [resample, case] to every model's figures in each resample."""
    labels = split.predictions.labels
    left_out = find_one_answer(labels) if left_out is None else left_out
    probabilities = {
        model: probabilities_by_step(logits, chain=chain, model=model)
        for model, logits in split.predictions.logits.items()
    }
    occurring = [truth[:, None] == np.unique(truth[truth != NOT_ANNOTATED]) for truth in labels.T]

    def compute(weights: Weights) -> Figures:
        drawn = weights.any(axis=1)
        lacking = [drawn & (weights @ is_answer.astype(np.float64) == 0).any(axis=1) for is_answer in occurring]
        figures = {("", "incomplete"): np.stack(lacking, axis=1).astype(np.float64)}
        for model, steps in probabilities.items():
            answers = np.stack([of_step.argmax(axis=1) for of_step in steps], axis=1)
            accuracies, figures[model, "chain_accuracy"] = answer_accuracy(weights, answers=answers, labels=labels)
            figures[model, "mean_accuracy"] = mean_over_steps(accuracies, left_out=left_out)
            of_steps = [
                step_figures(weights, probabilities=of_step, labels=truth)
                for of_step, truth in zip(steps, labels.T, strict=True)
            ]
            figures[model, "steps"] = np.stack(of_steps, axis=1)
        return figures

    return compute


# Statistics of one step beyond the metrics: calibration, answer sets and selective reading.


COVERAGES = (0.5, 0.7, 0.9, 1.0)  # Shares of the cases that are read, the most confident first

SUREST, BY_ANSWER = "accuracy_of_the_surest", "answer_set_coverage_by_answer"
"""Figures of several numbers: one for each of `COVERAGES`, and one for each answer of the step."""


@dataclasses.dataclass(frozen=True)
class StepCases:
    """A model's predictions on every case at one step."""

    name: str
    labels: npt.NDArray[np.integer]
    raw: npt.NDArray[np.float64]  # [case, answer], the model's own probabilities
    calibrated: npt.NDArray[np.float64]  # [case, answer], after temperature scaling
    sets: npt.NDArray[np.bool_]  # [case, answer], True for an answer in the answer set


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
            zip(chain.steps, probabilities_by_step(logits, chain=chain, model=model), strict=True)
        )
    ]


def step_statistics(weights: Weights, cases: StepCases) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the statistics [resample] of one step; those named `SUREST` and `BY_ANSWER` are [resample, number]."""
    raw, calibrated = (
        calibration_figures(weights, probabilities=probabilities, labels=cases.labels)
        for probabilities in (cases.raw, cases.calibrated)
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


def selective_figures(
    weights: Weights,
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    shares: Sequence[float],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return accuracies [resample, share] of the most confident cases (El-Yaniv and Wiener 2010), and areas [resample].

    Cases of equal confidence are read together. The area is the mean accuracy over all numbers of cases read, in which
    they stand for every order among themselves.
    """
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    confidence = probabilities[annotated].max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    correct = (probabilities[annotated].argmax(axis=1) == labels[annotated])[order]
    last_of_level = np.flatnonzero(np.diff(confidence[order], append=-1.0))
    ordered = weights[:, annotated[order]]
    num_read = np.cumsum(ordered, axis=1)[:, last_of_level]
    num_correct = np.cumsum(ordered * correct, axis=1)[:, last_of_level]
    accuracies = np.full((len(weights), len(shares)), np.nan)
    if num_read.size:
        coverage = num_read / np.maximum(num_read[:, -1:], 1)
        rows = np.arange(len(weights))
        for column, share in enumerate(shares):
            # In a resample without cases no level suffices: the first one stands for it and gives NaN.
            level = (coverage >= share).argmax(axis=1)
            accuracies[:, column] = divide(num_correct[rows, level], num_read[rows, level])
    return accuracies, _area(num_read, num_correct)


def _area(num_read: npt.NDArray[np.float64], num_correct: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if not num_read.size:
        return np.full(len(num_read), np.nan)
    total = num_read[:, -1]
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, total.max(initial=0) + 1))])
    earlier, earlier_correct = (np.pad(counts[:, :-1], ((0, 0), (1, 0))) for counts in (num_read, num_correct))
    # Within a level the expected number of correct ones is a line, offset + slope * cases: its mean accuracies sum up
    # to the correct ones of the level and the offset times the sum of 1 / cases.
    slope = (num_correct - earlier_correct) / np.maximum(num_read - earlier, 1)
    sums = harmonic[num_read.astype(np.intp)]
    curved = (earlier_correct - slope * earlier) * np.diff(sums, prepend=0.0, axis=1)
    return divide(num_correct[:, -1] + curved.sum(axis=1), total)
