"""How far each figure would move with other patients: bootstrap intervals by patient.

Radiographs of one patient resemble each other, so that patients are drawn with replacement, each with all its cases
(cluster bootstrap; Davison and Hinkley 1997, 3.8), and an interval is what lies between two percentiles of the
resampled figures. A figure is computed in each resample as it is on the split: macro averages run over the answers
that occur there. Where an answer is rare some resamples lack it, which `share_incomplete` counts, and a resample in
which a figure is undefined takes no part in its interval, which `Interval.undefined` counts.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.evaluator import ModelMetrics, evaluate
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.resamples import ResampledFigures, resample
from stepcot_jax.evaluation.weighted_metrics import FIGURES
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure and where it would lie with other patients.

    Attributes:
      value: the figure on the split itself; NaN where undefined.
      low: lower end; NaN where no resample or a single patient says anything.
      high: upper end.
      undefined: share of the resamples in which the figure is undefined and which therefore take no part.
    """

    value: float
    low: float
    high: float
    undefined: float = 0.0


@dataclasses.dataclass(frozen=True)
class StepIntervals:
    """Intervals of one step's figures.

    Attributes:
      name: name of the step.
      num_cases: number of annotated cases.
      accuracy: share answered right.
      auc: macro one-vs-rest area under the ROC curve.
      sensitivity: macro recall.
      specificity: macro one-vs-rest specificity.
      f1: macro F1.
      precision: macro precision.
      share_incomplete: share of the resamples that lack an answer which the split has, so that their macro
        averages run over fewer answers than the split's.
    """

    name: str
    num_cases: int
    accuracy: Interval
    auc: Interval
    sensitivity: Interval
    specificity: Interval
    f1: Interval
    precision: Interval
    share_incomplete: float = 0.0


@dataclasses.dataclass(frozen=True)
class ModelIntervals:
    """Intervals of one model's figures, or of the differences between two models'.

    Attributes:
      mean_accuracy: mean of the steps' accuracy, over the steps that have annotated cases.
      chain_accuracy: share of the cases whose annotated steps are all answered right.
      steps: figures of each step, in the chain's order.
    """

    mean_accuracy: Interval
    chain_accuracy: Interval
    steps: tuple[StepIntervals, ...]


def bootstrap(
    split: SplitPredictions, chain: Chain, *, num_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, ModelIntervals]:
    """Percentile intervals of every figure of every model; all models see the same resamples.

    Args:
      split: labels, logits and patients.
      chain: the steps.
      num_resamples: number of resamples, from 1.
      level: share of the resampled figures inside an interval, above 0 and below 1.
      seed: seed of the draws.

    Returns:
      The intervals by the model's name.

    Raises:
      ValueError: the level or the number is outside, or the logits do not fit the chain.
    """
    _check(num_resamples=num_resamples, level=level)
    incomplete, resampled = resample(split, chain, num_resamples=num_resamples, seed=seed)
    found = evaluate(split.predictions, chain)
    return {
        model: _summarise(found[model], None, resampled[model], chain=chain, level=level, incomplete=incomplete)
        for model in found
    }


