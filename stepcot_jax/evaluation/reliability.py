"""Whether an answer given with a probability of 0.8 is right four times in five: curve, ECE, Brier score and NLL."""

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, calibrated_probabilities
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.evaluation.evaluator import Predictions

NUM_BINS = 15


@dataclasses.dataclass(frozen=True)
class ReliabilityBin:
    """The cases whose answer was given with a probability in (low, high].

    Attributes:
      low: lower edge of the bin; the first bin holds it too.
      high: upper edge.
      num_cases: number of cases in the bin.
      confidence: mean probability of the answers given; NaN in an empty bin.
      accuracy: share of them that are right; NaN in an empty bin.
    """

    low: float
    high: float
    num_cases: int
    confidence: float
    accuracy: float


@dataclasses.dataclass(frozen=True)
class Reliability:
    """How far a step's probabilities can be taken at their word; NaN without annotated cases.

    Attributes:
      name: name of the step.
      num_cases: number of annotated cases.
      bins: the reliability curve, bins of equal width.
      ece: expected calibration error of the answer given: mean distance of confidence and accuracy, weighted by
        the bins' cases (Guo et al. 2017); 0..1.
      brier: mean over the cases of the squared distance between the distribution and the truth, summed over the
        answers (Brier 1950); 0..2.
      nll: mean negative log-likelihood of the true answers, in nats.
    """

    name: str
    num_cases: int
    bins: tuple[ReliabilityBin, ...]
    ece: float
    brier: float
    nll: float


def reliability(
    *, probabilities: npt.ArrayLike, labels: npt.ArrayLike, name: str = "", num_bins: int = NUM_BINS
) -> Reliability:
    """Reliability of one step.

    Args:
      probabilities: float [case, answer], each row summing to 1.
      labels: int [case], `NOT_ANNOTATED` where nobody answered: such cases take no part.
      name: name of the step.
      num_bins: number of bins of equal width, from 1.

    Raises:
      ValueError: the shapes do not fit or there is no bin.
    """
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if distributions.ndim != 2 or truth.shape != distributions.shape[:1] or num_bins < 1:
        raise ValueError(
            f"found probabilities {distributions.shape}, labels {truth.shape} and {num_bins} bins, "
            "accepted are [case, answer], [case] and 1 or more"
        )
    annotated = truth != NOT_ANNOTATED
    distributions, truth = distributions[annotated], truth[annotated]
    confidence = distributions.max(axis=1)
    right = distributions.argmax(axis=1) == truth
    bins = _bin(confidence, right, num_bins=num_bins)
    if not len(truth):
        return Reliability(name, 0, bins, math.nan, math.nan, math.nan)
    squares, surprises = score_cases(probabilities=distributions, truth=truth)
    return Reliability(
        name=name,
        num_cases=len(truth),
        bins=bins,
        ece=math.fsum(own.num_cases * abs(own.confidence - own.accuracy) for own in bins if own.num_cases) / len(truth),
        brier=float(squares.mean()),
        nll=float(surprises.mean()),
    )


def score_cases(
    *, probabilities: npt.NDArray[np.float64], truth: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """What each case adds to the Brier score, 0..2, and to the negative log-likelihood, in nats.

    Args:
      probabilities: [case, answer], each row summing to 1.
      truth: [case], the true answers; every case is annotated.

    Returns:
      Two arrays [case].
    """
    true_probability = probabilities[np.arange(len(truth)), truth]
    # A probability that underflowed to 0 counts as the smallest one there is, about 708 nats.
    log_likelihood = np.log(np.maximum(true_probability, np.finfo(np.float64).tiny))
    return (probabilities**2).sum(axis=1) - 2 * true_probability + 1, -log_likelihood


def place_in_bins(confidence: npt.NDArray[np.float64], *, num_bins: int) -> npt.NDArray[np.intp]:
    """The bin of each case, from 0, where bins of equal width hold their upper edge and the first one 0 too.

    >>> place_in_bins(np.array([0.0, 0.5, 0.51, 1.0]), num_bins=2)
    array([0, 0, 1, 1])
    """
    edges = np.arange(num_bins + 1) / num_bins
    # A softmax may sum to a hair over 1; the last bin takes that too.
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)


def step_reliability(
    predictions: Predictions, chain: Chain, *, calibration: Calibration | None = None, num_bins: int = NUM_BINS
) -> dict[str, tuple[Reliability, ...]]:
    """Reliability of every model and step.

    Args:
      predictions: labels and logits.
      chain: the steps.
      calibration: temperatures to apply; None for the models' own probabilities.
      num_bins: number of bins of equal width, from 1.

    Returns:
      By the model's name one entry a step, in the chain's order.

    Raises:
      BadInput: the calibration does not know a model.
    """
    found = {}
    for model, logits in predictions.logits.items():
        if calibration is None:
            steps = [softmax(own) for own in own_logits(logits, chain=chain, model=model)]
        else:
            padded = calibrated_probabilities(logits, model, calibration, chain)
            steps = [padded[:, position, : step.num_answers] for position, step in enumerate(chain.steps)]
        found[model] = tuple(
            reliability(probabilities=own, labels=truth, name=step.name, num_bins=num_bins)
            for own, truth, step in zip(steps, predictions.labels.T, chain.steps, strict=True)
        )
    return found


def _bin(
    confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_], *, num_bins: int
) -> tuple[ReliabilityBin, ...]:
    edges = np.arange(num_bins + 1) / num_bins
    place = place_in_bins(confidence, num_bins=num_bins)
    counts = np.bincount(place, minlength=num_bins)
    sums = np.bincount(place, weights=confidence, minlength=num_bins)
    hits = np.bincount(place, weights=right, minlength=num_bins)
    return tuple(
        ReliabilityBin(
            low=float(edges[number]),
            high=float(edges[number + 1]),
            num_cases=int(counts[number]),
            confidence=float(sums[number] / counts[number]) if counts[number] else math.nan,
            accuracy=float(hits[number] / counts[number]) if counts[number] else math.nan,
        )
        for number in range(num_bins)
    )
