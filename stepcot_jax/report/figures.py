"""Line charts and reliability diagrams as inline SVG, drawn by matplotlib in the colours of the page's style sheet."""

import io
import itertools
import math
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stepcot_jax.host.pages import name_unseen
from stepcot_jax.report.finished_run import Entry
from stepcot_jax.report.page import render

Line = tuple[str, Sequence[tuple[float, float]]]
"""Name and (x, y) points in order; a y that is not finite is a gap."""

_LINE_COLOURS = ("#1f5f8b", "#c2571a", "#4b8b3b", "#8a4a9c", "#8a6d1d", "#47505a")
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (7, 2)), "-")
_INK, _SOFT, _RULE = "#1d2126", "#5c6570", "#dcd9d3"
# The style sheet has a light and a dark value for each of these.
_VARIABLES = {
    **{colour: f"var(--line-{place})" for place, colour in enumerate(_LINE_COLOURS)},
    _INK: "var(--ink)",
    _SOFT: "var(--soft)",
    _RULE: "var(--rule)",
}
_STYLE: Any = {
    "axes.edgecolor": _SOFT,
    "axes.labelcolor": _SOFT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": _RULE,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "ytick.left": False,
}
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")

_LOSS_PARTS = {"hard_label": "answers", "soft_label": "teacher's answers", "channel_alignment": "channel alignment"}
_REWARD_PARTS = {
    "reward": "reward",
    "reward_diagnosis": "diagnosis right",
    "reward_steps": "steps right",
    "reward_consistent": "no contradiction",
}
_FIRST_NAMES = ("teacher", "student")
_MEASURES = {
    "mean_accuracy_own_and_given": (
        "Mean accuracy of the steps on validation, mean of own answers and true ones given",
        "accuracy",
    ),
    "mean_reward": ("Mean reward on validation, of the highest possible", "reward"),
    "mean_accuracy": ("Mean accuracy of the steps on validation", "accuracy"),
}
"""Scores that keep the best weights: title and unit of their chart. A run logs one of them, and "mean_accuracy" at the
end."""


def write_curves(entries: Sequence[Entry]) -> Markup:
    """Draw by epoch the validation score, the loss, the parts of a student's loss, and the reward of GRPO."""
    ends = ("/total", *(f"/{measure}" for measure in _MEASURES))
    keys = {key for entry in entries for key in entry if key.endswith(ends)}
    names = sorted(
        {key.partition("/")[0] for key in keys}, key=lambda name: (name not in _FIRST_NAMES, name != "teacher", name)
    )
    measure = next((each for each in _MEASURES if any(key.endswith(f"/{each}") for key in keys)), "mean_accuracy")
    scores = find_lines(entries, "val", {name: f"{name}/{measure}" for name in names})
    losses = find_lines(entries, "train", {name: f"{name}/total" for name in names})
    parts = find_lines(entries, "train", {text: f"student/{key}" for key, text in _LOSS_PARTS.items()})
    rewards = find_lines(entries, "train", {text: f"teacher/{key}" for key, text in _REWARD_PARTS.items()})
    charts = [
        (*_MEASURES[measure], scores),
        ("Training loss, mean of the epoch's logged updates", "loss", losses),
    ]
    if len(parts) > 1:
        charts.append(("Parts of the student's loss, before their weights", "loss", parts))
    if rewards:
        charts.append(("Reward of sampled chains and its parts, mean of the epoch's logged updates", "reward", rewards))
    return Markup("").join(
        draw_lines(lines, title=title, x_label="epoch", y_label=y_label) for title, y_label, lines in charts
    )


def find_lines(entries: Sequence[Entry], kind: str, keys: Mapping[str, str]) -> list[Line]:
    """Return a line for each key that was logged: epochs from 1 and the mean of each epoch."""
    lines: list[Line] = []
    for name, key in keys.items():
        numbers = [(entry["epoch"], entry[key]) for entry in entries if entry["kind"] == kind and key in entry]
        numbers.sort(key=lambda pair: pair[0])
        points = []
        for epoch, group in itertools.groupby(numbers, key=lambda pair: pair[0]):
            values = [float(value) if isinstance(value, int | float) else math.nan for _, value in group]
            points.append((epoch + 1.0, sum(values) / len(values)))
        if points:
            lines.append((name, points))
    return lines


