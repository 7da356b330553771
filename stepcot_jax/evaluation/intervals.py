"""Bootstrap intervals by patient for every figure of a model.

Radiographs of one patient resemble each other. Patients are therefore drawn with replacement, each with all their
cases (cluster bootstrap; Davison and Hinkley 1997, 3.8), and an interval lies between two percentiles of the resampled
figures. Each resample is treated like the split itself: macro averages run over the answers that occur in it. Where an
answer is rare some resamples lack it, which `share_incomplete` counts. A resample in which a figure is undefined does
not count for its interval, which `Interval.undefined` counts.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.evaluation.metrics import FIGURES, answer_accuracy, mean_over_steps, step_figures
from stepcot_jax.evaluation.predictions import SplitPredictions, own_probabilities
from stepcot_jax.evaluation.resamples import Weights, count_once, resample
from stepcot_jax.host.errors import BadInput

Figures = dict[tuple[str, str], npt.NDArray[np.float64]]
"""By model and name: "mean_accuracy" [resample], "chain_accuracy" [resample], "steps" [resample, step, figure].

With the model "" there is "incomplete" [resample, step]: 1 where a resample lacks an answer of the split.
"""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A figure with its interval.

    Attributes:
      value: the figure on the split itself; NaN where undefined.
      low: lower end; NaN without resamples in which the figure is defined, and with a single patient.
      undefined: share of the resamples in which the figure is undefined; they do not count.
    """

    value: float
    low: float
    high: float
    undefined: float = 0.0


@dataclasses.dataclass(frozen=True)
class StepIntervals:
    """Intervals of one step's figures.

    Attributes:
      auc: macro one-vs-rest area under the ROC curve.
      share_incomplete: share of the resamples that lack an answer of the split, so that their macro averages run
        over fewer answers.
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
    """Intervals of one model's figures, or of the differences between two models.

    Attributes:
      mean_accuracy: mean of the steps' accuracy, over the steps whose annotated cases have two or more answers.
      chain_accuracy: share of the cases whose annotated steps are all answered correctly.
      steps: figures of each step, in the chain's order.
    """

    mean_accuracy: Interval
    chain_accuracy: Interval
    steps: tuple[StepIntervals, ...]


def bootstrap(
    split: SplitPredictions,
    chain: Chain,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    left_out: npt.NDArray[np.bool_] | None = None,
) -> dict[str, ModelIntervals]:
    """Compute percentile intervals of every figure of every model, in the same resamples.

    Args:
      left_out: [step], steps that means over steps leave out; by default those with one answer (`find_one_answer`).
    """
    found = _resample_models(split, chain, num_resamples=num_resamples, level=level, seed=seed, left_out=left_out)
    return {model: _summarise(*found, (model,), split, chain, level=level) for model in split.predictions.logits}


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
    """Compute intervals of every figure of one model less the same figure of another, in the same resamples.

    The differences are paired: what makes a resample easy for both models cancels out, so that such an interval is
    narrower than those of the two models suggest. `prediction_files.join_models` joins models of several runs.
    """
    logits = split.predictions.logits
    for model in (first, second):
        if model not in logits:
            raise BadInput(f"model {model!r} is not one of {', '.join(logits)}")
    pair = {model: logits[model] for model in dict.fromkeys((first, second))}
    split = dataclasses.replace(split, predictions=dataclasses.replace(split.predictions, logits=pair))
    found = _resample_models(split, chain, num_resamples=num_resamples, level=level, seed=seed)
    return _summarise(*found, (first, second), split, chain, level=level)


def percentiles(value: float, resampled: npt.NDArray[np.float64], *, level: float) -> Interval:
    """Return the interval of a figure; resamples in which it is undefined are left out and counted."""
    defined = resampled[~np.isnan(resampled)]
    undefined = 1 - len(defined) / len(resampled)
    if not len(defined) or math.isnan(value):
        return Interval(value, math.nan, math.nan, undefined)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), undefined)


def widen_agreement(found: Interval, *, num_patients: int, level: float) -> Interval:
    """Return the exact interval of Clopper and Pearson for a share of 0 or 1, of which all resamples are alike.

    Args:
      found: of a share, from a bootstrap; any other share, and one without ends, is returned as it is.

    >>> round(widen_agreement(Interval(1.0, 1.0, 1.0), num_patients=17, level=0.95).low, 3)
    0.805
    """
    if found.value not in (0, 1) or math.isnan(found.low + found.high):
        return found
    margin = 1 - ((1 - level) / 2) ** (1 / num_patients)
    ends = {"high": margin} if found.value == 0 else {"low": 1 - margin}
    return dataclasses.replace(found, **ends)


def prepare_metrics(
    split: SplitPredictions, chain: Chain, *, left_out: npt.NDArray[np.bool_] | None = None
) -> Callable[[Weights], Figures]:
    """Return a function from weights [resample, case] to every model's figures in each resample."""
    labels = split.predictions.labels
    left_out = find_one_answer(labels) if left_out is None else left_out
    probabilities = {
        model: own_probabilities(logits, chain=chain, model=model) for model, logits in split.predictions.logits.items()
    }
    occurring = [truth[:, None] == np.unique(truth[truth != NOT_ANNOTATED]) for truth in labels.T]

    def compute(weights: Weights) -> Figures:
        drawn = weights.any(axis=1)
        lacking = [drawn & (weights @ own.astype(np.float64) == 0).any(axis=1) for own in occurring]
        found = {("", "incomplete"): np.stack(lacking, axis=1).astype(np.float64)}
        for model, steps in probabilities.items():
            answers = np.stack([own.argmax(axis=1) for own in steps], axis=1)
            accuracies, found[model, "chain_accuracy"] = answer_accuracy(weights, answers=answers, labels=labels)
            found[model, "mean_accuracy"] = mean_over_steps(accuracies, left_out=left_out)
            figures = [
                step_figures(weights, probabilities=own, labels=truth)
                for own, truth in zip(steps, labels.T, strict=True)
            ]
            found[model, "steps"] = np.stack(figures, axis=1)
        return found

    return compute


