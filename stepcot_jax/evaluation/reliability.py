"""Calibration of a step's probabilities: reliability curve, expected calibration error, Brier score and NLL."""

import dataclasses

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, calibrated_probabilities
from stepcot_jax.evaluation.distributions import own_probabilities
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.resamples import Weights, check_cases, count_once, divide, weighted_mean

NUM_BINS = 15


@dataclasses.dataclass(frozen=True)
class ReliabilityBin:
    """The cases whose answer has a probability in (low, high].

    Attributes:
      low: lower edge of the bin; the first bin includes it.
      num_cases: number of cases in the bin.
      confidence: mean probability of the answers given; NaN in an empty bin.
      accuracy: share of them that are correct; NaN in an empty bin.
    """

    low: float
    high: float
    num_cases: int
    confidence: float
    accuracy: float


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Calibration of one step; NaN without annotated cases.

    Attributes:
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
    """Compute the reliability of one step.

    Args:
      probabilities: float [case, answer], each row summing to 1.
    """
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    once = count_once(len(truth))
    figures = calibration_figures(once, probabilities=distributions, labels=truth, num_bins=num_bins)
    annotated = truth != NOT_ANNOTATED
    confidence, correct, place = _place(distributions[annotated], truth[annotated], num_bins=num_bins)
    inside = place[:, None] == np.arange(num_bins)
    means = [
        weighted_mean(count_once(len(place)), values=np.broadcast_to(values[:, None], inside.shape), counted=inside)[0]
        for values in (confidence, correct)
    ]
    edges = (np.arange(num_bins + 1) / num_bins).tolist()
    bins = zip(edges[:-1], edges[1:], inside.sum(axis=0).tolist(), *(own.tolist() for own in means), strict=True)
    return Reliability(
        name=name,
        num_cases=int(annotated.sum()),
        bins=tuple(ReliabilityBin(*each) for each in bins),
        **{figure: float(value[0]) for figure, value in figures.items()},
    )


def calibration_figures(
    weights: Weights,
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    num_bins: int = NUM_BINS,
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the calibration figures of one step in each resample.

    Args:
      probabilities: [case, answer], each row summing to 1.
    """
    check_cases(weights, probabilities=probabilities, labels=labels)
    if num_bins < 1:
        raise ValueError(f"num_bins must be 1 or more; got {num_bins}")
    annotated = labels != NOT_ANNOTATED
    weights, probabilities, truth = weights[:, annotated], probabilities[annotated], labels[annotated]
    cases = np.arange(len(truth))
    confidence, correct, place = _place(probabilities, truth, num_bins=num_bins)
    true_probability = probabilities[cases, truth]
    # One product for all: the gap of each bin, the two scores, and the number of cases. A bin's number of cases times
    # the distance of its means is the distance of its sums.
    columns = np.zeros((len(truth), num_bins + 3))
    columns[cases, place] = confidence - correct
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
    predictions: Predictions, chain: Chain, *, calibration: Calibration | None = None, num_bins: int = NUM_BINS
) -> dict[str, tuple[Reliability, ...]]:
    """Compute the reliability of every model and step."""
    found = {}
    for model, logits in predictions.logits.items():
        if calibration is None:
            steps = own_probabilities(logits, chain=chain, model=model)
        else:
            padded = calibrated_probabilities(logits, model, calibration, chain)
            steps = tuple(padded[:, position, : step.num_answers] for position, step in enumerate(chain.steps))
        found[model] = tuple(
            reliability(probabilities=own, labels=truth, name=step.name, num_bins=num_bins)
            for own, truth, step in zip(steps, predictions.labels.T, chain.steps, strict=True)
        )
    return found


def _place(
    probabilities: npt.NDArray[np.float64], truth: npt.NDArray[np.integer], *, num_bins: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Confidence, correctness and bin of each case; bins include their upper edge, and the first one 0."""
    confidence = probabilities.max(axis=1)
    edges = np.arange(num_bins + 1) / num_bins
    # A softmax may sum to slightly over 1; the last bin takes that too.
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    return confidence, probabilities.argmax(axis=1) == truth, place
