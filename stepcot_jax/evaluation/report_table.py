"""Metrics as a text table and as `report.json`."""

import json
import math
import os
import textwrap
from collections.abc import Mapping
from typing import Any

from stepcot_jax.evaluation.metrics import StepMetrics
from stepcot_jax.evaluation.predictions import ModelMetrics
from stepcot_jax.host.files import write_whole

_WIDTH = 110
_COLUMNS = {
    "accuracy": "accuracy",
    "majority_accuracy": "majority",
    "auc": "AUC",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "f1": "F1",
    "precision": "precision",
}
_SPLITS = ("train", "val", "test")


def format_table(metrics: Mapping[str, ModelMetrics]) -> str:
    """Format a text table for each model, in percent, followed by notes on what the averages leave out.

    The mean line averages each column over the steps with two or more answers where it is defined.
    """
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
        "test": {name: _report_model(model) for name, model in _teacher_first(metrics).items()},
    }


def write_report(path: str | os.PathLike[str], report: Mapping[str, Any]) -> None:
    """Write a report as strict JSON, atomically."""
    write_whole(path, (json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode())


def _teacher_first(metrics: Mapping[str, ModelMetrics]) -> dict[str, ModelMetrics]:
    """The paper's order, which a dict from a jitted function loses because JAX sorts its keys."""
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


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _report_model(model: ModelMetrics) -> dict[str, Any]:
    return {
        "mean_accuracy": _null_if_nan(model.mean_accuracy),
        "mean_majority_accuracy": _null_if_nan(model.mean_majority_accuracy),
        "chain_accuracy": _null_if_nan(model.chain_accuracy),
        "majority_chain_accuracy": _null_if_nan(model.majority_chain_accuracy),
        "steps": [_report_step(step) for step in model.steps],
    }


def _report_step(step: StepMetrics) -> dict[str, Any]:
    return {
        "name": step.name,
        "num_cases": step.num_cases,
        **{column: _null_if_nan(getattr(step, column)) for column in _COLUMNS},
        "confusion": [list(row) for row in step.confusion],
        "answers": list(step.answers),
        "left_out": list(step.left_out),
    }


def _null_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
