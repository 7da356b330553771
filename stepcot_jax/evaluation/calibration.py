"""Temperature scaling per step, and conformal answer sets.

Both are fitted on the validation split. Temperature scaling divides the logits of a step by one number, which changes
how confident the answers are but never which one is the most probable (Guo et al. 2017). The answer sets are
split-conformal (Vovk et al. 2005; Sadinle et al. 2019): over cases exchangeable with the validation cases, the set
holds the true answer with probability `coverage` or more. The guarantee weakens because these cases also chose the
checkpoint, share patients, and are not exchangeable with another hospital's: check the coverage on the test split.

That probability is an average over validation splits too. Given one split of n cases, with the k-th smallest score as
the threshold, the coverage over new cases is a draw from Beta(k, n + 1 - k) (Vovk 2012; Angelopoulos and Bates 2023);
equal scores and sets that are never empty can only raise it. `Calibration.coverage_range` returns its 95 % range, which
is too narrow where patients have several cases, and says nothing of cases from elsewhere.

One threshold for a step guarantees the average over all cases only: a rare answer may be held far less often, since the
frequent ones make up for it. Thresholds by answer guarantee each answer its coverage (Mondrian or class-conditional
conformal prediction: Vovk 2012; Ding et al. 2023), with larger sets. An answer with too few validation cases for the
coverage (fewer than 9 at 90 %) has no threshold and is in every set.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, softmax

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.distributions import own_logits
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.host.errors import BadInput

_UNFITTED = "temperature 1"
MIN_CASES = 20
"""With fewer annotated cases the temperature stays 1."""
CoverageBy = Literal["step", "answer"]

_Each = TypeVar("_Each")

_LOG_BOUND = math.log(100)  # temperatures of 0.01 to 100


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Temperatures and conformal thresholds of each model and step.

    Attributes:
      coverage: share of the cases whose answer set holds the true answer, in 0..1, of each step separately; with
        `answer_thresholds` also of each true answer separately.
      temperatures: by model name, the divisor of each step's logits.
      thresholds: by model name, for each step the largest 1 - probability of an answer in the set; infinite where
        there are too few cases for the coverage, so that every answer is in the set.
      notes: by model name, for each step what could not be fitted and why; "" if nothing.
      answer_thresholds: by model name, for each step one threshold for each answer, used in place of `thresholds`;
        empty with coverage by step.
      num_cases: by model name, for each step the annotated validation cases of each true answer; empty in files that
        do not have it.
    """

    coverage: float
    temperatures: Mapping[str, tuple[float, ...]]
    thresholds: Mapping[str, tuple[float, ...]]
    notes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    answer_thresholds: Mapping[str, tuple[tuple[float, ...], ...]] = dataclasses.field(default_factory=dict)
    num_cases: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)

    @property
    def coverage_by(self) -> CoverageBy:
        """Whether the coverage is that of a step's cases together, or of the cases of each answer."""
        return "answer" if self.answer_thresholds else "step"

    def steps_without_temperature(self, model: str) -> tuple[int, ...]:
        """Return the positions of steps whose temperature could not be fitted and is 1."""
        return tuple(step for step, note in enumerate(self.notes.get(model, ())) if _UNFITTED in note)

    def coverage_range(self, model: str, step: int) -> tuple[float, float] | None:
        """Return the range that holds a step's coverage over new cases in 95 % of validation splits of this size.

        With coverage by answer it is the range of the answer with the fewest cases among those with a threshold. None
        where every answer is in the set, or the number of cases is unknown.
        """
        num_cases = self._num_fitted(model, step)
        return spread_of_coverage(num_cases, coverage=self.coverage) if num_cases else None

    def describe_coverage(self, model: str = "") -> str:
        """Return what the answer sets aim to hold, in words, with the widest range of a model's steps.

        >>> Calibration(0.9, {}, {}).describe_coverage()
        '90 % of all cases together, not of each answer'
        >>> Calibration(0.9, {}, {}, num_cases={"teacher": ((300, 150),)}).describe_coverage("teacher")
        '90 % of all cases together, not of each answer (95 % range with 450 validation cases: 87.1 to 92.6 %)'
        """
        whom = "the cases of each answer" if self.coverage_by == "answer" else "all cases together, not of each answer"
        text = f"{100 * self.coverage:g} % of {whom}"
        steps = range(len(self.num_cases.get(model, ())))
        fewest = min(filter(None, (self._num_fitted(model, step) for step in steps)), default=0)
        spread = spread_of_coverage(fewest, coverage=self.coverage)
        if spread is None:
            return text
        low, high = (100 * end for end in spread)
        return f"{text} (95 % range with {fewest} validation cases: {low:.1f} to {high:.1f} %)"

    def _num_fitted(self, model: str, step: int) -> int:
        """Return the cases behind a step's threshold, the fewest of its thresholds by answer; 0 for none."""
        if model not in self.num_cases:
            return 0
        counts = self.num_cases[model][step]
        fitted = counts if self.coverage_by == "answer" else (sum(counts),)
        return min((count for count in fitted if _rank(count, self.coverage) <= count), default=0)


