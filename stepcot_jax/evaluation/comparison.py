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
from scipy import special

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
from stepcot_jax.evaluation.summary import MIN_PATIENTS
from stepcot_jax.evaluation.vqa_metrics import (
    A_SCORE,
    HEADED_FIGURES,
    Key,
    ScoredReplies,
    find_scored_kinds,
    score_difference,
    score_models,
)
from stepcot_jax.pages.sheets import Column, Entry, Figure, columns

# When a difference counts as significant: sample size, seeds, Holm correction.
#
# An interval by patient does not cover other training runs, and with few patients who are all alike it has no width:
# `decide` requires more.


HIGHER, LOWER, NONE_SHOWN, TOO_FEW = "higher", "lower", "no difference shown", "too few patients"
ALPHA = 0.05
MIN_RUNS = 3
"""Smallest number of training runs whose spread is used; the t interval of two is too wide to be useful."""

CORRECTED = (
    f"A difference is higher or lower only if {MIN_PATIENTS} patients or more are annotated, its paired interval "
    f"excludes 0 and its p is below {ALPHA}: the p of a normal distribution with an interval of that width, or the "
    "exact McNemar test's where that is larger (accuracy of a step). Verdicts from one training run, or from two that "
    "must agree in sign, hold for these runs; from three on p is Student's t, with an error for other patients and for "
    "other training runs. The verdicts of this table are corrected for their number (Holm)."
)
_NORMAL = float(special.ndtri(0.975))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A difference with the evidence for it.

    Attributes:
      difference: the mean over the training runs, with its interval by patient.
      values: the difference in each training run.
      p: of a test that it must pass too; None without one.
    """

    difference: Figure
    values: tuple[float, ...]
    num_patients: int
    p: float | None = None


def decide(found: Sequence[Evidence]) -> list[str]:
    """Judge differences, corrected for their number: `HIGHER`, `LOWER`, `NONE_SHOWN` or `TOO_FEW`.

    The rule is in the tables' note and in docs/tables.md. Differences with too few patients are not tested and do not
    count for the correction.

    >>> decide([Evidence(Figure(0.02, 0.01, 0.03), (0.02,), 60), Evidence(Figure(0.02, -0.01, 0.05), (0.02,), 60)])
    ['higher', 'no difference shown']
    >>> decide([Evidence(Figure(1.0, 1.0, 1.0), (1.0,), 2)])
    ['too few patients']
    """
    p_values = [math.nan if each.num_patients < MIN_PATIENTS else _p_of_all(each) for each in found]
    return [_say(each, p) for each, p in zip(found, correct(p_values), strict=True)]


def _say(found: Evidence, p: float) -> str:
    if found.num_patients < MIN_PATIENTS:
        return TOO_FEW
    low, high = found.difference.low, found.difference.high
    if low is None or high is None or not p < ALPHA:
        return NONE_SHOWN
    by_sign = len(found.values) < MIN_RUNS
    if low > 0 and (not by_sign or min(found.values) > 0):
        return HIGHER
    return LOWER if high < 0 and (not by_sign or max(found.values) < 0) else NONE_SHOWN


def _p_of_all(found: Evidence) -> float:
    """The p of a difference by patients, from `MIN_RUNS` on by training runs too; NaN without an interval.

    The error by patient comes from the interval (Altman and Bland, BMJ 343 (2011), d2304), from its half towards 0 if
    that is wider. The share of resamples beyond 0 is not used: with 1,000 resamples it may be 0, which cannot be
    corrected. Degrees of freedom are Satterthwaite's. No p is below that of all patients having the sign.
    """
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    besides = 0.0 if found.p is None else found.p
    if low is None or high is None or math.isnan(value + low + high + besides):
        return math.nan
    by_patient = max(value - low if value > 0 else high - value, (high - low) / 2) / _NORMAL
    num_runs = len(found.values)
    by_run = statistics.stdev(found.values) / math.sqrt(num_runs) if num_runs >= MIN_RUNS else 0.0
    error = math.hypot(by_patient, by_run)
    if not error:
        p = float(value == 0)
    else:
        freedom = min((num_runs - 1) * (error / by_run) ** 4, 1e9) if by_run > 1e-6 * error else 1e9
        p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return max(p, 2.0 ** (1 - found.num_patients), besides)


def correct(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm, Scand. J. Statist. 6 (1979)); NaN stays and does not count.

    >>> [round(p, 3) for p in correct([0.02, 0.01, 0.04, math.nan])]
    [0.04, 0.03, 0.04, nan]
    """
    order = sorted((place for place, p in enumerate(p_values) if not math.isnan(p)), key=lambda place: p_values[place])
    corrected, largest = list(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


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


# Compare models that answered the same questions over seeds: figures, paired differences and verdicts.


MEANS: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:6]
"""Headings and keys of the figures over all kinds of questions."""

