"""Temperature scaling per step (Guo et al. 2017) and split-conformal answer sets, fitted on the validation split.

The same cases chose the checkpoint and may share patients: check the coverage on the test split (docs/tables.md).
"""

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from typing import Annotated, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.predictions import (
    Predictions,
    log_softmax,
    logits_by_step,
    probabilities_by_step,
    softmax,
)
from stepcot_jax.evaluation.statistics import Weights, count_once, divide, name_patients, weighted_mean
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.ranges import MOST, Share, Whole

UNFITTED = "temperature 1"  # In the note of a step whose temperature could not be fitted

_Value = TypeVar("_Value")


Temperature = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
Threshold = Annotated[float, msgspec.Meta(ge=0)]
Divisor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Temperatures and conformal thresholds by model and step; the most probable answer is always in the set."""

    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]  # share of cases, of each step, whose set holds the truth
    temperatures: Mapping[str, tuple[Temperature, ...]]  # by model name, the divisor of each step's logits
    thresholds: Mapping[str, tuple[Threshold, ...]]  # of 1 - probability; infinite: too few cases
    notes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # by step, "" if all was fitted
    num_cases: Mapping[str, tuple[Whole, ...]] = dataclasses.field(default_factory=dict)  # behind each threshold
    coverage_ranges: Mapping[str, tuple[tuple[Share, Share] | None, ...]] = dataclasses.field(default_factory=dict)
    confidence: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # share of splits that reach it; 0: on average
    errors: Mapping[str, tuple[Share, Share]] = dataclasses.field(default_factory=dict)  # of the last step on test

    def fits(self, num_steps: int) -> bool:
        """Whether it has the steps of a chain, for the same models throughout."""
        of_steps = (self.temperatures, self.thresholds, self.notes, self.num_cases, self.coverage_ranges)
        return (
            all(by_model.keys() in (self.temperatures.keys(), set()) for by_model in of_steps)
            and self.thresholds.keys() == self.temperatures.keys()
            and all(len(values) == num_steps for by_model in of_steps for values in by_model.values())
        )

    def steps_without_temperature(self, model: str) -> tuple[int, ...]:
        """Return the positions of steps whose temperature could not be fitted and is 1."""
        return tuple(step for step, note in enumerate(self.notes.get(model, ())) if UNFITTED in note)

    def coverage_range(self, model: str, step: int) -> tuple[float, float] | None:
        """Return the 95 % range of a step's coverage; None without a threshold."""
        ranges = self.coverage_ranges.get(model, ())
        return ranges[step] if step < len(ranges) else None

    def describe_error(self, model: str, last: str) -> str:
        """Describe the calibration error of the last step, of this name, beside that of `compare_error`."""
        if model not in self.errors:
            return f"calibration error of {last}: not measured"
        error, exact = (f"{100 * share:.1f} %" for share in self.errors[model])
        return f"calibration error of {last} on the test split, no answer given: {error}; exact probabilities: {exact}"

    def describe_coverage(self, model: str = "") -> str:
        """Describe the coverage that the answer sets aim at, with the widest range of a model's steps."""
        more = " or more" if self.confidence else ""
        text = f"{100 * self.coverage:g} %{more} of all cases together, not of each answer"
        if self.confidence:
            text += f", at a confidence of {100 * self.confidence:g} % for each step"
        columns = zip(self.num_cases.get(model, ()), self.coverage_ranges.get(model, ()), strict=False)
        fewest = min(((number, spread) for number, spread in columns if spread), default=None)
        if fewest is None:
            return text
        number, (low, high) = fewest
        return f"{text} (95 % range with {number} validation cases: {100 * low:.1f} to {100 * high:.1f} %)"


def calibrated_probabilities(
    logits: npt.NDArray[np.floating], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.float64]:
    """Return distributions [case, step, answer] after temperature scaling; 0 beyond a step's own answers."""
    temperatures = _of_model(calibration.temperatures, model)
    probabilities = np.zeros(logits.shape)
    for position, step_logits in enumerate(logits_by_step(logits, chain=chain, model=model)):
        probabilities[:, position, : step_logits.shape[1]] = softmax(step_logits / temperatures[position], axis=1)
    return probabilities


def answer_sets(
    probabilities: npt.NDArray[np.float64], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.bool_]:
    """Return the answers [case, step, answer] that cannot be ruled out at the coverage; the most probable one is in."""
    limits = _of_model(calibration.thresholds, model)
    included = np.zeros(probabilities.shape, dtype=bool)
    for position, step in enumerate(chain.steps):
        step_probabilities = probabilities[:, position, : step.num_answers]
        included[:, position, : step.num_answers] = 1 - step_probabilities <= limits[position]
        included[np.arange(len(step_probabilities)), position, step_probabilities.argmax(axis=1)] = True
    return included


