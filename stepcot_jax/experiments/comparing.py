"""Models side by side over the same cases, seed by seed: figures with intervals, and differences that are honest.

With several seeds a figure is the mean over them, its deviation is over them, and the ends of its interval are the
means of the seeds' ends: where a typical seed's figure would lie with other patients. That is wider than an interval of
the mean would be.
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
from stepcot_jax.experiments.writing import Figure

HIGHER, LOWER, NONE_SHOWN = "higher", "lower", "no difference shown"

INTERVALS = "In brackets: 95 % intervals from a bootstrap by patient; ±: sample deviation over the seeds."
DIFFERENCES = (
    "A difference is called higher or lower only if its "
    "paired interval excludes 0 in the mean over the seeds and its sign is the same with every seed. p: exact McNemar "
    "test, not corrected for the number of comparisons; with several seeds the largest."
)


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
        """Whether the first model's figure is `HIGHER`, `LOWER`, or `NONE_SHOWN`."""
        difference = self.difference(first, second, figure, step)
        values = [_pick(found, figure, step).value for found in self._differences[first, second]]
        return decide(difference, values)

    def p_value(self, first: str, second: str, step: int) -> float:
        """The largest p over the seeds of the exact McNemar test for accuracy at a step; NaN without cases."""
        return max(self._p_value(split, first, second, step) for split in self.splits)

    def _p_value(self, split: SplitPredictions, first: str, second: str, step: int) -> float:
        if not self.num_cases(step):
            return math.nan
        answers = {
            model: split.predictions.logits[model][:, step, : self.chain.steps[step].num_answers].argmax(axis=1)
            for model in (first, second)
        }
        labels = split.predictions.labels[:, step]
        return compare_accuracy(labels=labels, first=answers[first], second=answers[second]).exact_p


def decide(difference: Figure, values: Sequence[float]) -> str:
    """What a difference with its interval, and its value with each seed, allow to be said.

    >>> decide(Figure(0.02, 0.01, 0.03), [0.02]), decide(Figure(0.02, -0.01, 0.05), [0.02])
    ('higher', 'no difference shown')
    >>> decide(Figure(0.02, 0.01, 0.03), [0.05, -0.01])
    'no difference shown'
    """
    if difference.low is None or difference.high is None:
        return NONE_SHOWN
    if difference.low > 0 and min(values) > 0:
        return HIGHER
    if difference.high < 0 and max(values) < 0:
        return LOWER
    return NONE_SHOWN


def summarise(intervals: Sequence[Interval]) -> Figure:
    """One figure of the intervals of all seeds.

    >>> summarise([Interval(0.5, 0.4, 0.6)])
    Figure(value=0.5, low=0.4, high=0.6, deviation=None)
    """
    values, lows, highs = ([getattr(interval, end) for interval in intervals] for end in ("value", "low", "high"))
    deviation = statistics.stdev(values) if len(values) > 1 and not any(map(math.isnan, values)) else None
    return Figure(math.fsum(values) / len(values), _mean(lows), _mean(highs), deviation)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _pick(found: ModelIntervals, figure: str, step: int | None) -> Interval:
    interval: Interval = getattr(found if step is None else found.steps[step], figure)
    return interval
