"""Every model's figures in many resamples of a split, patients being drawn with replacement."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.distributions import own_logits, softmax
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.weighted_metrics import FIGURES, mean_defined, weighted_figures

_WEIGHTS_AT_ONCE = 2_000_000  # bounds the memory of a block of resamples to some tens of MB


@dataclasses.dataclass(frozen=True)
class ResampledFigures:
    """Figures of a model, or differences between two, in each resample; NaN where undefined.

    Attributes:
      mean_accuracy: [resample].
      chain_accuracy: [resample].
      steps: [resample, step, figure], in the order of `FIGURES`.
    """

    mean_accuracy: npt.NDArray[np.float64]
    chain_accuracy: npt.NDArray[np.float64]
    steps: npt.NDArray[np.float64]

    def __sub__(self, other: "ResampledFigures") -> "ResampledFigures":
        return ResampledFigures(
            mean_accuracy=self.mean_accuracy - other.mean_accuracy,
            chain_accuracy=self.chain_accuracy - other.chain_accuracy,
            steps=self.steps - other.steps,
        )


def resample(
    split: SplitPredictions, chain: Chain, *, num_resamples: int, seed: int
) -> tuple[npt.NDArray[np.float64], dict[str, ResampledFigures]]:
    """Figures of every model in the same resamples.

    Args:
      split: labels, logits and patients.
      chain: the steps.
      num_resamples: number of resamples, from 1.
      seed: seed of the draws.

    Returns:
      For each step the share of the resamples that lack an answer which the split has, and the figures by the
      model's name. With fewer than two patients every figure is NaN: their resamples would all be alike.

    Raises:
      ValueError: the logits do not fit the chain.
    """
    labels = split.predictions.labels
    patients = split.facts["patient_id"]
    probabilities = {
        model: tuple(softmax(own) for own in own_logits(logits, chain=chain, model=model))
        for model, logits in split.predictions.logits.items()
    }
    if count_patients(patients) < 2:
        nothing = np.full((num_resamples, chain.num_steps, len(FIGURES)), np.nan)
        return np.zeros(chain.num_steps), {
            model: ResampledFigures(nothing[:, 0, 0], nothing[:, 0, 0], nothing) for model in probabilities
        }
    blocks: dict[str, list[ResampledFigures]] = {model: [] for model in probabilities}
    num_incomplete = np.zeros(chain.num_steps)
    for weights in draw_weights(patients, num_resamples=num_resamples, seed=seed):
        num_incomplete += _count_incomplete(weights, labels)
        for model, steps in probabilities.items():
            blocks[model].append(_weigh_model(weights, steps, labels))
    return num_incomplete / num_resamples, {model: _concatenate(parts) for model, parts in blocks.items()}


def draw_weights(
    patients: npt.NDArray[np.str_], *, num_resamples: int, seed: int, num_at_once: int = _WEIGHTS_AT_ONCE
) -> Iterator[npt.NDArray[np.int64]]:
    """How often each case counts in each resample.

    Args:
      patients: [case], whose cases stay together; a case without a patient ("") stands for itself.
      num_resamples: number of resamples.
      seed: seed of the draws.
      num_at_once: about how many weights a block has; the draws do not depend on it.

    Yields:
      Blocks of [resample, case].
    """
    own = np.array([patient or f"\n{case}" for case, patient in enumerate(patients.tolist())], dtype=np.str_)
    names, member = np.unique(own, return_inverse=True)
    rng = np.random.default_rng(seed)
    size = max(1, num_at_once // len(own))
    for start in range(0, num_resamples, size):
        block = min(size, num_resamples - start)
        yield rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=block)[:, member]


def count_patients(patients: npt.NDArray[np.str_]) -> int:
    """Number of patients, a case without one ("") being one of its own.

    >>> count_patients(np.array(["a", "b", "a", "", ""]))
    4
    """
    unknown = patients == ""
    return len(np.unique(patients[~unknown])) + int(unknown.sum())


def _weigh_model(
    weights: npt.NDArray[np.int64], steps: tuple[npt.NDArray[np.float64], ...], labels: npt.NDArray[np.int32]
) -> ResampledFigures:
    annotated = labels != NOT_ANNOTATED
    figures, right = [], []
    for position, probabilities in enumerate(steps):
        known, truth = annotated[:, position], labels[:, position]
        figures.append(weighted_figures(weights[:, known], probabilities=probabilities[known], truth=truth[known]))
        right.append(~known | (probabilities.argmax(axis=1) == truth))
    counts = annotated.any(axis=1)
    num_counted = (weights @ counts).astype(np.float64)
    num_right = (weights @ (np.stack(right, axis=1).all(axis=1) & counts)).astype(np.float64)
    stacked = np.stack(figures, axis=1)
    return ResampledFigures(
        mean_accuracy=mean_defined(stacked[:, :, FIGURES.index("accuracy")]),
        chain_accuracy=np.divide(num_right, num_counted, out=np.full(len(weights), np.nan), where=num_counted > 0),
        steps=stacked,
    )


def _count_incomplete(weights: npt.NDArray[np.int64], labels: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """For each step the number of resamples in which an answer of the split does not occur."""
    counts = []
    for own in labels.T:
        lacks = np.zeros(len(weights), dtype=bool)
        for label in np.unique(own[own != NOT_ANNOTATED]):
            lacks |= weights[:, own == label].sum(axis=1) == 0
        counts.append(lacks.sum())
    return np.array(counts, dtype=np.float64)


def _concatenate(parts: list[ResampledFigures]) -> ResampledFigures:
    return ResampledFigures(
        mean_accuracy=np.concatenate([part.mean_accuracy for part in parts]),
        chain_accuracy=np.concatenate([part.chain_accuracy for part in parts]),
        steps=np.concatenate([part.steps for part in parts]),
    )