def _of_model(values: Mapping[str, tuple[_Value, ...]], model: str) -> tuple[_Value, ...]:
    if model not in values:
        raise BadInput(f"calibration: model {model!r} is not one of {', '.join(values)}")
    return values[model]


# Split-conformal thresholds. The k-th smallest of n scores has a coverage over new cases that is a draw from
# Beta(k, n + 1 - k) over validation splits. With k = ceil((n + 1) * coverage) its mean is the stated coverage, and
# nearly half of all splits fall short; at a confidence, k is the smallest rank that falls short in at most
# 1 - confidence of them (Vovk 2012; Park et al. 2020). Equal scores can only raise the coverage.


_SEED = 0


def find_rank(num_cases: int, *, coverage: float, confidence: float = 0.0) -> int:
    """Return the rank of the threshold, above `num_cases` for too few; a confidence of 0: on average over splits."""
    if not 0 <= confidence < 1:
        raise ValueError(f"confidence must be from 0 to below 1; got {confidence}")
    # Rounding must not ask for one case more than (n + 1) * coverage does.
    rank = math.ceil((num_cases + 1) * coverage - 1e-9)
    if not confidence:
        return rank
    from scipy.special import betainc  # takes a quarter of a second to import, which readings need not wait for

    ranks = np.arange(rank, num_cases + 1)
    enough = 1 - betainc(ranks, num_cases + 1 - ranks, coverage) >= confidence
    return int(ranks[enough.argmax()]) if enough.any() else num_cases + 1


def conformal_threshold(scores: npt.NDArray[np.float64], *, coverage: float, confidence: float = 0.0) -> float:
    """Return the score that a new case's true answer exceeds with probability 1 - coverage at most."""
    rank = find_rank(len(scores), coverage=coverage, confidence=confidence)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def spread_of_coverage(num_cases: int, *, coverage: float, confidence: float = 0.0) -> tuple[float, float] | None:
    """Return the 2.5th and 97.5th percentile of the coverage; None where every set holds every answer."""
    rank = find_rank(num_cases, coverage=coverage, confidence=confidence)
    if rank > num_cases:
        return None
    from scipy.special import betaincinv  # see `find_rank`

    low, high = betaincinv(rank, num_cases + 1 - rank, [0.025, 0.975])
    return float(low), float(high)


def choose_one_per_patient(patients: npt.NDArray[np.str_]) -> npt.NDArray[np.intp]:
    """Return the positions of one case of each patient, ascending, drawn at random with a fixed seed."""
    order = np.random.default_rng(_SEED).permutation(len(patients))
    _, first = np.unique(name_patients(patients)[order], return_index=True)
    return np.sort(order[first])


def read_calibration(path: str | os.PathLike[str], chain: Chain) -> Calibration:
    """Read the calibration that a run saved: readings elsewhere have its probabilities and answer sets."""
    calibration = load(path, Calibration)
    if not calibration.fits(chain.num_steps):
        raise BadInput(f"{path}: calibration of another chain")
    return calibration


# Fit temperatures and answer-set thresholds on the validation split.


MIN_CASES = 20  # With fewer annotated cases the temperature stays 1

_LOG_BOUND = math.log(100)  # temperatures of 0.01 to 100


def fit_calibration(
    val: Predictions,
    chain: Chain,
    *,
    coverage: float = 0.9,
    confidence: float = 0.0,
    patients: npt.NDArray[np.str_] | None = None,
    joined: Collection[str] = (),
) -> Calibration:
    """Fit temperatures and thresholds; with a confidence, thresholds use one case of each patient ("": unknown).

    The temperature of joint readings (`joined`) stays 1: the weights of their models are fitted instead.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be above 0 and below 1; got {coverage}")
    known = np.full(len(val.labels), "") if patients is None else patients
    temperatures, thresholds, notes, num_cases, ranges = {}, {}, {}, {}, {}
    for model, logits in val.logits.items():
        fitted = [
            _fit_step(own, labels, known, coverage=coverage, confidence=confidence, scaled=model not in joined)
            for own, labels in zip(logits_by_step(logits, chain=chain, model=model), val.labels.T, strict=True)
        ]
        temperatures[model], thresholds[model], notes[model], num_cases[model] = zip(*fitted, strict=True)
        ranges[model] = tuple(
            spread_of_coverage(number, coverage=coverage, confidence=confidence) for number in num_cases[model]
        )
    return Calibration(coverage, temperatures, thresholds, notes, num_cases, ranges, confidence)


def fit_temperature(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]) -> tuple[float, str]:
    """Fit a temperature of 0.01 to 100 by maximum likelihood; return it with "", or why it is 1 or at a bound."""
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


Mixture = tuple[Divisor, Divisor, Annotated[float, msgspec.Meta(ge=0, lt=1)]]
"""Two temperatures and the share of the second: (1 - share) softmax(z / first) + share softmax(z / second)."""

_FEWEST_MIXED = 200  # cases for two parameters more
_MOST_APART = 3.0  # of logarithms of temperatures, and of the share's odds


def mix_temperatures(logits: npt.NDArray[np.float64], mixture: Mixture) -> npt.NDArray[np.float64]:
    """Return the logarithms of a mixture's probabilities; the order of answers is that of the logits."""
    first, second, share = mixture
    logs = log_softmax(logits / first, axis=1)
    return (
        np.logaddexp(math.log1p(-share) + logs, math.log(share) + log_softmax(logits / second, axis=1))
        if share
        else logs
    )


