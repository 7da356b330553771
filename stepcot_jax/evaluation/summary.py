"""Everything that statistics say of a split in one plain tree: the content of `statistics.json`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities
from stepcot_jax.evaluation.consistency import Rules, share_inconsistent
from stepcot_jax.evaluation.decoding import decoding_effect
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.intervals import Interval, ModelIntervals, bootstrap
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.reliability import step_reliability
from stepcot_jax.evaluation.selective import selective_curve
from stepcot_jax.evaluation.subgroups import score_subgroups

_COVERAGES = (0.5, 0.7, 0.9, 1.0)


def summarise(
    split: SplitPredictions,
    chain: Chain,
    *,
    calibration: Calibration,
    rules: Rules,
    num_resamples: int,
) -> dict[str, Any]:
    """Intervals, calibration, answer sets, selective reading, consistency and subgroups of every model on a split.

    Args:
      split: what the models said, and who the cases are.
      chain: the steps.
      calibration: fitted on another split.
      rules: pairs of answers that cannot stand together.
      num_resamples: of the bootstrap, which goes by patient; 0 leaves intervals and subgroups out.

    Returns:
      Plain types by the model's name, shares in 0..1, None where undefined.
    """
    predictions = split.predictions
    found: dict[str, Any] = {"num_cases": len(predictions.labels), "num_resamples": num_resamples}
    known = (predictions.labels != NOT_ANNOTATED).all(axis=1)
    found["share_of_true_chains_that_break_a_rule"] = (
        share_inconsistent(predictions.labels[known], rules) if known.any() else math.nan
    )
    effects = decoding_effect(predictions, chain, rules)
    before, after = (step_reliability(predictions, chain, calibration=each) for each in (None, calibration))
    intervals = bootstrap(split, chain, num_resamples=num_resamples) if num_resamples else {}
    found["models"] = {
        model: {
            "intervals": _plain_intervals(intervals[model]) if model in intervals else None,
            "steps": {
                step.name: {
                    "ece": before[model][position].ece,
                    "ece_calibrated": after[model][position].ece,
                    "brier": before[model][position].brier,
                    "nll": before[model][position].nll,
                    "nll_calibrated": after[model][position].nll,
                    **_read_surely(predictions, model, position, calibration, chain),
                }
                for position, step in enumerate(chain.steps)
            },
            "consistent_decoding": dataclasses.asdict(effects[model]),
        }
        for model in predictions.logits
    }
    found["subgroups"] = _plain_subgroups(split, chain, num_resamples) if num_resamples else None
    return _without_nan(found)


def describe(summary: Mapping[str, Any], *, decoded: bool) -> list[str]:
    """Lines for a person: mean accuracy with its interval and, if asked for, what consistent decoding changes."""
    lines = []
    for model, found in summary["models"].items():
        if found["intervals"] is not None:
            mean = found["intervals"]["mean_accuracy"]
            value, low, high = (_percent(mean[name]) for name in ("value", "low", "high"))
            lines.append(f"{model}: mean step accuracy {value} %, 95 % interval by patient {low} to {high}")
        if decoded:
            effect = found["consistent_decoding"]
            shares = (effect["share_inconsistent"], effect["chain_accuracy_before"], effect["chain_accuracy_after"])
            inconsistent, whole_before, whole_after = map(_percent, shares)
            lines.append(
                f"{model}: {inconsistent} % of the chains contradict themselves; decoded to the most probable "
                f"consistent ones, mean step accuracy goes from {_mean(effect['accuracy_before'])} to "
                f"{_mean(effect['accuracy_after'])} %, whole chains right from {whole_before} to {whole_after} %"
            )
    return lines


def _read_surely(
    predictions: Predictions, model: str, position: int, calibration: Calibration, chain: Chain
) -> dict[str, Any]:
    """Answer sets, and accuracy among the surest cases, of one step."""
    probabilities = calibrated_probabilities(predictions.logits[model], model, calibration, chain)
    labels = predictions.labels[:, position]
    annotated = labels != NOT_ANNOTATED
    sets = answer_sets(probabilities, model, calibration, chain)[annotated, position]
    covered = sets[np.arange(len(sets)), labels[annotated]]
    own = probabilities[:, position, : chain.steps[position].num_answers]
    curve = selective_curve(probabilities=own, labels=labels)
    accuracies = {
        f"{share:.0%}": next((a for a, c in zip(curve.accuracy, curve.coverage, strict=True) if c >= share), math.nan)
        for share in _COVERAGES
    }
    return {
        "answer_set_coverage": float(covered.mean()) if len(covered) else math.nan,
        "answer_set_size": float(sets.sum(axis=1).mean()) if len(sets) else math.nan,
        "accuracy_of_the_surest": accuracies,
        "selective_area": curve.area,
    }


def _plain_intervals(found: ModelIntervals) -> dict[str, Any]:
    return {
        "mean_accuracy": dataclasses.asdict(found.mean_accuracy),
        "chain_accuracy": dataclasses.asdict(found.chain_accuracy),
        "steps": [dataclasses.asdict(step) for step in found.steps],
    }


def _plain_subgroups(split: SplitPredictions, chain: Chain, num_resamples: int) -> list[dict[str, Any]]:
    def accuracy(interval: Interval) -> dict[str, Any]:
        return dataclasses.asdict(interval)

    return [
        {
            "grouping": group.grouping,
            "name": group.name,
            "num_cases": group.num_cases,
            "num_patients": group.num_patients,
            "mean_accuracy": None
            if group.models is None
            else {model: accuracy(found.mean_accuracy) for model, found in group.models.items()},
        }
        for group in score_subgroups(split, chain, num_resamples=num_resamples)
    ]


def _without_nan(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_nan(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_nan(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _mean(shares: list[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return _percent(sum(known) / len(known) if known else None)
