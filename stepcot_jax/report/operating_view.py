"""The section on operating points: a table of all, and the data of the curves that the page's script draws."""

import math
from typing import Any

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.operating_points import (
    FIGURES,
    Finding,
    Levels,
    OperatingPoint,
    OperatingPoints,
    count_levels,
)
from stepcot_jax.evaluation.resamples import count_once
from stepcot_jax.host.pages import name_unseen
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.page import Section, render

MOST_LEVELS = 150
"""Thresholds of a curve on the page; where the test cases have more, evenly spaced ones of them."""


def write_operating_section(run: FinishedRun) -> Section:
    """Write the operating points with their figures, and curves of the test cases on which thresholds can be tried."""
    found = run.operating_points
    if found is None:
        lead = "This run chose none; python -m stepcot_jax.main with the same --config and --workdir chooses them."
        return Section("operating", "Operating points", lead, render("operating.html.j2", models={}, data=None))
    lead = (
        "From which probability on is an answer called, against all others of its step? Thresholds: "
        f"{found.rule.describe()}. Curves and figures are of the test cases, probabilities as in the calibration above."
    )
    models: dict[str, list[tuple[str, str, OperatingPoint]]] = {}
    for (model, step, answer), point in found.points.items():
        models.setdefault(model, []).append((step, answer, point))
    body = render("operating.html.j2", models=models, data=_gather(run, found), figures=FIGURES)
    return Section("operating", "Operating points", lead, body)


def _gather(run: FinishedRun, found: OperatingPoints) -> list[dict[str, Any]]:
    """Return the curves of the answers that some, but not all test cases have."""
    return [_draw(run, finding, point) for finding, point in found.points.items() if all(point.test)]


def _draw(run: FinishedRun, finding: Finding, point: OperatingPoint) -> dict[str, Any]:
    model, name, option = finding
    place = next(number for number, step in enumerate(run.chain.steps) if step.name == name)
    answer = run.chain.steps[place].options.index(option)
    labels = run.split.predictions.labels[:, place]
    annotated = labels != NOT_ANNOTATED
    levels = count_levels(
        count_once(int(annotated.sum())),
        scores=run.probabilities(model)[annotated, place, answer],
        positive=labels[annotated] == answer,
    )
    chosen = int((levels.thresholds >= point.threshold.value).sum()) - 1
    kept = _thin(len(levels.thresholds), chosen)
    rows = zip(levels.thresholds[kept], levels.hits[0, kept], levels.alarms[0, kept], strict=True)
    area, precision = _areas(levels)
    return {
        "model": model,
        "step": name_unseen(name),
        "answer": name_unseen(option),
        "positive": point.test[0],
        "negative": point.test[1],
        "threshold": point.threshold.value if math.isfinite(point.threshold.value) else None,
        "chosen": kept.index(chosen),
        "area": round(area, 4),
        "precision": round(precision, 4),
        # The first level is infinite: nothing is called.
        "levels": [[round(float(at), 4) if at < math.inf else None, int(hit), int(alarm)] for at, hit, alarm in rows],
    }


def _thin(num_levels: int, chosen: int) -> list[int]:
    """Return the levels to keep, ascending: the first, the last, the chosen one, and evenly spaced ones."""
    spaced = np.linspace(0, num_levels - 1, min(num_levels, MOST_LEVELS - 1)).round().astype(int).tolist()
    return sorted({*spaced, chosen})


def _areas(levels: Levels) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision."""
    recall, fallout = levels.hits[0] / levels.hits[0, -1], levels.alarms[0] / levels.alarms[0, -1]
    precision = levels.hits[0, 1:] / (levels.hits[0, 1:] + levels.alarms[0, 1:])
    return float(np.trapezoid(recall, fallout)), float((np.diff(recall) * precision).sum())
