"""All statistics of a split as one tree of plain values: the content of `statistics.json`.

An expected calibration error only grows by a resample's noise: a small one can lie below its interval.
"""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.evaluation.chains import (
    BY_ANSWER,
    COVERAGES,
    SUREST,
    ModelIntervals,
    ModelMetrics,
    StepMetrics,
    bootstrap,
    evaluate,
    step_cases,
    step_statistics,
)
from stepcot_jax.evaluation.consistency import Rules, inconsistent, judge_normal
from stepcot_jax.evaluation.predictions import SplitPredictions, logits_by_step
from stepcot_jax.evaluation.statistics import (
    MIN_PATIENTS,
    Weights,
    as_plain,
    count_once,
    count_patients,
    intervals,
    resample,
    weighted_mean,
)

# Figures of subgroups by origin, view, sex and age, with intervals.


GROUPINGS = ("origin", "view", "sex", "age")
UNKNOWN = "unknown"

_AGE_BANDS = ((18, "0-17"), (40, "18-39"), (65, "40-64"), (math.inf, "65+"))


@dataclasses.dataclass(frozen=True)
class Subgroup:
    """Cases that share a fact."""

    grouping: str  # the fact, one of `GROUPINGS`
    name: str  # its value; `UNKNOWN` if there is none
    num_cases: int
    num_patients: int
    models: dict[str, ModelIntervals] | None  # figures by model name; None with too few patients


def score_subgroups(
    split: SplitPredictions,
    chain: Chain,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    of_all: dict[str, ModelIntervals] | None = None,
) -> tuple[Subgroup, ...]:
    """Compute the figures of every group, each with its own bootstrap; means are over the split's steps in all.

    A group of all cases has the figures `of_all`, if these are given.
    """
    left_out, groups = find_one_answer(split.predictions.labels), []
    for grouping in GROUPINGS:
        name_of = age_band if grouping == "age" else lambda value: value.strip() or UNKNOWN
        names = np.array([name_of(value) for value in split.facts[grouping].tolist()])
        for name in sorted(set(names.tolist()), key=lambda name: (name == UNKNOWN, name)):  # bands of age too
            part = split.take(names == name)
            num_patients = count_patients(part.facts["patient_id"])
            models = None
            if num_patients >= MIN_PATIENTS:
                models = of_all if (names == name).all() else None
                models = models or bootstrap(part, chain, num_resamples=num_resamples, seed=seed, left_out=left_out)
            groups.append(Subgroup(grouping, name, len(part.predictions.index), num_patients, models))
    return tuple(groups)


def age_band(age: str) -> str:
    """Return the band of an age in years, given as text; `UNKNOWN` for ""."""
    if not age:
        return UNKNOWN
    return next(name for limit, name in _AGE_BANDS if float(age) < limit)


TRUE_CHAINS = "share_of_true_chains_that_break_a_rule"
CONTRADICTING = "share_inconsistent"
NORMAL = "normal"  # the shares of `judge_normal`

_MAJORITIES = ("mean_majority_accuracy", "majority_chain_accuracy")
_SEED = 0  # one for all intervals, so that they share their resamples

Statistics = dict[tuple[str, str, str], npt.NDArray[np.float64]]
"""By model, step ("" for the whole chain) and figure: [resample] or, for several numbers, [resample, number]."""


def summarise(
    split: SplitPredictions, chain: Chain, *, calibration: Calibration, rules: Rules, num_resamples: int
) -> dict[str, Any]:
    """Compute all statistics of every model as plain types; `intervals` has those of the figures next to it."""
    compute = prepare_statistics(split, chain, calibration=calibration, rules=rules)
    values, resampled, of_models = compute(count_once(len(split.predictions.labels))), None, {}
    if num_resamples:
        of_models = bootstrap(split, chain, num_resamples=num_resamples, seed=_SEED)
        resampled = resample(compute, split.facts["patient_id"], num_resamples=num_resamples, seed=_SEED)

    options = {step.name: step.options for step in chain.steps}
    of_normal = list(judge_normal(split.predictions.labels, split.predictions.labels, chain))

    def describe_figures(model: str, step: str) -> dict[str, Any]:
        figures = {key[2]: values[key] for key in values if key[:2] == (model, step)}
        keys = {SUREST: [f"{share:.0%}" for share in COVERAGES], BY_ANSWER: options.get(step), NORMAL: of_normal}
        numbers = {name: _name_numbers(figures[name][0].tolist(), keys.get(name)) for name in figures}
        ends = resampled and {
            name: _name_numbers(intervals(value[0], resampled[model, step, name]), keys.get(name))
            for name, value in figures.items()
        }
        return {**numbers, "intervals": ends}

    metrics = evaluate(split.predictions, chain)
    summary = {
        **_count_answers(split.predictions.labels, chain),
        "num_resamples": num_resamples,
        **describe_figures("", ""),
        "models": {
            model: {
                **{name: getattr(metrics[model], name) for name in _MAJORITIES},
                "intervals": of_models.get(model),
                "steps": {step.name: describe_figures(model, step.name) for step in chain.steps},
                "consistency": describe_figures(model, ""),
            }
            for model in split.predictions.logits
        },
        "subgroups": None,
    }
    if num_resamples:
        groups = score_subgroups(split, chain, num_resamples=num_resamples, seed=_SEED, of_all=of_models)
        summary["subgroups"] = [_describe_subgroup(group) for group in groups]
    return as_plain(summary)