def fit_mixture(logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]) -> Mixture:
    """Fit two temperatures by maximum likelihood: one temperature cannot mend answers that are sure and wrong.

    It is the fitted temperature, twice, with few cases or where Akaike's criterion does not prefer two.
    """
    temperature, note = fit_temperature(logits, labels)
    alone = (temperature, temperature, 0.0)
    if note or len(labels) < _FEWEST_MIXED:
        return alone
    from scipy.optimize import minimize

    def decode(found: npt.NDArray[np.float64]) -> Mixture:
        first, second = (temperature * math.exp(log) for log in found[:2])
        return first, second, 1 / (1 + math.exp(-found[2]))

    def cost(mixture: Mixture) -> float:
        return -float(mix_temperatures(logits, mixture)[np.arange(len(labels)), labels].mean())

    start, bounds = np.array([-0.5, 0.7, 0.0]), [(-_MOST_APART, _MOST_APART)] * 3
    found = minimize(lambda found: cost(decode(found)), start, method="L-BFGS-B", bounds=bounds).x
    return decode(found) if (cost(alone) - cost(decode(found))) * len(labels) > 2 else alone


def _fit_step(
    logits: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    patients: npt.NDArray[np.str_],
    *,
    coverage: float,
    confidence: float,
    scaled: bool,
) -> tuple[float, float, str, int]:
    """Fit temperature and threshold; return them with a note and the number of cases behind the threshold."""
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    temperature, note = fit_temperature(logits[annotated], labels[annotated]) if scaled else (1.0, "")
    used = annotated[choose_one_per_patient(patients[annotated])] if confidence else annotated
    scores = 1 - softmax(logits[used] / temperature, axis=1)[np.arange(len(used)), labels[used]]
    threshold = conformal_threshold(scores, coverage=coverage, confidence=confidence)
    if math.isinf(threshold):
        what = f"cases of {len(used)} patients" if len(used) < len(annotated) else "annotated cases"
        wanted = f"a coverage of {coverage:g}" + (f" at a confidence of {confidence:g}" if confidence else "")
        few = f"{len(annotated)} {what} are too few for {wanted}: every answer is in the set"
        note = f"{note}; {few}" if note else few
    return temperature, threshold, note, len(used)


# Calibration of a step's probabilities: reliability curve, expected calibration error, Brier score and NLL.


NUM_BINS = 15


