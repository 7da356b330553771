"""What the statistics of a split say beyond the metrics, for many weightings of its cases at once.

As in `weighted_metrics`, a resample is a number of times that each case counts. Most of these figures are means of
what each case contributes, which is one matrix product for all resamples; a calibration error is one product a bin,
and reading the surest cases first is a cumulative sum over the cases in one order that holds in every resample.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.consistency import Rules, inconsistent
from stepcot_jax.evaluation.reliability import NUM_BINS, place_in_bins
from stepcot_jax.evaluation.weighted_metrics import divide, mean_defined


def weigh_means(
    weights: npt.NDArray[np.int64], *, values: npt.NDArray, counted: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Mean of each column over the cases that count in it.

    Args:
      weights: [resample, case], how often a case counts.
      values: [case, figure], numbers or truth values; what does not count may be anything, NaN too.
      counted: [case, figure].

    Returns:
      [resample, figure]; NaN where no case counts in the resample.

    Raises:
      ValueError: the shapes do not fit.
    """
    if values.ndim != 2 or counted.shape != values.shape or weights.shape[1:] != values.shape[:1]:
        raise ValueError(
            f"found weights {weights.shape}, values {values.shape} and counted {counted.shape}, "
            "accepted are [resample, case], [case, figure] and [case, figure]"
        )
    times = weights.astype(np.float64)
    return divide(times @ np.where(counted, values, 0.0), times @ counted.astype(np.float64))


def weigh_ece(
    weights: npt.NDArray[np.int64],
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    num_bins: int = NUM_BINS,
) -> npt.NDArray[np.float64]:
    """Expected calibration error of one step, as `reliability.reliability` gives it.

    Args:
      weights: [resample, case], how often a case counts.
      probabilities: [case, answer], each row summing to 1.
      labels: [case], `NOT_ANNOTATED` where nobody answered: such cases take no part.
      num_bins: number of bins of equal width, from 1.

    Returns:
      [resample]; NaN without annotated cases in the resample.

    Raises:
      ValueError: the shapes do not fit or there is no bin.
    """
    _check(weights, probabilities, labels)
    if num_bins < 1:
        raise ValueError(f"num_bins: found {num_bins}, accepted is 1 or more")
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    confidence = probabilities[annotated].max(axis=1)
    right = probabilities[annotated].argmax(axis=1) == labels[annotated]
    # A bin's cases times the distance of its means is the distance of its sums.
    columns = np.zeros((len(labels), num_bins + 1))
    columns[annotated, place_in_bins(confidence, num_bins=num_bins)] = confidence - right
    columns[annotated, num_bins] = 1
    sums = weights.astype(np.float64) @ columns
    return divide(abs(sums[:, :-1]).sum(axis=1), sums[:, -1])


