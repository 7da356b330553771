"""Everything that statistics say of a split in one plain tree: the content of `statistics.json`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.evaluation.consistency import Rules, share_inconsistent
from stepcot_jax.evaluation.decoding import decoding_effect
from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.statistics_intervals import (
    TRUE_CHAINS,
    ResampledStatistics,
    decoding_differences,
    interval_tree,
    resample_statistics,
)
from stepcot_jax.evaluation.step_statistics import StepCases, step_cases, step_statistics
from stepcot_jax.evaluation.subgroups import Subgroup, score_subgroups

_SEED = 0  # one for all intervals, so that they are about the same resamples


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
      Plain types by the model's name, shares in 0..1, None where undefined. Figures are numbers; the key `intervals`
      beside them has for each by its name the number, both ends of the interval and the share of the resamples in
      which it is undefined.
    """
    predictions = split.predictions
    known = (predictions.labels != NOT_ANNOTATED).all(axis=1)
    broken = share_inconsistent(predictions.labels[known], rules) if known.any() else math.nan
    effects = decoding_effect(predictions, chain, rules)
    cases = {model: step_cases(predictions, chain, model=model, calibration=calibration) for model in effects}
    intervals, resampled = {}, None
    if num_resamples:
        intervals = bootstrap(split, chain, num_resamples=num_resamples, seed=_SEED)
        resampled = resample_statistics(split, chain, cases=cases, rules=rules, num_resamples=num_resamples, seed=_SEED)
    found = {
        "num_cases": len(predictions.labels),
        "num_resamples": num_resamples,
        TRUE_CHAINS: broken,
        "intervals": interval_tree({TRUE_CHAINS: broken}, resampled.labels) if resampled is not None else None,
        "models": {
            model: {
                "intervals": _plain_intervals(intervals[model]) if model in intervals else None,
                "steps": _plain_steps(model, cases[model], resampled),
                "consistent_decoding": {
                    **dataclasses.asdict(effect),
                    "intervals": interval_tree(
                        {**dataclasses.asdict(effect), **decoding_differences(effect)}, resampled.decoding[model]
                    )
                    if resampled is not None
                    else None,
                },
            }
            for model, effect in effects.items()
        },
        "subgroups": _plain_subgroups(split, chain, num_resamples) if num_resamples else None,
    }
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


def _plain_steps(model: str, steps: list[StepCases], resampled: ResampledStatistics | None) -> dict[str, Any]:
    found = {}
    for position, cases in enumerate(steps):
        figures = step_statistics(cases)
        intervals = interval_tree(figures, resampled.steps[model][position]) if resampled is not None else None
        found[cases.name] = {**figures, "intervals": intervals}
    return found


def _plain_intervals(found: ModelIntervals) -> dict[str, Any]:
    return {
        "mean_accuracy": dataclasses.asdict(found.mean_accuracy),
        "chain_accuracy": dataclasses.asdict(found.chain_accuracy),
        "steps": [dataclasses.asdict(step) for step in found.steps],
    }


def _plain_subgroups(split: SplitPredictions, chain: Chain, num_resamples: int) -> list[dict[str, Any]]:
    return [
        {
            "grouping": group.grouping,
            "name": group.name,
            "num_cases": group.num_cases,
            "num_patients": group.num_patients,
            **_plain_scores(group),
        }
        for group in score_subgroups(split, chain, num_resamples=num_resamples, seed=_SEED)
    ]


def _plain_scores(group: Subgroup) -> dict[str, Any]:
    if group.models is None:
        return {"mean_accuracy": None, "steps": None}
    return {
        "mean_accuracy": {model: dataclasses.asdict(found.mean_accuracy) for model, found in group.models.items()},
        "steps": {
            model: {
                step.name: {
                    "num_cases": step.num_cases,
                    "accuracy": dataclasses.asdict(step.accuracy),
                    "auc": dataclasses.asdict(step.auc),
                    "share_incomplete": step.share_incomplete,
                }
                for step in found.steps
            }
            for model, found in group.models.items()
        },
    }


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
