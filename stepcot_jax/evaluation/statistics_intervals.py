"""Bootstrap intervals by patient of what the statistics say beyond the metrics, as `intervals` has them for those.

The resamples are those of `intervals.bootstrap` with the same seed, so that intervals of one file are about the same
draws of patients. A calibration error is a sum of distances, which the noise of a resample adds to and never takes
from: its interval lies high, and where the split's own error is small it may lie above it as a whole.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.consistency import Rules, inconsistent
from stepcot_jax.evaluation.decoding import DecodingEffect, decode_consistent
from stepcot_jax.evaluation.distributions import log_softmax, own_logits
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.intervals import percentiles
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.resamples import count_patients, draw_weights
from stepcot_jax.evaluation.step_statistics import StepCases, weigh_step
from stepcot_jax.evaluation.weighted_metrics import mean_defined
from stepcot_jax.evaluation.weighted_statistics import weigh_decoding, weigh_means

TRUE_CHAINS = "share_of_true_chains_that_break_a_rule"

Resampled = dict[str, npt.NDArray[np.float64]]
"""By the figure's name [resample] or, for a figure with several numbers, [resample, number]."""


@dataclasses.dataclass(frozen=True)
class ResampledStatistics:
    """Statistics of a split in each resample; NaN where undefined.

    Attributes:
      labels: what needs no model: `TRUE_CHAINS`.
      steps: by the model's name for each step what `weigh_step` gives.
      decoding: by the model's name what `weigh_decoding` gives.
    """

    labels: Resampled
    steps: dict[str, tuple[Resampled, ...]]
    decoding: dict[str, Resampled]


def resample_statistics(
    split: SplitPredictions,
    chain: Chain,
    *,
    cases: Mapping[str, Sequence[StepCases]],
    rules: Rules,
    num_resamples: int,
    seed: int = 0,
) -> ResampledStatistics:
    """Statistics of every model in the same resamples.

    Args:
      split: labels, logits and patients.
      chain: the steps.
      cases: by the model's name what `step_cases` makes of the split.
      rules: pairs of answers that cannot stand together.
      num_resamples: number of resamples, from 1.
      seed: seed of the draws.

    Returns:
      The figures. With fewer than two patients every one is NaN: their resamples would all be alike.

    Raises:
      ValueError: the number is outside, or the logits do not fit the chain.
      BadInput: the rules contradict each other, so that no chain keeps them all.
    """
    if num_resamples < 1:
        raise ValueError(f"num_resamples: found {num_resamples}, accepted is 1 or more")
    labels, patients = split.predictions.labels, split.facts["patient_id"]
    known = (labels != NOT_ANNOTATED).all(axis=1)[:, None]
    broken = inconsistent(labels, rules)[:, None]
    answers = {model: _decode(split.predictions, chain, rules, model=model) for model in cases}
    # A resample that draws nobody leaves every figure undefined.
    nobody = np.zeros((1, len(labels)), dtype=np.int64)
    several = count_patients(patients) >= 2
    blocks = [
        ResampledStatistics(
            labels={TRUE_CHAINS: weigh_means(weights, values=broken, counted=known)[:, 0]},
            steps={model: tuple(weigh_step(weights, step) for step in steps) for model, steps in cases.items()},
            decoding={
                model: weigh_decoding(weights, before=before, after=after, labels=labels, rules=rules)
                for model, (before, after) in answers.items()
            },
        )
        for weights in (draw_weights(patients, num_resamples=num_resamples, seed=seed) if several else [nobody])
    ]
    return ResampledStatistics(
        labels=_concatenate([block.labels for block in blocks]),
        steps={
            model: tuple(
                _concatenate([block.steps[model][position] for block in blocks]) for position in range(chain.num_steps)
            )
            for model in cases
        },
        decoding={model: _concatenate([block.decoding[model] for block in blocks]) for model in cases},
    )


def interval_tree(values: Mapping[str, Any], resampled: Resampled, *, level: float = 0.95) -> dict[str, Any]:
    """Percentile intervals of every resampled figure, in the shape that its values have.

    Args:
      values: by the figure's name a number, or a mapping or sequence of numbers; others than the resampled ones
        are passed over.
      resampled: by the figure's name [resample], or [resample, number] in the order of those numbers.
      level: share of the resampled figures inside an interval, above 0 and below 1.

    Returns:
      For each number the fields of an `Interval`.

    Raises:
      ValueError: the level is outside, or a figure has another number of numbers than its values.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}, accepted is a share above 0 and below 1")

    def describe(value: Any, figures: npt.NDArray[np.float64]) -> Any:
        if isinstance(value, Mapping):
            return dict(zip(value, describe(list(value.values()), figures), strict=True))
        if isinstance(value, Sequence):
            return [describe(own, column) for own, column in zip(value, figures.T, strict=True)]
        return dataclasses.asdict(percentiles(value, figures, level=level))

    return {name: describe(values[name], figures) for name, figures in resampled.items()}


def decoding_differences(effect: DecodingEffect) -> dict[str, Any]:
    """Mean accuracies of the steps before and after, and what decoding adds to each kind of accuracy.

    Returns:
      By the names that `weigh_decoding` has beyond those of `DecodingEffect`, NaN where undefined.
    """
    mean_before, mean_after = (
        float(mean_defined(np.asarray(own, dtype=np.float64)))
        for own in (effect.accuracy_before, effect.accuracy_after)
    )
    return {
        "mean_accuracy_before": mean_before,
        "mean_accuracy_after": mean_after,
        "accuracy_difference": tuple(
            after - before for before, after in zip(effect.accuracy_before, effect.accuracy_after, strict=True)
        ),
        "mean_accuracy_difference": mean_after - mean_before,
        "chain_accuracy_difference": effect.chain_accuracy_after - effect.chain_accuracy_before,
    }


def _decode(
    predictions: Predictions, chain: Chain, rules: Rules, *, model: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Answers [case, step], each step answered for itself, and those of the decoded chains."""
    scores = tuple(log_softmax(own) for own in own_logits(predictions.logits[model], chain=chain, model=model))
    return np.stack([own.argmax(axis=1) for own in scores], axis=1), decode_consistent(scores, rules)


def _concatenate(parts: Sequence[Resampled]) -> Resampled:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