def _count_answers(labels: npt.NDArray[np.integer], chain: Chain) -> dict[str, Any]:
    return {
        "num_cases": len(labels),
        "num_cases_by_answer": {
            step.name: {option: int((truth == answer).sum()) for answer, option in enumerate(step.options)}
            for step, truth in zip(chain.steps, labels.T, strict=True)
        },
        "steps_with_one_answer": [
            step.name for step, has_one in zip(chain.steps, find_one_answer(labels), strict=True) if has_one
        ],
    }


def prepare_statistics(
    split: SplitPredictions, chain: Chain, *, calibration: Calibration, rules: Rules
) -> Callable[[Weights], Statistics]:
    """Return a function from weights [resample, case] to all statistics in each resample."""
    predictions, labels = split.predictions, split.predictions.labels
    complete = (labels != NOT_ANNOTATED).all(axis=1, keepdims=True)
    broken = inconsistent(labels, rules)[:, None]
    answers = {
        model: np.stack([own.argmax(axis=1) for own in logits_by_step(logits, chain=chain, model=model)], axis=1)
        for model, logits in predictions.logits.items()
    }
    of_chains = {
        model: {CONTRADICTING: inconsistent(own, rules), **judge_normal(own, labels, chain)}
        for model, own in answers.items()
    }
    cases = {
        model: step_cases(predictions, chain, model=model, calibration=calibration) for model in predictions.logits
    }

    def compute(weights: Weights) -> Statistics:
        statistics = {("", "", TRUE_CHAINS): weighted_mean(weights, values=broken, counted=complete)[:, 0]}
        for model, figures in of_chains.items():
            for step in cases[model]:
                statistics |= {
                    (model, step.name, name): values for name, values in step_statistics(weights, step).items()
                }
            values = np.stack(list(figures.values()), axis=1).astype(np.float64)
            shares = weighted_mean(weights, values=values, counted=~np.isnan(values))
            statistics |= {(model, "", CONTRADICTING): shares[:, 0], (model, "", NORMAL): shares[:, 1:]}
        return statistics

    return compute


def describe(summary: Mapping[str, Any]) -> list[str]:
    """Describe each model's mean accuracy with its interval."""
    lines = []
    left_out = summary["steps_with_one_answer"]
    if left_out:
        lines.append(f"every test case has the same answer at {', '.join(left_out)}: not in the mean over the steps")
    for model, figures in summary["models"].items():
        if figures["intervals"] is not None:
            mean = figures["intervals"]["mean_accuracy"]
            value, low, high = (_percent(mean[name]) for name in ("value", "low", "high"))
            majority = _percent(figures["mean_majority_accuracy"])
            lines.append(
                f"{model}: mean step accuracy {value} %, 95 % interval by patient {low} to {high}; "
                f"most frequent answers {majority} %"
            )
    return lines


def describe_normal(summary: Mapping[str, Any]) -> list[str]:
    """Describe each model's shares of `judge_normal` with their intervals; nothing for a chain without them."""
    lines = []
    for model, figures in summary["models"].items():
        shares, ends = figures["consistency"][NORMAL], (figures["consistency"]["intervals"] or {}).get(NORMAL)
        spread = {name: f" [{_percent(end['low'])}, {_percent(end['high'])}]" for name, end in (ends or {}).items()}
        parts = [f"{name} {_percent(share)} %{spread.get(name, '')}" for name, share in shares.items()]
        lines += [f"{model}: {', '.join(parts)}"] if parts else []
    return lines


