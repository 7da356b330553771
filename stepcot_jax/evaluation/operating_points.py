"""Operating points: for each answer, the probability from which a finding is called, chosen on validation cases.

An answer is taken against all others of its step; without one, or with nothing else, in validation it has no point.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, calibrated_probabilities
from stepcot_jax.evaluation.predictions import SplitPredictions, ValidationPredictions
from stepcot_jax.evaluation.statistics import (
    LEVEL,
    Weights,
    count_once,
    divide,
    name_patients,
    percentiles,
    resample,
    widen_agreement,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.ranges import Interval, Positive, PositiveShare, Whole

RuleName = Literal["youden", "sensitivity", "specificity", "cost"]

FIGURES = ("sensitivity", "specificity", "ppv", "npv")

_SEED = 0
_ROUNDING = 1e-9

Finding = tuple[str, str, str]  # Names of model, step and answer


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a threshold is chosen; of equally good ones the highest is taken, with "specificity" the lowest."""

    name: RuleName = "youden"
    target: PositiveShare = 0.9  # of "sensitivity" and "specificity", 0..1
    miss_cost: Positive = 1.0  # what a missed case costs, in false alarms

    def describe(self) -> str:
        """Return the rule in words."""
        return {
            "youden": "highest sensitivity + specificity on validation",
            "sensitivity": f"sensitivity of {100 * self.target:g} % or more on validation",
            "specificity": f"specificity of {100 * self.target:g} % or more on validation",
            "cost": f"lowest cost on validation, a missed case counting as {self.miss_cost:g} false alarms",
        }[self.name]

    def choose(self, levels: "Levels") -> npt.NDArray[np.float64]:
        """Return the threshold [resample]; infinite if no case should be called, NaN without cases of both kinds."""
        hits, alarms = levels.hits, levels.alarms
        num_positive, num_negative = hits[:, -1:], alarms[:, -1:]
        if self.name == "youden":
            # Times both numbers of cases: whole numbers, of which equal ones are equal.
            level = (hits * num_negative - alarms * num_positive).argmax(axis=1)
        elif self.name == "cost":
            level = (self.miss_cost * (num_positive - hits) + alarms).argmin(axis=1)
        elif self.name == "sensitivity":
            level = (hits >= self.target * num_positive - _ROUNDING).argmax(axis=1)
        else:
            last = (alarms <= (1 - self.target) * num_negative + _ROUNDING).sum(axis=1, keepdims=True) - 1
            called = hits + alarms  # levels of cases that do not count add nothing
            level = (called >= np.take_along_axis(called, last, axis=1)).argmax(axis=1)
        both = (num_positive > 0) & (num_negative > 0)
        return np.where(both[:, 0], levels.thresholds[level], np.nan)


@dataclasses.dataclass(frozen=True)
class Levels:
    """Weights of the cases at or above each threshold."""

    thresholds: npt.NDArray[np.float64]  # [level], falling: infinity, then the distinct scores
    hits: npt.NDArray[np.float64]  # [resample, level], weight of the positive cases at or above the threshold
    alarms: npt.NDArray[np.float64]  # [resample, level], weight of the negative ones