def draw_lines(lines: Sequence[Line], *, title: str, x_label: str, y_label: str) -> Markup:
    """Draw lines over one axis, with a legend.

    Args:
      lines: each with a name of its own; up to six differ in colour and dashes.
    """
    if not any(math.isfinite(y) for _, points in lines for _, y in points):
        return render("chart.html.j2", title=title, svg=None)
    with matplotlib.rc_context(_STYLE):
        figure, axes = _make_axes(380, 260, x_label, y_label)
        for place, (name, points) in enumerate(lines):
            xs, ys = np.array(points, float).T
            place %= len(_LINE_COLOURS)
            axes.plot(
                xs,
                ys,
                "o",
                color=_LINE_COLOURS[place],
                ls=_DASHES[place],
                lw=2,
                ms=5,
                mew=0,
                clip_on=False,
                label=textwrap.shorten(name_unseen(name), 40, placeholder=" …"),
            )
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        figure.legend(loc="outside lower left", ncols=2)  # room for the browser's fonts, which may be wider
        return render("chart.html.j2", title=title, svg=_to_svg(figure, label=title))


def draw_reliability(
    *, confidences: Sequence[float], accuracies: Sequence[float], counts: Sequence[int], title: str, model: str
) -> Markup:
    """Draw accuracy against confidence; a perfectly calibrated network lies on the diagonal."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _make_axes(240, 240, "confidence", "accuracy")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.plot([0, 1], [0, 1], color=_SOFT, ls="--", lw=1)
        axes.plot(confidences, accuracies, color=_LINE_COLOURS[0], lw=2, clip_on=False)
        titles = {}
        for place, (x, y, count) in enumerate(zip(confidences, accuracies, counts, strict=True)):
            name, radius = f"bin-{place}", 2 + 6 * math.sqrt(count / max(counts))
            titles[name] = f"{count} cases: confidence {x:.2f}, accuracy {y:.2f}"
            axes.plot(x, y, "o", color=_LINE_COLOURS[0], ms=2 * radius, alpha=0.6, mew=0, clip_on=False, gid=name)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        return render("chart.html.j2", title=title, svg=_to_svg(figure, label=f"{title}: {model}", titles=titles))


def _make_axes(width: float, height: float, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """One SVG unit is one point; the page scales the drawing to its column."""
    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    return figure, axes


def _to_svg(figure: Figure, *, label: str, titles: Mapping[str, str] | None = None) -> Markup:
    """Return a figure as an SVG element without inline styles, which the page's policy blocks."""
    buffer = io.StringIO()
    salt: Any = {"svg.hashsalt": label}  # identifiers depend on the label alone: two runs write the same bytes
    with matplotlib.rc_context(salt):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 - matplotlib's own
    for parent in root.iter():
        title = (titles or {}).get(parent.get("id", ""))
        if parent.tag == f"{_SVG}g":
            parent.attrib.pop("id", None)
        for child in list(parent):
            if child.tag in (f"{_SVG}style", f"{_SVG}metadata") or child.get("style") == "fill: none":
                parent.remove(child)
        if title:
            ElementTree.SubElement(parent, f"{_SVG}title").text = title
    for element in root.iter():
        _inline(element)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "class": "chart", "role": "img", "aria-label": name_unseen(label)}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - ElementTree escapes its text


def _inline(element: ElementTree.Element) -> None:
    """Turn a style into presentation attributes; the style sheet sets fonts and, by variables, colours."""
    element.tag = element.tag.removeprefix(_SVG)  # HTML's parser knows SVG without a namespace
    if not (element.text or "").strip():
        element.text = None
    element.tail = None
    for declaration in element.attrib.pop("style", "").split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name and not name.startswith("font"):
            element.set(name, _VARIABLES.get(value, value))
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    if "rotate(-0 " in element.get("transform", ""):
        del element.attrib["transform"]
    for name, value in element.attrib.items():
        element.attrib[name] = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", " ".join(value.split()))