def _name_numbers(value: Any, keys: Sequence[str] | None) -> Any:
    """Return the numbers of a figure by their keys; unchanged without keys."""
    return value if keys is None else dict(zip(keys, value, strict=True))


def _describe_subgroup(group: Subgroup) -> dict[str, Any]:
    models = group.models or {}
    kept = ("num_cases", "accuracy", "auc", "share_incomplete")
    steps = {
        model: {step.name: {name: getattr(step, name) for name in kept} for step in figures.steps}
        for model, figures in models.items()
    }
    return {
        "grouping": group.grouping,
        "name": group.name,
        "num_cases": group.num_cases,
        "num_patients": group.num_patients,
        "mean_accuracy": {model: figures.mean_accuracy for model, figures in models.items()} or None,
        "steps": steps or None,
    }


def _percent(share: float | None) -> str:
    return "-" if share is None or math.isnan(share) else f"{100 * share:.1f}"


# Metrics as a text table and as `report.json`.


_WIDTH = 110
_COLUMNS = {
    "accuracy": "accuracy",
    "majority_accuracy": "majority",
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "macro spec.",
    "f1": "F1",
    "precision": "precision",
}
_SPLITS = ("train", "val", "test")


def format_table(metrics: Mapping[str, ModelMetrics]) -> str:
    """Format a text table for each model, in percent, followed by notes on what the averages leave out."""
    ordered = _teacher_first(metrics)
    blocks = [_format_model(name, model) for name, model in ordered.items()]
    # The models answered the same cases: each note appears once for all of them.
    notes = list(dict.fromkeys(note for model in ordered.values() for step in model.steps for note in _notes(step)))
    silent = dict.fromkeys(step.name for model in ordered.values() for step in model.steps if not step.num_cases)
    if silent:
        notes.append(f"without labels, left out of the table: {', '.join(silent)}")
    if notes:
        blocks.append("\n".join(textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in notes))
    return "\n\n".join(blocks)


def report_dict(
    *, metrics: Mapping[str, ModelMetrics], num_cases: Mapping[str, int], wall_seconds: float
) -> dict[str, Any]:
    """Return the content of `report.json`: plain types, None where a figure is undefined."""
    return {
        "num_cases": {split: int(num_cases[split]) for split in _SPLITS},
        "wall_seconds": float(wall_seconds),
        "test": as_plain(_teacher_first(metrics)),
    }


def _teacher_first(metrics: Mapping[str, ModelMetrics]) -> dict[str, ModelMetrics]:
    """Restore the paper's order, which a dict from a jitted function loses because JAX sorts its keys."""
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name != "teacher")}


def _format_model(name: str, model: ModelMetrics) -> str:
    # Two spaces before each column, and room for a number of cases of nine digits.
    widths = [11, *(max(len(header), 5) + 2 for header in _COLUMNS.values())]
    room = _WIDTH - sum(widths)
    steps = [step for step in model.steps if step.num_cases]
    names = [_shorten(label, room) for label in (f"{name} (%)", *(step.name for step in steps))]
    first = max(len(label) for label in (*names, "mean"))

    def line(label: str, cells: list[str]) -> str:
        return label.ljust(first) + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    rows = [
        line(label, [str(step.num_cases), *(_percent(getattr(step, column)) for column in _COLUMNS)])
        for label, step in zip(names[1:], steps, strict=True)
    ]
    rule = "-" * (first + sum(widths))
    return "\n".join(
        [
            line(names[0], ["cases", *_COLUMNS.values()]),
            rule,
            *rows,
            rule,
            line("mean", ["", *(_percent(_mean_column(model, column)) for column in _COLUMNS)]),
            f"all annotated steps of a case correct: {_percent(model.chain_accuracy)} "
            f"(most frequent answers: {_percent(model.majority_chain_accuracy)})",
        ]
    )


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _mean_column(model: ModelMetrics, column: str) -> float:
    if column in ("accuracy", "majority_accuracy"):
        return float(getattr(model, f"mean_{column}"))
    defined = [
        value for step in model.steps if not step.has_one_answer and not math.isnan(value := getattr(step, column))
    ]
    return math.fsum(defined) / len(defined) if defined else math.nan


def _notes(step: StepMetrics) -> list[str]:
    notes = []
    if step.left_out and step.num_cases:
        notes.append(
            f"{step.name}: left out of the macro averages because no case has them: {'; '.join(step.left_out)}"
        )
    if step.has_one_answer:
        notes.append(f"{step.name}: every case has the same answer, left out of the mean line")
    return notes
