"""Whether the networks' confidence can be taken at its word: reliability diagrams, errors and answer sets."""

import math

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.reliability import Reliability, step_reliability
from stepcot_jax.report.figures import draw_reliability
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.markup import Html, join, tag
from stepcot_jax.report.result_tables import percent, scrolled


def write_confidence(run: FinishedRun) -> tuple[str, Html]:
    """A sentence on what is shown, and for every network a diagram a step and a table."""
    raw = step_reliability(run.split.predictions, run.chain)
    if run.calibration is None:
        lead = "How often answers were right against how sure the network was. No temperatures were fitted in this run."
        return lead, join(*(_write_model(run, model, steps, None) for model, steps in raw.items()))
    calibrated = step_reliability(run.split.predictions, run.chain, calibration=run.calibration)
    lead = (
        "How often answers were right against how sure the network was, after one temperature a step that was fitted "
        f"on validation. An answer set should hold the true answer in {run.calibration.coverage:.0%} of the cases."
    )
    return lead, join(*(_write_model(run, model, raw[model], steps) for model, steps in calibrated.items()))


def _write_model(
    run: FinishedRun, model: str, raw: tuple[Reliability, ...], calibrated: tuple[Reliability, ...] | None
) -> Html:
    diagrams = []
    for step in calibrated or raw:
        filled = [each for each in step.bins if each.num_cases]
        diagrams.append(
            draw_reliability(
                [each.confidence for each in filled],
                [each.accuracy for each in filled],
                [each.num_cases for each in filled],
                title=step.name,
            )
        )
    return join(
        tag("h3", model.capitalize()),
        tag("div", *diagrams, class_="charts small"),
        _write_table(run, model, raw, calibrated),
    )


def _write_table(
    run: FinishedRun, model: str, raw: tuple[Reliability, ...], calibrated: tuple[Reliability, ...] | None
) -> Html:
    headers = ["Step", "Cases", "ECE, %", "Brier", "NLL"]
    if calibrated is not None:
        headers += ["Temperature", "ECE before, %", "NLL before", "Set holds truth, %", "Mean set size"]
    rows = [tag("tr", *(tag("th", header, scope="col") for header in headers))]
    sets = _set_figures(run, model)
    for place, step in enumerate(calibrated or raw):
        cells = [str(step.num_cases), percent(step.ece), _decimal(step.brier), _decimal(step.nll)]
        if calibrated is not None and run.calibration is not None:
            covered, size = sets[place]
            temperature = run.calibration.temperatures[model][place]
            cells += [_decimal(temperature), percent(raw[place].ece), _decimal(raw[place].nll), percent(covered)]
            cells.append(_decimal(size))
        rows.append(tag("tr", tag("th", step.name, scope="row"), *(tag("td", cell) for cell in cells)))
    return scrolled(tag("table", *rows, class_="figures"), label=f"Calibration of {model}")


def _set_figures(run: FinishedRun, model: str) -> list[tuple[float, float]]:
    """For each step the share of annotated test cases whose set holds the truth, and the sets' mean size."""
    sets = run.answer_sets(model)
    if sets is None:
        return []
    figures = []
    for place, labels in enumerate(run.split.predictions.labels.T):
        annotated = labels != NOT_ANNOTATED
        own, truth = sets[annotated, place], labels[annotated]
        if not len(truth):
            figures.append((math.nan, math.nan))
            continue
        held = own[np.arange(len(truth)), truth]
        figures.append((float(held.mean()), float(own.sum(axis=1).mean())))
    return figures


def _decimal(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.2f}"
