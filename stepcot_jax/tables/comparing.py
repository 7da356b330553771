"""Compare models on the same cases over seeds: figures with intervals, paired differences and verdicts.

With several seeds a figure is their mean with their sample deviation, and the ends of its interval are the means of
the seeds' ends: the interval of a typical seed, which is wider than that of the mean.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.evaluation.intervals import (
    Interval,
    ModelIntervals,
    bootstrap,
    bootstrap_differences,
    compare_accuracy,
)
from stepcot_jax.evaluation.predictions import SplitPredictions, join_models
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.tables.verdicts import HIGHER, LOWER, MIN_RUNS, Evidence, decide
from stepcot_jax.tables.writing import Figure

INTERVALS = "In brackets: 95 % intervals from a bootstrap by patient; ±: sample deviation over the seeds."
MCNEMAR = (
    "p: exact McNemar test of the accuracies, which takes cases as independent although several may be of one patient; "
    "not corrected for the number of comparisons; the larger of two training runs, twice the median of three or more."
)

Question = tuple[str, str, str, int | None]
"""First model, second model, figure, and step or None: is the first model's figure another than the second's?"""


def join(parts: Mapping[str, tuple[SplitPredictions, str]]) -> SplitPredictions:
    """Join models of several runs on the same cases under new names.

    A run supervised by the last step alone has no other labels; those of the first part replace them.

    Args:
      parts: by new name, predictions and the model's name there; the first part has all labels.
    """
    first = next(iter(parts.values()))[0]
    known = dict(zip(first.facts["case_id"].tolist(), first.predictions.labels, strict=True))

    def complete(split: SplitPredictions) -> SplitPredictions:
        labels = split.predictions.labels
        missing = np.full(labels.shape[1], NOT_ANNOTATED, labels.dtype)
        expected = np.stack([known.get(case, missing) for case in split.facts["case_id"].tolist()])
        filled = np.where(labels == NOT_ANNOTATED, expected, labels)
        return dataclasses.replace(split, predictions=dataclasses.replace(split.predictions, labels=filled))

    return join_models({name: (complete(split), model) for name, (split, model) in parts.items()})


def last_step_alone(split: SplitPredictions) -> SplitPredictions:
    """Return the predictions of the last step."""
    return choose_steps(split, [split.predictions.labels.shape[1] - 1])


def choose_steps(split: SplitPredictions, positions: Sequence[int]) -> SplitPredictions:
    """Return the predictions of some steps."""
    found, chosen = split.predictions, list(positions)
    logits = {name: values[:, chosen] for name, values in found.logits.items()}
    predictions = dataclasses.replace(found, labels=found.labels[:, chosen], logits=logits)
    return dataclasses.replace(split, predictions=predictions)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models on the same cases.

    Attributes:
      splits: for each seed the models' predictions, all with the same models and cases.
    """

    splits: Sequence[SplitPredictions]
    chain: Chain
    num_resamples: int = 1000

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.splits[0].predictions.logits)

    def last_step_alone(self) -> "Comparison":
        """Return the comparison at the last step."""
        return self.choose_steps([self.chain.num_steps - 1])

    def choose_steps(self, positions: Sequence[int]) -> "Comparison":
        """Return the comparison at some steps."""
        splits = [choose_steps(split, positions) for split in self.splits]
        chain = Chain(tuple(self.chain.steps[position] for position in positions))
        return Comparison(splits, chain, self.num_resamples)

    @functools.cached_property
    def _intervals(self) -> list[dict[str, ModelIntervals]]:
        return [bootstrap(split, self.chain, num_resamples=self.num_resamples) for split in self.splits]

    @functools.cached_property
    def _differences(self) -> dict[tuple[str, str], list[ModelIntervals]]:
        return {}

    @functools.cached_property
    def _constant(self) -> ModelIntervals:
        split = self.splits[0]
        logits = np.zeros_like(next(iter(split.predictions.logits.values())))
        for step, own in enumerate(split.predictions.labels.T):
            if (own != NOT_ANNOTATED).any():
                logits[:, step, np.bincount(own[own != NOT_ANNOTATED]).argmax()] = 1
        alone = dataclasses.replace(split, predictions=dataclasses.replace(split.predictions, logits={"": logits}))
        return bootstrap(alone, self.chain, num_resamples=self.num_resamples)[""]

    def constant(self, step: int | None = None) -> Figure:
        """Return the accuracy of always giving a step's most frequent answer; of None the mean over the steps."""
        return summarise([_pick(self._constant, "mean_accuracy" if step is None else "accuracy", step)])

    def num_cases(self, step: int) -> int:
        """Return the number of annotated cases of a step."""
        return int((self.splits[0].predictions.labels[:, step] != NOT_ANNOTATED).sum())

    def figure(self, model: str, figure: str, step: int | None = None) -> Figure:
        """Return a model's figure: of a step, or "mean_accuracy" or "chain_accuracy"."""
        return summarise([_pick(found[model], figure, step) for found in self._intervals])

    def difference(self, first: str, second: str, figure: str, step: int | None = None) -> Figure:
        """Return the paired difference of the first model's figure less the second's."""
        if (first, second) not in self._differences:
            self._differences[first, second] = [
                bootstrap_differences(split, self.chain, first=first, second=second, num_resamples=self.num_resamples)
                for split in self.splits
            ]
        return summarise([_pick(found, figure, step) for found in self._differences[first, second]])

    def verdicts(self, questions: Sequence[Question]) -> list[str]:
        """Return the verdicts of `judge` on questions about this comparison."""
        return judge([(self, question) for question in questions])

    def evidence(self, first: str, second: str, figure: str, step: int | None) -> Evidence:
        """Return what `decide` needs to know of a difference."""
        difference = self.difference(first, second, figure, step)
        values = tuple(_pick(found, figure, step).value for found in self._differences[first, second])
        p = self.p_value(first, second, step) if figure == "accuracy" and step is not None else None
        return Evidence(difference, values, self.num_patients(figure, step), p)

    def num_patients(self, figure: str, step: int | None = None) -> int:
        """Return the number of annotated patients of a figure; for "mean_accuracy" of its step with the fewest."""
        counts = []
        for split in self.splits:
            labels = split.predictions.labels
            annotated = labels != NOT_ANNOTATED
            if step is not None:
                parts = [annotated[:, step]]
            elif figure == "mean_accuracy":
                parts = [own for own in annotated[:, ~find_one_answer(labels)].T if own.any()]
            else:
                parts = [annotated.any(axis=1)]
            counts += [count_patients(split.facts["patient_id"][own]) for own in parts]
        return min(counts, default=0)

    def p_value(self, first: str, second: str, step: int) -> float:
        """Return the p of the exact McNemar test for accuracy at a step; NaN without cases.

        Of two seeds it is the larger, of more twice the median, which is valid under any dependence of the runs
        (Rüger 1978) and does not grow with their number.
        """
        if not self.num_cases(step):
            return math.nan
        found = []
        for split in self.splits:
            own = (split.predictions.logits[model][:, step] for model in (first, second))
            one, other = (logits[:, : self.chain.steps[step].num_answers].argmax(axis=1) for logits in own)
            labels = split.predictions.labels[:, step]
            found.append(compare_accuracy(labels=labels, first=one, second=other).exact_p)
        return max(found) if len(found) < MIN_RUNS else min(1.0, 2 * statistics.median_high(found))