def fit_calibration(
    val: Predictions, chain: Chain, *, coverage: float = 0.9, coverage_by: CoverageBy = "step"
) -> Calibration:
    """Fit temperatures and thresholds of every model on the validation split.

    Args:
      val: labels and logits; a step's unannotated cases do not count.
      chain: the steps.
      coverage: wanted share of cases whose answer set holds the true answer, above 0 and below 1.
      coverage_by: "step" fits one threshold for a step, "answer" also one for each of its answers.

    Raises:
      ValueError: the coverage is out of range, or the logits do not fit the chain.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be above 0 and below 1; got {coverage}")
    temperatures, thresholds, notes, answer_thresholds = {}, {}, {}, {}
    counts = tuple(
        tuple(int((labels == answer).sum()) for answer in range(step.num_answers))
        for step, labels in zip(chain.steps, val.labels.T, strict=True)
    )
    for model, logits in val.logits.items():
        own = own_logits(logits, chain=chain, model=model)
        fitted = [_fit_step(*each, coverage=coverage) for each in zip(own, val.labels.T, strict=True)]
        temperatures[model], thresholds[model], notes[model] = zip(*fitted, strict=True)
        if coverage_by == "answer":
            steps = zip(chain.steps, own, val.labels.T, temperatures[model], notes[model], strict=True)
            by_answer = [_fit_answers(*each, coverage=coverage) for each in steps]
            answer_thresholds[model], notes[model] = zip(*by_answer, strict=True)
    num_cases = dict.fromkeys(val.logits, counts)
    return Calibration(coverage, temperatures, thresholds, notes, answer_thresholds, num_cases)


def fit_temperature(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]) -> tuple[float, str]:
    """Fit one temperature by maximum likelihood.

    The negative log-likelihood is convex in 1 / temperature: the fit is the root of its slope.

    Args:
      logits: [case, answer] of the annotated cases.
      labels: [case], the true answers.

    Returns:
      The temperature, 0.01 to 100, and "" or why it is 1 or at a bound.
    """
    if len(labels) < MIN_CASES:
        return 1.0, f"{len(labels)} annotated cases, fewer than {MIN_CASES}: {_UNFITTED}"
    if (labels == labels[0]).all():
        return 1.0, f"every case has the same answer: {_UNFITTED}"
    if (logits.argmax(axis=1) == labels).all():
        return 1.0, f"every case is answered correctly, so that no temperature is best: {_UNFITTED}"
    true_logits = logits[np.arange(len(labels)), labels]

    def slope(log_sharpness: float) -> float:
        expected = (softmax(math.exp(log_sharpness) * logits, axis=1) * logits).sum(axis=1)
        return float((expected - true_logits).mean())

    if slope(-_LOG_BOUND) >= 0:
        return math.exp(_LOG_BOUND), "no better than guessing: temperature at its upper bound"
    if slope(_LOG_BOUND) <= 0:
        return math.exp(-_LOG_BOUND), "temperature at its lower bound"
    from scipy.optimize import brentq  # takes a quarter of a second to import

    return math.exp(-brentq(slope, -_LOG_BOUND, _LOG_BOUND, xtol=1e-12)), ""


def conformal_threshold(scores: npt.NDArray[np.float64], *, coverage: float) -> float:
    """Return the score that a new case's true answer exceeds with probability 1 - coverage at most.

    Args:
      scores: [case], 1 - probability of the true answer.
      coverage: wanted share, above 0 and below 1.

    Returns:
      The ceil((n + 1) * coverage)-th smallest of the n scores; infinite where there are fewer.

    >>> conformal_threshold(np.arange(19) / 19, coverage=0.9) == 17 / 19
    True
    """
    rank = _rank(len(scores), coverage)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def spread_of_coverage(num_cases: int, *, coverage: float) -> tuple[float, float] | None:
    """Return the 2.5th and 97.5th percentile of the coverage over new cases, given so many validation cases.

    None where they are too few for a threshold, so that every set holds every answer.

    >>> [round(end, 3) for end in spread_of_coverage(100, coverage=0.9)]
    [0.836, 0.951]
    """
    rank = _rank(num_cases, coverage)
    if rank > num_cases:
        return None
    low, high = betaincinv(rank, num_cases + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


def _rank(num_cases: int, coverage: float) -> int:
    # Rounding must not ask for one case more than (n + 1) * coverage does.
    return math.ceil((num_cases + 1) * coverage - 1e-9)


def calibrated_probabilities(
    logits: npt.NDArray[np.floating], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.float64]:
    """Compute distributions after temperature scaling.

    Args:
      logits: [case, step, answer], padded.
      model: name of the model.
      calibration: its temperatures.
      chain: the steps.

    Returns:
      [case, step, answer], each in 0..1; 0 beyond a step's own answers.

    Raises:
      BadInput: the calibration lacks the model.
    """
    temperatures = _of_model(calibration.temperatures, model)
    probabilities = np.zeros(logits.shape)
    for position, own in enumerate(own_logits(logits, chain=chain, model=model)):
        probabilities[:, position, : own.shape[1]] = softmax(own / temperatures[position], axis=1)
    return probabilities


def answer_sets(
    probabilities: npt.NDArray[np.float64], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.bool_]:
    """Return the answers that cannot be ruled out at the stated coverage; a set is never empty.

    Args:
      probabilities: [case, step, answer] of `calibrated_probabilities`.
      model: name of the model.
      calibration: its thresholds.
      chain: the steps.

    Returns:
      [case, step, answer], True for an answer in the set; the most probable one always is, unlike in a plain
      conformal set, which can only raise the coverage.

    Raises:
      BadInput: the calibration lacks the model.
    """
    limits: Sequence[npt.ArrayLike] = (
        _of_model(calibration.answer_thresholds, model)
        if calibration.coverage_by == "answer"
        else _of_model(calibration.thresholds, model)
    )
    included = np.zeros(probabilities.shape, dtype=bool)
    for position, step in enumerate(chain.steps):
        own = probabilities[:, position, : step.num_answers]
        included[:, position, : step.num_answers] = 1 - own <= np.asarray(limits[position])
        included[np.arange(len(own)), position, own.argmax(axis=1)] = True
    return included


def _fit_step(
    logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer], *, coverage: float
) -> tuple[float, float, str]:
    annotated = labels != NOT_ANNOTATED
    logits, labels = logits[annotated], labels[annotated]
    temperature, note = fit_temperature(logits, labels)
    true_probabilities = softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels]
    threshold = conformal_threshold(1 - true_probabilities, coverage=coverage)
    if math.isinf(threshold):
        few = f"{len(labels)} annotated cases are too few for a coverage of {coverage:g}: every answer is in the set"
        note = f"{note}; {few}" if note else few
    return temperature, threshold, note


def _fit_answers(
    step: Step,
    logits: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    temperature: float,
    note: str,
    *,
    coverage: float,
) -> tuple[tuple[float, ...], str]:
    """Fit the threshold of each answer of a step to the cases that have it; extend the note by those with too few."""
    scores = 1 - softmax(logits / temperature, axis=1)
    of_answers = [scores[labels == answer, answer] for answer in range(step.num_answers)]
    limits = tuple(conformal_threshold(own, coverage=coverage) for own in of_answers)
    few = [
        f"{option} ({len(own)})"
        for option, own, limit in zip(step.options, of_answers, limits, strict=True)
        if math.isinf(limit)
    ]
    too_few = f"in every set, with too few cases for a coverage of {coverage:g}: {', '.join(few)}" if few else ""
    return limits, "; ".join(part for part in (note, too_few) if part)


def _of_model(values: Mapping[str, tuple[_Each, ...]], model: str) -> tuple[_Each, ...]:
    if model not in values:
        raise BadInput(f"calibration: model {model!r} is not one of {', '.join(values)}")
    return values[model]