JUDGED: tuple[tuple[str, Key], ...] = HEADED_FIGURES[:3]
"""Figures whose differences get a verdict: mean A, V and V on findings."""

DESCRIPTION = (
    "A: right answers, mean A unweighted over the kinds of question. V: mean IoU of the boxes. Passed: replies whose "
    "boxes earn the grounding reward. Well formed: replies that follow the dialect; all others earn nothing."
)


@dataclasses.dataclass(frozen=True)
class ReplyComparison:
    """Models that answered the same questions.

    Attributes:
      splits: for each seed the models' scored replies by name, all with the same models and questions.
    """

    splits: Sequence[Mapping[str, ScoredReplies]]
    num_resamples: int = 1000

    @functools.cached_property
    def _intervals(self) -> list[dict[str, dict[Key, Interval]]]:
        return [score_models(split, num_resamples=self.num_resamples) for split in self.splits]

    @functools.cached_property
    def _differences(self) -> dict[tuple[str, str], list[dict[Key, Interval]]]:
        return {}

    def _compare(self, first: str, second: str) -> list[dict[Key, Interval]]:
        if (first, second) not in self._differences:
            self._differences[first, second] = [
                score_difference(
                    first=split[first],
                    second=split[second],
                    mean_kinds=find_scored_kinds(*split.values()),
                    num_resamples=self.num_resamples,
                )
                for split in self.splits
            ]
        return self._differences[first, second]

    def figure(self, model: str, key: Key) -> Figure | None:
        """Return a model's figure, the mean over the seeds; None if no question belongs to it."""
        found = [of_seed[model] for of_seed in self._intervals]
        return summarise([each[key] for each in found]) if all(key in each for each in found) else None

    def difference(self, first: str, second: str, key: Key) -> Figure | None:
        """Return the paired difference of the first model's figure less the second's."""
        found = self._compare(first, second)
        return summarise([each[key] for each in found]) if all(key in each for each in found) else None

    def num_patients(self, key: Key) -> int:
        """Return the number of patients of a figure; for the mean of the A-scores of the kind with the fewest."""
        counts = []
        for split in self.splits:
            scored = next(iter(split.values()))
            groups = scored.groups()
            names = find_scored_kinds(*split.values()) if key == (A_SCORE, "mean") else (key[1],)
            members = [groups.get(name, np.zeros(len(scored.kinds), bool)) for name in names]
            counts += [count_patients(scored.patients[own]) for own in members]
        return min(counts, default=0)

    def verdicts(self, asked: Sequence[tuple[str, str, Key]]) -> list[str]:
        """Return the verdicts on differences (first, second, figure), corrected together for their number."""
        return word_verdicts([self._gather(*each) for each in asked])

    def _gather(self, first: str, second: str, key: Key) -> Evidence:
        found = [each.get(key, Interval(np.nan, np.nan, np.nan)) for each in self._compare(first, second)]
        return Evidence(summarise(found), tuple(each.value for each in found), self.num_patients(key))


def tabulate_differences(
    comparison: ReplyComparison, pairs: Sequence[tuple[str, str]]
) -> tuple[tuple[Column, ...], tuple[tuple[Entry, ...], ...]]:
    """Return columns and rows of paired differences, with verdicts on mean A, V and V on findings."""
    said = comparison.verdicts([(*pair, key) for pair in pairs for _, key in JUDGED])
    rows = []
    for place, pair in enumerate(pairs):
        own = said[place * len(JUDGED) : (place + 1) * len(JUDGED)]
        rows.append((*pair, *(comparison.difference(*pair, key) for _, key in MEANS), *own))
    heads = (
        *columns("text", "training", "less"),
        *columns("points", *(heading for heading, _ in MEANS)),
        *columns("text", *(f"{heading}: verdict" for heading, _ in JUDGED)),
    )
    return heads, tuple(rows)
