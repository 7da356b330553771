"""Compare models on the same cases over seeds: figures with intervals, paired differences and verdicts.

Over several seeds an interval has the means of the seeds' ends: that of a typical seed, wider than the mean's.
"""

import abc
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy import special

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.evaluation.chains import ModelIntervals, bootstrap, bootstrap_differences, most_frequent
from stepcot_jax.evaluation.predictions import SplitPredictions, join_models
from stepcot_jax.evaluation.replies import (
    A_SCORE,
    HEADED_FIGURES,
    Key,
    ScoredReplies,
    find_scored_kinds,
    score_difference,
    score_models,
)
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, compare_accuracy, correct, count_patients, summarise
from stepcot_jax.host.ranges import Interval

# When a difference counts as significant: sample size, seeds, Holm correction.
#
# An interval by patient does not cover other training runs, and with few patients who are all alike it has no width:
# `decide` requires more.


HIGHER, LOWER, NONE_SHOWN, TOO_FEW = "higher", "lower", "no difference shown", "too few patients"
ALPHA = 0.05
MIN_RUNS = 3  # Smallest number of training runs whose spread is used; the t interval of two is too wide to be useful

CORRECTED = (
    f"Higher, lower, gain, loss: {MIN_PATIENTS} patients or more are annotated, the paired interval excludes 0, and p, "
    f"corrected for the verdicts of this table (Holm), is below {ALPHA} (docs/tables.md). With one or two seeds a "
    "verdict holds for these runs, from three on for other training runs too."
)
_NORMAL = float(special.ndtri(0.975))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A difference with the evidence for it."""

    difference: Interval  # the mean over the training runs, with its interval by patient
    values: tuple[float, ...]  # the difference in each training run
    num_patients: int
    p: float | None = None  # of a test that it must pass too; None without one


def decide(evidence: Sequence[Evidence]) -> list[str]:
    """Judge differences by the rule of `CORRECTED`; those with too few patients do not count for the correction."""
    p_values = [math.nan if item.num_patients < MIN_PATIENTS else _p_of_all(item) for item in evidence]
    return [_word_verdict(item, p) for item, p in zip(evidence, correct(p_values), strict=True)]


def _word_verdict(evidence: Evidence, p: float) -> str:
    if evidence.num_patients < MIN_PATIENTS:
        return TOO_FEW
    low, high = evidence.difference.low, evidence.difference.high
    if not p < ALPHA:
        return NONE_SHOWN
    by_sign = len(evidence.values) < MIN_RUNS
    if low > 0 and (not by_sign or min(evidence.values) > 0):
        return HIGHER
    return LOWER if high < 0 and (not by_sign or max(evidence.values) < 0) else NONE_SHOWN


def _p_of_all(evidence: Evidence) -> float:
    """Return the p of a difference by patients, from `MIN_RUNS` on by training runs too; NaN without an interval."""
    value, low, high = evidence.difference.value, evidence.difference.low, evidence.difference.high
    besides = 0.0 if evidence.p is None else evidence.p
    if math.isnan(value + low + high + besides):
        return math.nan
    by_patient = max(value - low if value > 0 else high - value, (high - low) / 2) / _NORMAL
    num_runs = len(evidence.values)
    by_run = statistics.stdev(evidence.values) / math.sqrt(num_runs) if num_runs >= MIN_RUNS else 0.0
    error = math.hypot(by_patient, by_run)
    if not error:
        p = float(value == 0)
    else:
        freedom = min((num_runs - 1) * (error / by_run) ** 4, 1e9) if by_run > 1e-6 * error else 1e9
        p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return max(p, 2.0 ** (1 - evidence.num_patients), besides)


INTERVALS = "In brackets: 95 % intervals from a bootstrap by patient; ±: sample deviation over the seeds."
MCNEMAR = (
    "p: exact McNemar test of the accuracies, which takes cases as independent although several may be of one patient; "
    "not corrected for the number of comparisons; the larger of two training runs, twice the median of three or more."
)


def join(parts: Mapping[str, tuple[SplitPredictions, str]]) -> SplitPredictions:
    """Join models of several runs on the same cases; the first part's labels stand in for those that a run lacks."""
    first = next(iter(parts.values()))[0]
    known = dict(zip(first.facts["case_id"].tolist(), first.predictions.labels, strict=True))

    def complete(split: SplitPredictions) -> SplitPredictions:
        labels = split.predictions.labels
        missing = np.full(labels.shape[1], NOT_ANNOTATED, labels.dtype)
        expected = np.stack([known.get(case, missing) for case in split.facts["case_id"].tolist()])
        filled = np.where(labels == NOT_ANNOTATED, expected, labels)
        return split.change(labels=filled)

    return join_models({name: (complete(split), model) for name, (split, model) in parts.items()})


