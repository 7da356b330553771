"""Models side by side over the same cases, seed by seed: figures with intervals, and differences that are honest.

With several seeds a figure is the mean over them, its deviation is over them, and the ends of its interval are the
means of the seeds' ends: where a typical seed's figure would lie with other patients. That is wider than an interval of
the mean would be.

An interval by patient says nothing of other training runs, and one of few patients who are all alike has no width:
`decide` asks for more before it calls a difference one.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.intervals import Interval, ModelIntervals, bootstrap, bootstrap_differences
from stepcot_jax.evaluation.paired import compare_accuracy
from stepcot_jax.evaluation.prediction_files import SplitPredictions, join_models
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.evaluation.subgroups import MIN_PATIENTS
from stepcot_jax.experiments.writing import Figure

HIGHER, LOWER, NONE_SHOWN, TOO_FEW = "higher", "lower", "no difference shown", "too few patients"
ALPHA = 0.05
MIN_RUNS = 3
"""Training runs from which on their own spread is believed; two give a t interval too wide for any use."""

INTERVALS = "In brackets: 95 % intervals from a bootstrap by patient; ±: sample deviation over the seeds."
_RULE = (
    f"A difference is called higher or lower only if {MIN_PATIENTS} patients or more are annotated, its paired "
    f"interval excludes 0 and its p is below {ALPHA}: the p of a normal distribution with an interval of that width, "
    "or the exact McNemar test's where that is larger (accuracy of a step). One training run, or two that must both "
    "have the sign, are spoken of as these runs; from three on p is Student's t, with an error that adds what other "
    "patients and what other training runs would change."
)
DIFFERENCES = f"{_RULE} The verdicts are not corrected for their number."
CORRECTED = f"{_RULE} The verdicts of this table are corrected for their number (Holm)."
MCNEMAR = (
    "p: exact McNemar test of the accuracies, which takes cases as independent although several may be of one patient; "
    "not corrected for the number of comparisons; of two training runs the larger, of three or more twice the median."
)
_NORMAL = statistics.NormalDist().inv_cdf(0.975)


def join(parts: Mapping[str, tuple[SplitPredictions, str]]) -> SplitPredictions:
    """Models of several runs over the same cases, under new names.

    A run that was supervised by the last step alone keeps no other labels; the first part's stand in their place.

    Args:
      parts: new name -> predictions and the model's name in them; the first part has all labels.

    Raises:
      BadInput: the runs were not measured on the same cases.
    """
    first = next(iter(parts.values()))[0]
    known = dict(zip(first.facts["case_id"].tolist(), first.predictions.labels, strict=True))

    def complete(split: SplitPredictions) -> SplitPredictions:
        labels = split.predictions.labels
        if not (labels == NOT_ANNOTATED).any():
            return split
        missing = np.full(labels.shape[1], NOT_ANNOTATED, labels.dtype)
        expected = np.stack([known.get(case, missing) for case in split.facts["case_id"].tolist()])
        filled = np.where(labels == NOT_ANNOTATED, expected, labels)
        return dataclasses.replace(split, predictions=dataclasses.replace(split.predictions, labels=filled))

    return join_models({name: (complete(split), model) for name, (split, model) in parts.items()})


def last_step_alone(split: SplitPredictions, chain: Chain) -> tuple[SplitPredictions, Chain]:
    """The same for the last step as the only one."""
    found = split.predictions
    logits = {name: values[:, -1:] for name, values in found.logits.items()}
    predictions = dataclasses.replace(found, labels=found.labels[:, -1:], logits=logits)
    return dataclasses.replace(split, predictions=predictions), Chain(chain.steps[-1:])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models over the same cases.

    Attributes:
      splits: for each seed the models' predictions; the same models and cases in all.
      chain: the steps.
      num_resamples: of every bootstrap.
    """

    splits: Sequence[SplitPredictions]
    chain: Chain
    num_resamples: int = 1000

    @functools.cached_property
    def _intervals(self) -> list[dict[str, ModelIntervals]]:
        return [bootstrap(split, self.chain, num_resamples=self.num_resamples) for split in self.splits]

    @functools.cached_property
    def _differences(self) -> dict[tuple[str, str], list[ModelIntervals]]:
        return {}

    def num_cases(self, step: int) -> int:
        """Annotated cases of a step."""
        return int((self.splits[0].predictions.labels[:, step] != NOT_ANNOTATED).sum())

    def figure(self, model: str, figure: str, step: int | None = None) -> Figure:
        """A figure of a model: of a step, or "mean_accuracy" or "chain_accuracy"."""
        return summarise([_pick(found[model], figure, step) for found in self._intervals])

    def difference(self, first: str, second: str, figure: str, step: int | None = None) -> Figure:
        """The figure of the first model less that of the second, paired."""
        if (first, second) not in self._differences:
            self._differences[first, second] = [
                bootstrap_differences(split, self.chain, first=first, second=second, num_resamples=self.num_resamples)
                for split in self.splits
            ]
        return summarise([_pick(found, figure, step) for found in self._differences[first, second]])

    def verdict(self, first: str, second: str, figure: str, step: int | None = None) -> str:
        """What `verdicts` says of one question, which is then not corrected for the number of others."""
        return self.verdicts([(first, second, figure, step)])[0]

    def verdicts(self, questions: Sequence[tuple[str, str, str, int | None]]) -> list[str]:
        """What `decide` says of the questions of a table together, worded for the number of training runs.

        Args:
          questions: first model, second model, figure, and step or None; is the first model's figure higher?
        """
        runs = {1: " in this run", 2: " in both runs"}.get(len(self.splits), "")
        found = decide([self._evidence(*question) for question in questions])
        return [f"{said}{runs}" if said in (HIGHER, LOWER) else said for said in found]

    def _evidence(self, first: str, second: str, figure: str, step: int | None) -> "Evidence":
        difference = self.difference(first, second, figure, step)
        values = tuple(_pick(found, figure, step).value for found in self._differences[first, second])
        p = self.p_value(first, second, step) if figure == "accuracy" and step is not None else None
        return Evidence(difference, values, self.num_patients(figure, step), p)

    def num_patients(self, figure: str, step: int | None = None) -> int:
        """Annotated patients that a figure rests on: for "mean_accuracy" those of the step that has the fewest."""
        counts = []
        for split in self.splits:
            annotated = split.predictions.labels != NOT_ANNOTATED
            if step is not None:
                parts = [annotated[:, step]]
            elif figure == "mean_accuracy":
                parts = [own for own in annotated.T if own.any()]
            else:
                parts = [annotated.any(axis=1)]
            counts += [count_patients(split.facts["patient_id"][own]) for own in parts]
        return min(counts, default=0)

    def p_value(self, first: str, second: str, step: int) -> float:
        """The p of the exact McNemar test for accuracy at a step; NaN without cases.

        Of two seeds it is the larger, of more twice the median, which holds however much the runs have in common
        (Rüger 1978) and does not grow with their number.
        """
        found = [self._p_value(split, first, second, step) for split in self.splits]
        return max(found) if len(found) < MIN_RUNS else min(1.0, 2 * statistics.median_high(found))

    def _p_value(self, split: SplitPredictions, first: str, second: str, step: int) -> float:
        labels = split.predictions.labels[:, step]
        if (labels == NOT_ANNOTATED).all():
            return math.nan
        answers = {
            model: split.predictions.logits[model][:, step, : self.chain.steps[step].num_answers].argmax(axis=1)
            for model in (first, second)
        }
        return compare_accuracy(labels=labels, first=answers[first], second=answers[second]).exact_p


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of a difference.

    Attributes:
      difference: the mean over the training runs, with its interval by patient.
      values: it in each training run.
      num_patients: annotated patients that it rests on.
      p: of a test that it must pass beside its interval; None where there is none.
    """

    difference: Figure
    values: tuple[float, ...]
    num_patients: int
    p: float | None = None


def decide(found: Sequence[Evidence]) -> list[str]:
    """What may be said of differences, corrected for their number: `HIGHER`, `LOWER`, `NONE_SHOWN` or `TOO_FEW`.

    The rule is that of the tables' note and of docs/tables.md. Those of too few patients are not tested and do not
    count among the others.

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

    The error by patient is told from the interval (Altman and Bland, BMJ 343 (2011), d2304), from its half towards 0
    where that is the wider. It is not told from how many resamples are beyond 0: of 1,000 none may be, which leaves
    nothing to correct. Degrees of freedom are Satterthwaite's. No p is below that of all patients having the sign.
    """
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    besides = 0.0 if found.p is None else found.p
    if low is None or high is None or math.isnan(value + low + high + besides):
        return math.nan
    from scipy import special

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
    """The p values corrected for their number (Holm, Scand. J. Statist. 6 (1979)); NaN stays and does not count.

    >>> [round(p, 3) for p in correct([0.02, 0.01, 0.04, math.nan])]
    [0.04, 0.03, 0.04, nan]
    """
    order = sorted((place for place, p in enumerate(p_values) if not math.isnan(p)), key=lambda place: p_values[place])
    corrected, largest = list(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def summarise(intervals: Sequence[Interval]) -> Figure:
    """One figure of the intervals of all seeds.

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