def count_levels(weights: Weights, *, scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> Levels:
    """Count the positive and negative cases at or above every threshold that a score gives, infinity first."""
    if (np.diff(scores) > 0).any():
        order = np.argsort(-scores, kind="stable")
        weights, scores, positive = weights[:, order], scores[order], positive[order]
    last_of_level = np.flatnonzero(np.diff(scores, append=-np.inf))
    hits, called = np.zeros((2, len(weights), len(last_of_level) + 1))
    hits[:, 1:] = np.cumsum(weights * positive, axis=1)[:, last_of_level]
    called[:, 1:] = np.cumsum(weights, axis=1)[:, last_of_level]
    return Levels(np.concatenate([[np.inf], scores[last_of_level]]), hits, called - hits)


def figures_at(
    weights: Weights, *, scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_], threshold: float
) -> npt.NDArray[np.float64]:
    """Compute the figures [resample, figure] of a threshold in the order of `FIGURES`; NaN where undefined."""
    above = scores >= threshold
    cells = np.stack([above & positive, above & ~positive, ~above & positive, ~above & ~positive], axis=1)
    hits, alarms, misses, rest = (weights @ cells.astype(np.float64)).T
    pairs = ((hits, misses), (rest, alarms), (hits, alarms), (rest, misses))
    return np.stack([divide(part, part + other) for part, other in pairs], axis=1)


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """The operating point of one answer: chosen on validation cases, its figures are of the test cases."""

    threshold: Interval  # fitted probability, over validation samples; infinite if none should be called
    validation: tuple[Whole, Whole]  # number of validation cases with and without the answer
    test: tuple[Whole, Whole]  # the same of the test cases
    sensitivity: Interval  # share of the test cases with the answer that lie at or above the threshold
    specificity: Interval  # share of the test cases without it that lie below
    ppv: Interval  # share of the test cases at or above the threshold that have the answer
    npv: Interval  # share of those below that do not have it


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Thresholds chosen on the validation split."""

    values: Mapping[Finding, Interval]  # with intervals over validation samples
    validation: Mapping[Finding, tuple[int, int]]  # number of validation cases with and without the answer


def choose_thresholds(
    validation: ValidationPredictions, chain: Chain, *, calibration: Calibration, rule: Rule, num_resamples: int
) -> Thresholds:
    """Choose thresholds for every model on the validation split."""
    found = _list_findings(validation, chain, calibration)
    contrasts = {finding: contrast for finding, contrast in found if all(contrast.counts)}

    def choose(weights: Weights) -> dict[Finding, npt.NDArray]:
        return {finding: rule.choose(contrast.count(weights)) for finding, contrast in contrasts.items()}

    chosen = choose(count_once(len(validation.predictions.labels)))
    spread = _resample(choose, validation, num_resamples)
    return Thresholds(
        {finding: _interval(float(values[0]), spread.get(finding)) for finding, values in chosen.items()},
        {finding: contrast.counts for finding, contrast in contrasts.items()},
    )


def measure_thresholds(
    thresholds: Thresholds, test: SplitPredictions, chain: Chain, *, calibration: Calibration, num_resamples: int
) -> dict[Finding, OperatingPoint]:
    """Return the operating points: the thresholds with their figures on the test split."""
    of_test = dict(_list_findings(test, chain, calibration))

    def measure(weights: Weights) -> dict[Finding, npt.NDArray]:
        return {finding: of_test[finding].measure(weights, at.value) for finding, at in thresholds.values.items()}

    measured, spreads = measure(count_once(len(test.predictions.labels))), _resample(measure, test, num_resamples)
    _, patients = np.unique(name_patients(test.facts["patient_id"]), return_inverse=True)

    def intervals(finding: Finding, at: float) -> Iterator[Interval]:
        for column, number in enumerate(of_test[finding].count_patients(patients, at)):
            resampled = spreads[finding][:, column] if spreads else None
            yield widen_agreement(_interval(float(measured[finding][0, column]), resampled), num_patients=number)

    return {
        finding: OperatingPoint(
            at, thresholds.validation[finding], of_test[finding].counts, *intervals(finding, at.value)
        )
        for finding, at in thresholds.values.items()
    }


@dataclasses.dataclass(frozen=True)
class _Contrast:
    """One answer against the others of its step: the annotated cases with their scores."""

    cases: npt.NDArray[np.intp]
    scores: npt.NDArray[np.float64]
    positive: npt.NDArray[np.bool_]

    @property
    def counts(self) -> tuple[int, int]:
        """Number of cases with and without the answer."""
        return int(self.positive.sum()), int((~self.positive).sum())

    def count(self, weights: Weights) -> Levels:
        """Return the levels for weights of all cases of the split."""
        return count_levels(weights[:, self.cases], scores=self.scores, positive=self.positive)

    def measure(self, weights: Weights, threshold: float) -> npt.NDArray[np.float64]:
        """Return the figures of a threshold for weights of all cases of the split."""
        return figures_at(weights[:, self.cases], scores=self.scores, positive=self.positive, threshold=threshold)

    def count_patients(self, patients: npt.NDArray[np.intp], threshold: float) -> list[int]:
        """Return the number of patients behind each figure of `FIGURES`; `patients` has the patient of each case."""
        above, scored = self.scores >= threshold, patients[self.cases]
        return [len(np.unique(scored[counted])) for counted in (self.positive, ~self.positive, above, ~above)]


def _list_findings(
    split: SplitPredictions, chain: Chain, calibration: Calibration
) -> Iterator[tuple[Finding, _Contrast]]:
    for model, logits in split.predictions.logits.items():
        probabilities = calibrated_probabilities(logits, model, calibration, chain)
        for position, step in enumerate(chain.steps):
            labels = split.predictions.labels[:, position]
            cases = np.flatnonzero(labels != NOT_ANNOTATED)
            for answer, option in enumerate(step.options):
                scores = probabilities[cases, position, answer]
                order = np.argsort(-scores, kind="stable")  # once, not in each block of resamples
                contrast = _Contrast(cases[order], scores[order], labels[cases[order]] == answer)
                yield (model, step.name, option), contrast


def _resample(
    compute: Callable[[Weights], dict[Finding, npt.NDArray]], split: SplitPredictions, num_resamples: int
) -> dict[Finding, npt.NDArray]:
    if not num_resamples:
        return {}
    return resample(compute, split.facts["patient_id"], num_resamples=num_resamples, seed=_SEED)


def _interval(value: float, resampled: npt.NDArray[np.float64] | None) -> Interval:
    """Return the interval of a figure; without ends where there are no resamples."""
    if resampled is None:
        return Interval(value)
    defined = resampled[~np.isnan(resampled)]
    if not np.isinf(defined).any():
        return percentiles(value, resampled)
    # A threshold above every score is infinite: ends are resampled values, not means of two.
    ends = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="higher")
    return Interval(value, float(ends[0]), float(ends[1]), undefined=1 - len(defined) / len(resampled))


@dataclasses.dataclass(frozen=True)
class OperatingPoints:
    """The operating points of a run, and the rule that chose them."""

    rule: Rule  # the rule that chose them
    models: Mapping[str, Mapping[str, Mapping[str, OperatingPoint]]]  # by model, step and answer

    @classmethod
    def of_findings(cls, rule: Rule, points: Mapping[Finding, OperatingPoint]) -> "OperatingPoints":
        """Return the points by model, step and answer."""
        models: dict[str, dict[str, dict[str, OperatingPoint]]] = {}
        for (model, step, answer), point in points.items():
            models.setdefault(model, {}).setdefault(step, {})[answer] = point
        return cls(rule, models)

    @functools.cached_property
    def points(self) -> Mapping[Finding, OperatingPoint]:
        """The points by finding."""
        return {
            (model, step, answer): point
            for model, steps in self.models.items()
            for step, answers in steps.items()
            for answer, point in answers.items()
        }

    def of_step(self, model: str, step: str) -> Mapping[str, OperatingPoint]:
        """Return the points of a step's answers that have one, by answer."""
        return self.models.get(model, {}).get(step, {})


def read_points(path: str | os.PathLike[str], chain: Chain) -> OperatingPoints:
    """Read the operating points that a run saved."""
    points = load(path, OperatingPoints)
    known = {step.name: step.options for step in chain.steps}
    for model, step, answer in points.points:
        if answer not in known.get(step, ()):
            raise BadInput(f"{path}: {answer!r} at {step!r} is no answer of this chain ({model})")
    return points