def judge(asked: Sequence[tuple[Comparison, Question]]) -> list[str]:
    """Return the verdicts of `decide` on all questions of a table, corrected together.

    Args:
      asked: comparisons, all of the same number of training runs, for which the verdicts are worded, with a question.
    """
    return word_verdicts([comparison.evidence(*question) for comparison, question in asked])


def word_verdicts(found: Sequence[Evidence]) -> list[str]:
    """Return the verdicts of `decide` on differences, each with the runs that it holds for."""
    runs = [{1: " in this run", 2: " in both runs"}.get(len(each.values), "") for each in found]
    return [f"{said}{of}" if said in (HIGHER, LOWER) else said for said, of in zip(decide(found), runs, strict=True)]


def summarise(intervals: Sequence[Interval]) -> Figure:
    """Summarise the intervals of all seeds as one figure.

    >>> summarise([Interval(0.5, 0.4, 0.6)])
    Figure(value=0.5, low=0.4, high=0.6, deviation=None)
    """
    values, lows, highs = ([getattr(interval, end) for interval in intervals] for end in ("value", "low", "high"))
    deviation = statistics.stdev(values) if len(values) > 1 and not any(map(math.isnan, values)) else None
    value, low, high = (math.fsum(each) / len(each) for each in (values, lows, highs))
    return Figure(value, low, high, deviation)


def _pick(found: ModelIntervals, figure: str, step: int | None) -> Interval:
    interval: Interval = getattr(found if step is None else found.steps[step], figure)
    return interval
