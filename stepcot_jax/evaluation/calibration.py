"""Temperature scaling per step, and conformal answer sets.

Both are fitted on the validation split. Temperature scaling divides the logits of a step by one number, which changes
how confident the answers are but never which one is the most probable (Guo et al. 2017). The answer sets are
split-conformal (Vovk et al. 2005; Sadinle et al. 2019): over cases exchangeable with the validation cases, the set
holds the true answer with probability `coverage` or more. The guarantee weakens because these cases also chose the
checkpoint, share patients, and are not exchangeable with another hospital's: check the coverage on the test split.

That probability is an average over validation splits, of which nearly half fall short. At a confidence, the sets hold
the true answer that often in that share of the validation splits, of each step separately (`evaluation.conformal`).
`Calibration.coverage_range` returns the 95 % range of the coverage, which says nothing of cases from elsewhere.

One threshold for a step guarantees the average over all cases only: a rare answer may be held far less often, since the
frequent ones make up for it. Thresholds by answer guarantee each answer its coverage (Mondrian or class-conditional
conformal prediction: Vovk 2012; Ding et al. 2023), with larger sets. An answer with too few validation cases for the
coverage (fewer than 9 at 90 %, 29 with a confidence of 95 %) has no threshold and is in every set.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.conformal import spread_of_coverage
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.host.errors import BadInput

UNFITTED = "temperature 1"
"""In the note of a step whose temperature could not be fitted."""
CoverageBy = Literal["step", "answer"]

_Each = TypeVar("_Each")


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
      num_cases: by model name, for each step the validation cases of each true answer behind its thresholds; empty in
        files that do not have it.
      confidence: share of validation splits that reach the coverage, as in `conformal.find_rank`; 0: on average.
      coverage_ranges: by model name, for each step its `coverage_range` where a file has it; others are computed.
    """

    coverage: float
    temperatures: Mapping[str, tuple[float, ...]]
    thresholds: Mapping[str, tuple[float, ...]]
    notes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    answer_thresholds: Mapping[str, tuple[tuple[float, ...], ...]] = dataclasses.field(default_factory=dict)
    num_cases: Mapping[str, tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=dict)
    confidence: float = 0.0
    coverage_ranges: Mapping[str, tuple[tuple[float, float] | None, ...]] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def coverage_by(self) -> CoverageBy:
        """Whether the coverage is that of a step's cases together, or of the cases of each answer."""
        return "answer" if self.answer_thresholds else "step"

    def steps_without_temperature(self, model: str) -> tuple[int, ...]:
        """Return the positions of steps whose temperature could not be fitted and is 1."""
        return tuple(step for step, note in enumerate(self.notes.get(model, ())) if UNFITTED in note)

    def coverage_range(self, model: str, step: int) -> tuple[float, float] | None:
        """Return the range that holds a step's coverage over new cases in 95 % of validation splits of this size.

        With coverage by answer it is the range of the answer with the fewest cases among those with a threshold. None
        where every answer is in the set, or the number of cases is unknown.
        """
        stored = self.coverage_ranges.get(model, ())
        if step < len(stored) and stored[step] is not None:
            return stored[step]
        num_cases = self._num_fitted(model, step)
        return self._spread(num_cases) if num_cases else None

    def describe_coverage(self, model: str = "") -> str:
        """Return what the answer sets aim to hold, in words, with the widest range of a model's steps.

        >>> Calibration(0.9, {}, {}).describe_coverage()
        '90 % of all cases together, not of each answer'
        >>> Calibration(0.9, {}, {}, num_cases={"teacher": ((300, 150),)}).describe_coverage("teacher")
        '90 % of all cases together, not of each answer (95 % range with 450 validation cases: 87.1 to 92.6 %)'
        """
        whom = "the cases of each answer" if self.coverage_by == "answer" else "all cases together, not of each answer"
        text = f"{100 * self.coverage:g} %{' or more' if self.confidence else ''} of {whom}"
        if self.confidence:
            text += f", at a confidence of {100 * self.confidence:g} % for each step"
        fitted = {step: self._num_fitted(model, step) for step in range(len(self.num_cases.get(model, ())))}
        fewest, step = min(((count, step) for step, count in fitted.items() if count), default=(0, 0))
        spread = self.coverage_range(model, step) if fewest else None
        if spread is None:
            return text
        low, high = (100 * end for end in spread)
        return f"{text} (95 % range with {fewest} validation cases: {low:.1f} to {high:.1f} %)"

    def _spread(self, num_cases: int) -> tuple[float, float] | None:
        return spread_of_coverage(num_cases, coverage=self.coverage, confidence=self.confidence)

    def _num_fitted(self, model: str, step: int) -> int:
        """Return the cases behind a step's threshold, the fewest of its thresholds by answer; 0 for none."""
        if model not in self.num_cases:
            return 0
        counts = self.num_cases[model][step]
        fitted = counts if self.coverage_by == "answer" else (sum(counts),)
        limits = self.answer_thresholds if self.coverage_by == "answer" else self.thresholds
        reached = np.isfinite(np.atleast_1d(limits[model][step])) if model in limits else [True]
        return min((count for count, is_fitted in zip(fitted, reached, strict=True) if is_fitted), default=0)


def calibrated_probabilities(
    logits: npt.NDArray[np.floating], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.float64]:
    """Compute distributions after temperature scaling.

    Returns:
      [case, step, answer], each in 0..1; 0 beyond a step's own answers.
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

    Returns:
      [case, step, answer], True for an answer in the set; the most probable one always is, unlike in a plain
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


def _of_model(values: Mapping[str, tuple[_Each, ...]], model: str) -> tuple[_Each, ...]:
    if model not in values:
        raise BadInput(f"calibration: model {model!r} is not one of {', '.join(values)}")
    return values[model]