@dataclasses.dataclass(frozen=True)
class ReliabilityBin:
    """The cases whose answer has a probability in (low, high]; the first bin includes 0."""

    low: float  # lower edge of the bin; the first bin includes it
    high: float
    num_cases: int  # number of cases in the bin
    confidence: float  # mean probability of the answers given; NaN in an empty bin
    accuracy: float  # share of them that are correct; NaN in an empty bin


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Calibration of one step; NaN without annotated cases."""

    name: str
    num_cases: int
    bins: tuple[ReliabilityBin, ...]  # the reliability curve, bins of equal width
    ece: float  # expected calibration error (Guo et al. 2017), 0..1
    brier: float  # summed over the answers (Brier 1950), 0..2
    nll: float  # mean negative log-likelihood of the true answers, in nats


def reliability(
    *, probabilities: npt.ArrayLike, labels: npt.ArrayLike, name: str = "", num_bins: int = NUM_BINS
) -> Reliability:
    """Compute the reliability of one step from probabilities [case, answer]."""
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    once = count_once(len(truth))
    figures = calibration_figures(once, probabilities=distributions, labels=truth, num_bins=num_bins)
    annotated = truth != NOT_ANNOTATED
    confidence, correct, bin_of_case = _bin_cases(distributions[annotated], truth[annotated], num_bins=num_bins)
    inside = bin_of_case[:, None] == np.arange(num_bins)
    means = [
        weighted_mean(
            count_once(len(bin_of_case)), values=np.broadcast_to(values[:, None], inside.shape), counted=inside
        )[0]
        for values in (confidence, correct)
    ]
    edges = (np.arange(num_bins + 1) / num_bins).tolist()
    bins = zip(edges[:-1], edges[1:], inside.sum(axis=0).tolist(), *(mean.tolist() for mean in means), strict=True)
    return Reliability(
        name=name,
        num_cases=int(annotated.sum()),
        bins=tuple(ReliabilityBin(*figures_of_bin) for figures_of_bin in bins),
        **{figure: float(value[0]) for figure, value in figures.items()},
    )


def calibration_figures(
    weights: Weights,
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    num_bins: int = NUM_BINS,
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the calibration figures [resample] of one step from probabilities [case, answer]."""
    annotated = labels != NOT_ANNOTATED
    weights, probabilities, truth = weights[:, annotated], probabilities[annotated], labels[annotated]
    cases = np.arange(len(truth))
    confidence, correct, bin_of_case = _bin_cases(probabilities, truth, num_bins=num_bins)
    true_probability = probabilities[cases, truth]
    # One product for all: the gap of each bin, the two scores, and the number of cases. A bin's number of cases times
    # the distance of its means is the distance of its sums.
    columns = np.zeros((len(truth), num_bins + 3))
    columns[cases, bin_of_case] = confidence - correct
    columns[:, -3] = (probabilities**2).sum(axis=1) - 2 * true_probability + 1
    # A probability that underflowed to 0 counts as the smallest normal number, about 708 nats.
    columns[:, -2] = -np.log(np.maximum(true_probability, np.finfo(np.float64).tiny))
    columns[:, -1] = 1
    sums = weights @ columns
    gaps = abs(sums[:, :-3]).sum(axis=1)
    return {
        name: divide(total, sums[:, -1])
        for name, total in (("ece", gaps), ("brier", sums[:, -3]), ("nll", sums[:, -2]))
    }


def step_reliability(
    predictions: Predictions, chain: Chain, *, calibration: Calibration | None = None
) -> dict[str, tuple[Reliability, ...]]:
    """Compute the reliability of every model and step."""
    reliabilities = {}
    for model, logits in predictions.logits.items():
        if calibration is None:
            steps = probabilities_by_step(logits, chain=chain, model=model)
        else:
            padded = calibrated_probabilities(logits, model, calibration, chain)
            steps = tuple(padded[:, position, : step.num_answers] for position, step in enumerate(chain.steps))
        reliabilities[model] = tuple(
            reliability(probabilities=probabilities, labels=truth, name=step.name)
            for probabilities, truth, step in zip(steps, predictions.labels.T, chain.steps, strict=True)
        )
    return reliabilities


def compare_error(
    probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.integer], *, num_draws: int = 200
) -> tuple[float, float]:
    """Return the calibration error of annotated cases, and its mean for labels drawn from the probabilities.

    The latter is what exact probabilities show of so many cases: whether an answer is right is drawn for each.
    """
    confidence, correct, bin_of_case = _bin_cases(probabilities, labels, num_bins=NUM_BINS)
    drawn = np.random.default_rng(_SEED).random((num_draws, len(labels))) < confidence
    gaps = (np.concatenate([correct[None], drawn]) - confidence) @ (bin_of_case[:, None] == np.arange(NUM_BINS))
    measured, *exact = abs(gaps).sum(axis=1) / len(labels)
    return float(measured), float(np.mean(exact))


def measure_errors(calibration: Calibration, test: Predictions, chain: Chain) -> Calibration:
    """Return the calibration with its errors on test cases."""
    known, size, errors = test.labels[:, -1] != NOT_ANNOTATED, chain.answers_per_step[-1], {}
    for model, logits in test.logits.items() if known.any() else ():
        last = calibrated_probabilities(logits[known], model, calibration, chain)[:, -1, :size]
        errors[model] = compare_error(last, test.labels[known, -1])
    return dataclasses.replace(calibration, errors=errors)


def _bin_cases(
    probabilities: npt.NDArray[np.float64], truth: npt.NDArray[np.integer], *, num_bins: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Return confidence, correctness and bin of each case; bins include their upper edge, and the first one 0."""
    confidence = probabilities.max(axis=1)
    edges = np.arange(num_bins + 1) / num_bins
    # A softmax may sum to slightly over 1: the last bin includes that too.
    bin_of_case = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    return confidence, probabilities.argmax(axis=1) == truth, bin_of_case