_Split = TypeVar("_Split", bound=SplitPredictions)


def last_step_alone(split: SplitPredictions) -> SplitPredictions:
    """Return the predictions of the last step."""
    return choose_steps(split, [split.predictions.labels.shape[1] - 1])


def choose_steps(split: _Split, positions: Sequence[int]) -> _Split:
    """Return the predictions of some steps."""
    predictions, chosen = split.predictions, list(positions)
    logits = {name: values[:, chosen] for name, values in predictions.logits.items()}
    return split.change(labels=predictions.labels[:, chosen], logits=logits)


@dataclasses.dataclass(frozen=True)
class Comparison(abc.ABC):
    """Models on the same cases, or questions, over seeds; a figure's group is a step, a kind, or None for the chain."""

    splits: Sequence[Any]  # for each seed the results of all models, all with the same models and cases
    num_resamples: int = 1000

    @abc.abstractmethod
    def _measure(self, split: Any) -> Mapping[str, Any]:
        """Return the figures of each model."""

    @abc.abstractmethod
    def _subtract(self, split: Any, first: str, second: str) -> Any:
        """Return the figures of the first model less those of the second, in the same resamples."""

    @abc.abstractmethod
    def _pick(self, figures: Any, figure: str, group: Any) -> Interval:
        """Return one of the figures; an undefined one where there is none."""

    @abc.abstractmethod
    def num_patients(self, figure: str, group: Any = None) -> int:
        """Return the number of annotated patients of a figure; of a mean, of its part with the fewest."""

    def p_value(self, first: str, second: str, figure: str, group: Any = None) -> float | None:
        """Return the p of a test that a difference must pass too; None without one."""
        del first, second, figure, group
        return None

    @functools.cached_property
    def _figures(self) -> list[Mapping[str, Any]]:
        return [self._measure(split) for split in self.splits]

    @functools.cached_property
    def _differences(self) -> dict[tuple[str, str], list[Any]]:
        return {}

    def figure(self, model: str, figure: str, group: Any = None) -> Interval:
        """Return a model's figure, the mean over the seeds."""
        return summarise([self._pick(figures[model], figure, group) for figures in self._figures])

    def figures(self, model: str, headings: Mapping[str, str], group: Any = None) -> dict[str, Any]:
        """Return a model's figures by heading."""
        return {heading: self.figure(model, figure, group) for figure, heading in headings.items()}

    def difference(self, first: str, second: str, figure: str, group: Any = None) -> Interval:
        """Return the paired difference of the first model's figure less the second's."""
        return summarise(self._pair(first, second, figure, group))

    def _pair(self, first: str, second: str, figure: str, group: Any) -> list[Interval]:
        if (first, second) not in self._differences:
            self._differences[first, second] = [self._subtract(split, first, second) for split in self.splits]
        return [self._pick(figures, figure, group) for figures in self._differences[first, second]]

    def evidence(self, first: str, second: str, figure: str, group: Any = None) -> Evidence:
        """Return what `decide` needs to know of a difference."""
        differences = self._pair(first, second, figure, group)
        values = tuple(difference.value for difference in differences)
        p = self.p_value(first, second, figure, group)
        return Evidence(summarise(differences), values, self.num_patients(figure, group), p)