def bootstrap_differences(
    split: SplitPredictions,
    chain: Chain,
    *,
    first: str,
    second: str,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> ModelIntervals:
    """Intervals of every figure of one model less the same figure of another, both in the same resamples.

    The differences are paired: what makes a resample easy for both models cancels out, so that such an interval is
    narrower than those of the two models suggest. Models of several runs are brought together by
    `prediction_files.join_models`.

    Args:
      split: labels, logits and patients.
      chain: the steps.
      first: name of the model whose figures count.
      second: name of the model whose figures are subtracted.
      num_resamples: number of resamples, from 1.
      level: share of the resampled differences inside an interval, above 0 and below 1.
      seed: seed of the draws.

    Raises:
      BadInput: there is no such model.
      ValueError: the level or the number is outside, or the logits do not fit the chain.
    """
    _check(num_resamples=num_resamples, level=level)
    logits = split.predictions.logits
    for model in (first, second):
        if model not in logits:
            raise BadInput(f"found no model {model!r}, accepted are {', '.join(logits)}")
    pair = dataclasses.replace(
        split,
        predictions=dataclasses.replace(
            split.predictions, logits={model: logits[model] for model in dict.fromkeys((first, second))}
        ),
    )
    incomplete, resampled = resample(pair, chain, num_resamples=num_resamples, seed=seed)
    found = evaluate(pair.predictions, chain)
    difference = resampled[first] - resampled[second]
    return _summarise(found[first], found[second], difference, chain=chain, level=level, incomplete=incomplete)


def bootstrap_difference(
    split: SplitPredictions,
    chain: Chain,
    *,
    first: str,
    second: str,
    figure: str = "mean_accuracy",
    step: str | None = None,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval of one figure of `bootstrap_differences`.

    Args:
      split: labels, logits and patients.
      chain: the steps.
      first: name of the model whose figure counts.
      second: name of the model whose figure is subtracted.
      figure: "mean_accuracy" or "chain_accuracy" without a step, one of `weighted_metrics.FIGURES` with one.
      step: name of the step.
      num_resamples: number of resamples, from 1.
      level: share of the resampled differences inside the interval.
      seed: seed of the draws.

    Raises:
      BadInput: there is no such model, step or figure.
    """
    names = [own.name for own in chain.steps]
    if step is not None and step not in names:
        raise BadInput(f"found no step {step!r}, accepted are {', '.join(names)}")
    accepted = ("mean_accuracy", "chain_accuracy") if step is None else FIGURES
    if figure not in accepted:
        raise BadInput(f"found no figure {figure!r} of {step or 'the chain'}, accepted are {', '.join(accepted)}")
    found = bootstrap_differences(
        split, chain, first=first, second=second, num_resamples=num_resamples, level=level, seed=seed
    )
    return getattr(found if step is None else found.steps[names.index(step)], figure)


def is_difference(interval: Interval) -> bool:
    """Whether a difference excludes 0, on either side.

    >>> is_difference(Interval(-0.02, -0.03, -0.01)), is_difference(Interval(0.1, 0.0, 0.2))
    (True, False)
    """
    return interval.low > 0 or interval.high < 0


def _check(*, num_resamples: int, level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}, accepted is a share above 0 and below 1")
    if num_resamples < 1:
        raise ValueError(f"num_resamples: found {num_resamples}, accepted is 1 or more")


def _summarise(
    found: ModelMetrics,
    subtracted: ModelMetrics | None,
    resampled: ResampledFigures,
    *,
    chain: Chain,
    level: float,
    incomplete: npt.NDArray[np.float64],
) -> ModelIntervals:
    def summarise(name: str, values: npt.NDArray[np.float64], position: int | None = None) -> Interval:
        value = getattr(found if position is None else found.steps[position], name)
        if subtracted is not None:
            value -= getattr(subtracted if position is None else subtracted.steps[position], name)
        return percentiles(value, values, level=level)

    return ModelIntervals(
        mean_accuracy=summarise("mean_accuracy", resampled.mean_accuracy),
        chain_accuracy=summarise("chain_accuracy", resampled.chain_accuracy),
        steps=tuple(
            StepIntervals(
                name=step.name,
                num_cases=found.steps[position].num_cases,
                **{
                    name: summarise(name, resampled.steps[:, position, column], position)
                    for column, name in enumerate(FIGURES)
                },
                share_incomplete=float(incomplete[position]),
            )
            for position, step in enumerate(chain.steps)
        ),
    )


def percentiles(value: float, resampled: npt.NDArray[np.float64], *, level: float) -> Interval:
    """The interval of a figure; resamples in which it is undefined take no part and are counted."""
    defined = resampled[~np.isnan(resampled)]
    undefined = 1 - len(defined) / len(resampled)
    if not len(defined) or math.isnan(value):
        return Interval(value, math.nan, math.nan, undefined)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), undefined)