def _resample_models(
    split: SplitPredictions,
    chain: Chain,
    *,
    num_resamples: int,
    level: float,
    seed: int,
    left_out: npt.NDArray[np.bool_] | None = None,
) -> tuple[Figures, Figures]:
    """Figures of the split itself, and in each resample."""
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1; got {level}")
    compute = prepare_metrics(split, chain, left_out=left_out)
    resampled = resample(compute, split.facts["patient_id"], num_resamples=num_resamples, seed=seed)
    return compute(count_once(len(split.predictions.labels))), resampled


def _summarise(
    values: Figures, resampled: Figures, models: tuple[str, ...], split: SplitPredictions, chain: Chain, *, level: float
) -> ModelIntervals:
    """Intervals of a model's figures or, of two models, of their differences."""

    def choose(figures: Figures, name: str) -> npt.NDArray[np.float64]:
        first, *others = (figures[model, name] for model in models)
        return first - others[0] if others else first

    mean, whole = (
        percentiles(float(choose(values, name)[0]), choose(resampled, name), level=level)
        for name in ("mean_accuracy", "chain_accuracy")
    )
    step_values, step_resampled = choose(values, "steps")[0], choose(resampled, "steps")
    num_cases = (split.predictions.labels != NOT_ANNOTATED).sum(axis=0)
    steps = tuple(
        StepIntervals(
            name=step.name,
            num_cases=int(num_cases[place]),
            **{
                name: percentiles(float(step_values[place, column]), step_resampled[:, place, column], level=level)
                for column, name in enumerate(FIGURES)
            },
            share_incomplete=float(resampled["", "incomplete"][:, place].mean()),
        )
        for place, step in enumerate(chain.steps)
    )
    return ModelIntervals(mean, whole, steps)


# Paired comparisons of two models on the same cases: one bootstrap difference, and McNemar's test.
#
# McNemar's test takes cases as independent. Where patients have several radiographs they are not: the test rejects too
# often, and the bootstrap, which goes by patient, is the one to believe. Neither looks beyond one trained model.


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
    """Compute the interval of one figure of `intervals.bootstrap_differences`."""
    names = [own.name for own in chain.steps]
    if step is not None and step not in names:
        raise BadInput(f"step {step!r} is not one of {', '.join(names)}")
    known = ("mean_accuracy", "chain_accuracy") if step is None else FIGURES
    if figure not in known:
        raise BadInput(f"figure {figure!r} of {step or 'the chain'} is not one of {', '.join(known)}")
    found = bootstrap_differences(
        split, chain, first=first, second=second, num_resamples=num_resamples, level=level, seed=seed
    )
    return getattr(found if step is None else found.steps[names.index(step)], figure)


def is_difference(interval: Interval) -> bool:
    """Return whether the interval of a difference excludes 0.

    >>> is_difference(Interval(-0.02, -0.03, -0.01)), is_difference(Interval(0.1, 0.0, 0.2))
    (True, False)
    """
    return interval.low > 0 or interval.high < 0


@dataclasses.dataclass(frozen=True)
class McNemar:
    """McNemar's test: among the cases that one model alone answers correctly, does each model have half?

    Attributes:
      only_first: number of cases that only the first model answers correctly.
      only_second: number of cases that only the second model answers correctly.
      chi2: (|only_first - only_second| - 1)^2 / (only_first + only_second), corrected for continuity; NaN where the
        models agree in every case.
      chi2_p: its p on one degree of freedom; NaN where `chi2` is.
    """

    num_cases: int
    only_first: int
    only_second: int
    exact_p: float
    chi2: float
    chi2_p: float


def compare_accuracy(*, labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> McNemar:
    """Run McNemar's test (McNemar 1947; continuity correction of Edwards 1948) on the answers of two models.

    >>> test = compare_accuracy(labels=[0, 1, 1, 0, -100], first=[0, 1, 1, 0, 0], second=[1, 1, 0, 1, 1])
    >>> test.num_cases, test.only_first, test.only_second, test.exact_p
    (4, 3, 0, 0.25)
    """
    from scipy import stats  # takes half a second to import

    truth, answers, others = np.asarray(labels), np.asarray(first), np.asarray(second)
    if truth.ndim != 1 or answers.shape != truth.shape or others.shape != truth.shape:
        raise ValueError(
            "labels, first and second must have one shape [case]; "
            f"got {truth.shape}, {answers.shape} and {others.shape}"
        )
    annotated = truth != NOT_ANNOTATED
    correct, other_correct = (answers == truth)[annotated], (others == truth)[annotated]
    only_first, only_second = int((correct & ~other_correct).sum()), int((~correct & other_correct).sum())
    uneven = only_first + only_second
    chi2 = max(abs(only_first - only_second) - 1, 0) ** 2 / uneven if uneven else math.nan
    return McNemar(
        num_cases=len(correct),
        only_first=only_first,
        only_second=only_second,
        exact_p=float(stats.binomtest(only_first, uneven).pvalue) if uneven else 1.0,
        chi2=chi2,
        chi2_p=float(stats.chi2.sf(chi2, 1)),
    )