@dataclasses.dataclass(frozen=True)
class AnswerComparison(Comparison):
    """Models that answer the steps of a chain; the splits are `SplitPredictions`."""

    chain: Chain = dataclasses.field(kw_only=True)

    def _measure(self, split: SplitPredictions) -> dict[str, ModelIntervals]:
        return bootstrap(split, self.chain, num_resamples=self.num_resamples)

    def _subtract(self, split: SplitPredictions, first: str, second: str) -> ModelIntervals:
        return bootstrap_differences(split, self.chain, first=first, second=second, num_resamples=self.num_resamples)

    def _pick(self, figures: ModelIntervals, figure: str, group: int | None) -> Interval:
        interval: Interval = getattr(figures if group is None else figures.steps[group], figure)
        return interval

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.splits[0].predictions.logits)

    def choose_steps(self, positions: Sequence[int]) -> "AnswerComparison":
        """Return the comparison at some steps."""
        splits = [choose_steps(split, positions) for split in self.splits]
        chain = Chain(tuple(self.chain.steps[position] for position in positions))
        return AnswerComparison(splits, self.num_resamples, chain=chain)

    @functools.cached_property
    def _constant(self) -> ModelIntervals:
        split = self.splits[0]
        shape = next(iter(split.predictions.logits.values())).shape
        answers = np.eye(shape[-1], dtype=np.float32)[most_frequent(split.predictions.labels)]
        return self._measure(split.change(logits={"": np.broadcast_to(answers, shape)}))[""]

    def constant(self, step: int | None = None) -> Interval:
        """Return the accuracy of always giving a step's most frequent answer; of None the mean over the steps."""
        return summarise([self._pick(self._constant, "mean_accuracy" if step is None else "accuracy", step)])

    def num_cases(self, step: int) -> int:
        """Return the number of annotated cases of a step."""
        return int((self.splits[0].predictions.labels[:, step] != NOT_ANNOTATED).sum())

    def num_patients(self, figure: str, group: int | None = None) -> int:
        """Return the number of annotated patients of a figure; for "mean_accuracy" of its step with the fewest."""
        counts = []
        for split in self.splits:
            labels = split.predictions.labels
            annotated = labels != NOT_ANNOTATED
            if group is not None:
                parts = [annotated[:, group]]
            elif figure == "mean_accuracy":
                parts = [column for column in annotated[:, ~find_one_answer(labels)].T if column.any()]
            else:
                parts = [annotated.any(axis=1)]
            counts += [count_patients(split.facts["patient_id"][cases]) for cases in parts]
        return min(counts, default=0)

    def p_value(self, first: str, second: str, figure: str, group: int | None = None) -> float | None:
        """Return the exact McNemar p at a step: the larger of two seeds', twice the median of more (Rüger 1978)."""
        if figure != "accuracy" or group is None:
            return None
        if not self.num_cases(group):
            return math.nan
        p_values = []
        for split in self.splits:
            logits, num_answers = split.predictions.logits, self.chain.steps[group].num_answers
            one, other = (logits[model][:, group, :num_answers].argmax(axis=1) for model in (first, second))
            labels = split.predictions.labels[:, group]
            p_values.append(compare_accuracy(labels=labels, first=one, second=other).exact_p)
        return max(p_values) if len(p_values) < MIN_RUNS else min(1.0, 2 * statistics.median_high(p_values))


@dataclasses.dataclass(frozen=True)
class ReplyComparison(Comparison):
    """Models that answered the same questions; the splits are scored replies by model."""

    def _measure(self, split: Mapping[str, ScoredReplies]) -> dict[str, dict[Key, Interval]]:
        return score_models(split, num_resamples=self.num_resamples)

    def _subtract(self, split: Mapping[str, ScoredReplies], first: str, second: str) -> dict[Key, Interval]:
        kinds = find_scored_kinds(*split.values())
        return score_difference(
            first=split[first], second=split[second], mean_kinds=kinds, num_resamples=self.num_resamples
        )

    def _pick(self, figures: Mapping[Key, Interval], figure: str, group: str) -> Interval:
        return figures.get((figure, group), Interval(math.nan))

    def num_patients(self, figure: str, group: str | None = None) -> int:
        """Return the number of patients of a figure; for the mean of the A-scores of the kind with the fewest."""
        counts = []
        for split in self.splits:
            scored = next(iter(split.values()))
            groups = scored.groups()
            names = find_scored_kinds(*split.values()) if (figure, group) == (A_SCORE, "mean") else (group,)
            members = [groups.get(str(name), np.zeros(len(scored.kinds), bool)) for name in names]
            counts += [count_patients(scored.patients[replies]) for replies in members]
        return min(counts, default=0)


def word_verdicts(evidence: Sequence[Evidence]) -> list[str]:
    """Return the verdicts of `decide` on differences, each with the runs that it holds for."""
    runs = [{1: " in this run", 2: " in both runs"}.get(len(item.values), "") for item in evidence]
    return [
        f"{verdict}{of_runs}" if verdict in (HIGHER, LOWER) else verdict
        for verdict, of_runs in zip(decide(evidence), runs, strict=True)
    ]


def settle(rows: Sequence[Mapping[str, Any]], word: Callable[[str], str] = str) -> list[dict[str, Any]]:
    """Return the rows of a table with a verdict in place of each `Evidence`, corrected together for their number."""
    verdicts = iter(word_verdicts([entry for row in rows for entry in row.values() if isinstance(entry, Evidence)]))
    return [
        {name: word(next(verdicts)) if isinstance(entry, Evidence) else entry for name, entry in row.items()}
        for row in rows
    ]


MEANS: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:6]  # Headings and keys of the figures over all kinds of questions

JUDGED: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:3]
"""Figures whose differences get a verdict: mean A, V and V on findings."""

DESCRIPTION = (
    "A: right answers, mean A unweighted over the kinds of question. V: mean IoU of the boxes. Passed: replies whose "
    "boxes earn the grounding reward. Well formed: replies that follow the dialect; all others earn nothing."
)