def weigh_surest(
    weights: npt.NDArray[np.int64],
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    shares: Sequence[float],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Accuracy among the surest cases of one step, and the area, as `selective.selective_curve` gives them.

    Args:
      weights: [resample, case], how often a case counts.
      probabilities: [case, answer].
      labels: [case], `NOT_ANNOTATED` where nobody answered: such cases take no part.
      shares: of the annotated cases that are to be read at least, above 0 and up to 1; cases of equal confidence
        are read together or not at all.

    Returns:
      The accuracies [resample, share] and the area [resample]; NaN without annotated cases in the resample.

    Raises:
      ValueError: the shapes do not fit or a share is outside.
    """
    _check(weights, probabilities, labels)
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares: found {list(shares)}, accepted are numbers above 0 and up to 1")
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    accuracies = np.full((len(weights), len(shares)), np.nan)
    if not len(annotated):
        return accuracies, np.full(len(weights), np.nan)
    confidence = probabilities[annotated].max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    right = (probabilities[annotated].argmax(axis=1) == labels[annotated])[order]
    last_of_level = np.flatnonzero(np.diff(confidence[order], append=-1.0))
    ordered = weights[:, annotated[order]]
    num_read = np.cumsum(ordered, axis=1)[:, last_of_level]
    num_right = np.cumsum(ordered * right, axis=1)[:, last_of_level]
    total = num_read[:, -1:]
    coverage = num_read / np.maximum(total, 1)
    rows = np.arange(len(weights))
    for column, share in enumerate(shares):
        # In a resample without cases no level suffices; the first one stands for it and gives NaN all the same.
        place = (coverage >= share).argmax(axis=1)
        accuracies[:, column] = divide(num_right[rows, place], num_read[rows, place])
    return accuracies, _area(num_read, num_right)


def weigh_decoding(
    weights: npt.NDArray[np.int64],
    *,
    before: npt.NDArray[np.integer],
    after: npt.NDArray[np.integer],
    labels: npt.NDArray[np.integer],
    rules: Rules,
) -> dict[str, npt.NDArray[np.float64]]:
    """What decoding consistent chains changes, as `decoding.decoding_effect` gives it, and the differences.

    Args:
      weights: [resample, case], how often a case counts.
      before: [case, step], each step answered for itself.
      after: [case, step], the decoded chains.
      labels: [case, step], `NOT_ANNOTATED` where nobody answered.
      rules: the rules that were decoded with.

    Returns:
      By the names of `decoding.DecodingEffect` [resample], or [resample, step] for the accuracies of the steps. Mean
      accuracies over the steps are there too, and for each kind of accuracy the difference of after less before,
      in the same resample. NaN where undefined.

    Raises:
      ValueError: the shapes do not fit, or an answer is none of the step's.
    """
    if not before.shape == after.shape == labels.shape:
        raise ValueError(
            f"found answers {before.shape} and {after.shape} and labels {labels.shape}, "
            "accepted is one shape [case, step]"
        )
    annotated = labels != NOT_ANNOTATED
    chains = np.stack([inconsistent(before, rules), (before != after).any(axis=1)], axis=1)
    shares = weigh_means(weights, values=chains, counted=np.ones(chains.shape, dtype=bool))
    found = {"share_inconsistent": shares[:, 0], "share_changed": shares[:, 1]}
    counted = np.concatenate([annotated, annotated.any(axis=1, keepdims=True)], axis=1)
    for when, answers in (("before", before), ("after", after)):
        right = (answers == labels) | ~annotated
        every = np.concatenate([right, right.all(axis=1, keepdims=True)], axis=1)
        means = weigh_means(weights, values=every, counted=counted)
        found[f"accuracy_{when}"], found[f"chain_accuracy_{when}"] = means[:, :-1], means[:, -1]
        found[f"mean_accuracy_{when}"] = mean_defined(means[:, :-1])
    for kind in ("accuracy", "mean_accuracy", "chain_accuracy"):
        found[f"{kind}_difference"] = found[f"{kind}_after"] - found[f"{kind}_before"]
    return found


def _area(num_read: npt.NDArray[np.int64], num_right: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Mean accuracy over all numbers of cases read, from what is read [resample, level] down to each level."""
    total = num_read[:, -1]
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, total.max(initial=0) + 1))])
    earlier, earlier_right = (np.pad(own[:, :-1], ((0, 0), (1, 0))) for own in (num_read, num_right))
    # Within a level the expected number of right ones is a straight line, offset + slope * cases: its mean accuracies
    # sum up to the right ones of the level and the offset times the sum of 1 / cases.
    slope = (num_right - earlier_right) / np.maximum(num_read - earlier, 1)
    curved = (earlier_right - slope * earlier) * (harmonic[num_read] - harmonic[earlier])
    return divide(num_right[:, -1] + curved.sum(axis=1), total)


def _check(weights: npt.NDArray, probabilities: npt.NDArray, labels: npt.NDArray) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or weights.shape[1:] != labels.shape:
        raise ValueError(
            f"found weights {weights.shape}, probabilities {probabilities.shape} and labels {labels.shape}, "
            "accepted are [resample, case], [case, answer] and [case]"
        )
