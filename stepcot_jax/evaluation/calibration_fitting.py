"""Fit temperatures and answer-set thresholds on the validation split; see `evaluation.calibration`."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.calibration import UNFITTED, Calibration, CoverageBy
from stepcot_jax.evaluation.conformal import choose_one_each, conformal_threshold
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.evaluation.evaluator import Predictions

MIN_CASES = 20
"""With fewer annotated cases the temperature stays 1."""

_LOG_BOUND = math.log(100)  # temperatures of 0.01 to 100


def fit_calibration(
    val: Predictions,
    chain: Chain,
    *,
    coverage: float = 0.9,
    coverage_by: CoverageBy = "step",
    confidence: float = 0.0,
    patients: npt.NDArray[np.str_] | None = None,
) -> Calibration:
    """Fit temperatures and thresholds of every model on the validation split.

    Args:
      coverage: wanted share of cases whose answer set holds the true answer, above 0 and below 1.
      coverage_by: "step" fits one threshold for a step, "answer" also one for each of its answers.
      confidence: share of validation splits that reach the coverage, from 0 to below 1; 0: on average over the splits.
      patients: [case], "" where unknown; None: each case is a patient of its own. With a confidence, thresholds use one
        case of each patient, which are independent; temperatures use all.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be above 0 and below 1; got {coverage}")
    wanted = _Wanted(coverage, confidence, np.full(len(val.labels), "") if patients is None else patients)
    temperatures, thresholds, notes, answer_thresholds, num_cases = {}, {}, {}, {}, {}
    for model, logits in val.logits.items():
        own = own_logits(logits, chain=chain, model=model)
        steps = list(zip(chain.steps, own, val.labels.T, strict=True))
        fitted = [_fit_step(*each, wanted=wanted) for each in steps]
        temperatures[model], thresholds[model], notes[model], num_cases[model] = zip(*fitted, strict=True)
        if coverage_by == "answer":
            by_answer = [
                _fit_answers(*each, temperature, note, wanted=wanted)
                for each, temperature, note in zip(steps, temperatures[model], notes[model], strict=True)
            ]
            answer_thresholds[model], notes[model], num_cases[model] = zip(*by_answer, strict=True)
    return Calibration(coverage, temperatures, thresholds, notes, answer_thresholds, num_cases, confidence)


def fit_temperature(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]) -> tuple[float, str]:
    """Fit one temperature by maximum likelihood.

    The negative log-likelihood is convex in 1 / temperature: the fit is the root of its slope.

    Args:
      logits: [case, answer] of the annotated cases.

    Returns:
      The temperature, 0.01 to 100, and "" or why it is 1 or at a bound.
    """
    if len(labels) < MIN_CASES:
        return 1.0, f"{len(labels)} annotated cases, fewer than {MIN_CASES}: {UNFITTED}"
    if (labels == labels[0]).all():
        return 1.0, f"every case has the same answer: {UNFITTED}"
    if (logits.argmax(axis=1) == labels).all():
        return 1.0, f"every case is answered correctly, so that no temperature is best: {UNFITTED}"
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


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """The coverage that thresholds are fitted for, and the patient of each case."""

    coverage: float
    confidence: float
    patients: npt.NDArray[np.str_]

    def choose(self, cases: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return those of the cases that thresholds use."""
        return cases[choose_one_each(self.patients[cases])] if self.confidence else cases

    def fit(self, scores: npt.NDArray[np.float64]) -> float:
        """Return the threshold."""
        return conformal_threshold(scores, coverage=self.coverage, confidence=self.confidence)

    def __str__(self) -> str:
        at = f" at a confidence of {self.confidence:g}" if self.confidence else ""
        return f"a coverage of {self.coverage:g}{at}"


def _fit_step(
    step: Step, logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer], *, wanted: _Wanted
) -> tuple[float, float, str, tuple[int, ...]]:
    """Fit temperature and threshold; return them with a note and the number of cases used of each answer."""
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    temperature, note = fit_temperature(logits[annotated], labels[annotated])
    used = wanted.choose(annotated)
    truth = labels[used]
    threshold = wanted.fit(1 - softmax(logits[used] / temperature, axis=1)[np.arange(len(used)), truth])
    if math.isinf(threshold):
        what = f"cases of {len(used)} patients" if len(used) < len(annotated) else "annotated cases"
        few = f"{len(annotated)} {what} are too few for {wanted}: every answer is in the set"
        note = f"{note}; {few}" if note else few
    return temperature, threshold, note, tuple(np.bincount(truth, minlength=step.num_answers).tolist())


def _fit_answers(
    step: Step,
    logits: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    temperature: float,
    note: str,
    *,
    wanted: _Wanted,
) -> tuple[tuple[float, ...], str, tuple[int, ...]]:
    """Fit the threshold of each answer of a step to the cases that have it; extend the note by those with too few."""
    scores = 1 - softmax(logits / temperature, axis=1)
    of_answers = [scores[wanted.choose(np.flatnonzero(labels == answer)), answer] for answer in range(step.num_answers)]
    limits = tuple(wanted.fit(own) for own in of_answers)
    few = [
        f"{option} ({len(own)})"
        for option, own, limit in zip(step.options, of_answers, limits, strict=True)
        if math.isinf(limit)
    ]
    too_few = f"in every set, with too few cases for {wanted}: {', '.join(few)}" if few else ""
    return limits, "; ".join(part for part in (note, too_few) if part), tuple(map(len, of_answers))
