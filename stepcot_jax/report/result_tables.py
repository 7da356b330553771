"""Figures of each network on the test split as tables: with intervals, and answer by answer."""

import math
import string
from collections.abc import Mapping

from stepcot_jax.evaluation.evaluator import ModelMetrics
from stepcot_jax.evaluation.intervals import Interval, ModelIntervals
from stepcot_jax.evaluation.metrics import StepMetrics
from stepcot_jax.report.markup import Html, join, tag

_COLUMNS = {
    "accuracy": "Accuracy",
    "auc": "AUC",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "f1": "F1",
    "precision": "Precision",
}
_NUM_HEATS = 10  # shades of a confusion matrix, which the page's style has


def percent(share: float) -> str:
    """A share in percent; a dash where it is undefined.

    >>> percent(0.7834), percent(float("nan"))
    ('78.3', '-')
    """
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def write_interval(interval: Interval) -> Html:
    """A figure in percent with its interval below it."""
    value = tag("span", percent(interval.value), class_="value")
    if math.isnan(interval.low) or math.isnan(interval.high):
        return value
    return join(value, " ", tag("span", f"{percent(interval.low)} to {percent(interval.high)}", class_="interval"))


def write_key_figures(intervals: Mapping[str, ModelIntervals]) -> Html:
    """What a reader looks for first: mean, last step and whole chain of each network."""
    cards = []
    for name, model in intervals.items():
        rows = [
            ("mean of the steps", model.mean_accuracy),
            (model.steps[-1].name, model.steps[-1].accuracy),
            ("every step of a case", model.chain_accuracy),
        ]
        items = [join(tag("dt", label), tag("dd", write_interval(interval))) for label, interval in rows]
        cards.append(tag("div", tag("h3", name.capitalize()), tag("dl", *items), class_="card"))
    return tag("div", *cards, class_="cards")


def write_results(metrics: Mapping[str, ModelMetrics], intervals: Mapping[str, ModelIntervals]) -> Html:
    """A table of every network's steps."""
    tables = [_write_model(name, metrics[name], intervals[name]) for name in metrics]
    notes = dict.fromkeys(note for model in metrics.values() for step in model.steps for note in _notes(step))
    listed = tag("ul", *(tag("li", note) for note in notes), class_="note") if notes else None
    return join(*tables, listed)


def _write_model(name: str, metrics: ModelMetrics, intervals: ModelIntervals) -> Html:
    headers = ["Step", "Cases", "Accuracy", "Majority", *list(_COLUMNS.values())[1:]]
    rows = [_header_row(headers)]
    for step, figures in zip(metrics.steps, intervals.steps, strict=True):
        cells = {column: tag("td", write_interval(getattr(figures, column))) for column in _COLUMNS}
        accuracy = cells.pop("accuracy")
        majority = tag("td", percent(step.majority_accuracy))
        first = tag("th", step.name, scope="row")
        rows.append(tag("tr", first, tag("td", str(step.num_cases)), accuracy, majority, *cells.values()))
    mean = [tag("td", write_interval(intervals.mean_accuracy)), tag("td", percent(metrics.mean_majority_accuracy))]
    empty = tag("td", colspan=len(_COLUMNS) - 1)
    rows.append(tag("tr", tag("th", "Mean", scope="row"), tag("td"), *mean, empty, class_="total"))
    return scrolled(
        tag("table", tag("caption", name.capitalize()), *rows, class_="figures"), label=f"Figures of {name}"
    )


def _notes(step: StepMetrics) -> list[str]:
    if not step.num_cases:
        return [f"{step.name}: no case was annotated, so that it is left out of every mean."]
    if step.left_out:
        left_out = "; ".join(step.left_out)
        return [f"{step.name}: no case has these answers, so that the macro averages leave them out: {left_out}."]
    return []


def write_confusions(metrics: Mapping[str, ModelMetrics]) -> Html:
    """The confusion matrix of every network and step."""
    parts = []
    for name, model in metrics.items():
        tables = [write_confusion(step) for step in model.steps if step.num_cases]
        parts.append(join(tag("h3", name.capitalize()), tag("div", *tables, class_="confusions")))
    return join(*parts)


def write_confusion(step: StepMetrics) -> Html:
    """Counts of a step, truth from top to bottom and answers from left to right, shaded by their share of the row."""
    letters = string.ascii_uppercase[: len(step.answers)]
    corner = tag("th", tag("span", "truth \\ answer", class_="note"), scope="col")
    header = [
        tag("th", tag("abbr", letter, title=text), scope="col")
        for letter, text in zip(letters, step.answers, strict=True)
    ]
    rows = [tag("tr", corner, *header)]
    for place, (letter, text, counts) in enumerate(zip(letters, step.answers, step.confusion, strict=True)):
        total = sum(counts)
        cells = []
        for answer, count in enumerate(counts):
            heat = min(_NUM_HEATS - 1, int(_NUM_HEATS * count / total)) if count else 0
            right = " right" if answer == place else ""
            cells.append(tag("td", str(count), class_=f"heat-{heat if count else 'none'}{right}"))
        rows.append(tag("tr", tag("th", tag("b", letter), f" {text}", scope="row"), *cells))
    table = tag("table", tag("caption", step.name), *rows, class_="confusion")
    return scrolled(table, label=f"Confusion matrix of {step.name}")


def scrolled(table: Html, *, label: str) -> Html:
    """A table that scrolls by itself, also by keyboard, where it is wider than the page."""
    return tag("div", table, class_="scrolled", tabindex=0, role="region", aria_label=label)


def _header_row(headers: list[str]) -> Html:
    return tag("tr", *(tag("th", header, scope="col") for header in headers))
