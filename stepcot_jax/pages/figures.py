"""Line charts and reliability diagrams as inline SVG, drawn by matplotlib in the colours of the page's style sheet."""

import io
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
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.shell import SHARED, name_unseen, render

Line = tuple[str, Sequence[tuple[float, float]]]
"""Name and (x, y) points in order; a y that is not finite is a gap."""

_LINE_COLOURS = ("#1f5f8b", "#c2571a", "#4b8b3b", "#8a4a9c", "#8a6d1d", "#47505a")
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (7, 2)), "-")
_INK, _SOFT, _RULE = "#1d2126", "#5c6570", "#dcd9d3"
# The style sheet has a light and a dark value for each of these.
_VARIABLES = {
    **{colour: f"var(--line-{index})" for index, colour in enumerate(_LINE_COLOURS)},
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


def draw_lines(lines: Sequence[Line], *, title: str, x_label: str, y_label: str) -> Markup:
    """Draw lines over one axis, with a legend."""
    if not any(math.isfinite(y) for _, points in lines for _, y in points):
        return render(SHARED, "chart.html.j2", title=title, svg=None)
    with matplotlib.rc_context(_STYLE):
        figure, axes = _make_axes(380, 260, x_label, y_label)
        for index, (name, points) in enumerate(lines):
            xs, ys = np.array(points, float).T
            index %= len(_LINE_COLOURS)
            label = textwrap.shorten(name_unseen(name), 40, placeholder=" …")
            style: Any = {"color": _LINE_COLOURS[index], "ls": _DASHES[index], "lw": 2, "ms": 5, "mew": 0}
            axes.plot(xs, ys, "o", clip_on=False, label=label, **style)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6))
        figure.legend(loc="outside lower left", ncols=2)  # room for the browser's fonts, which may be wider
        return render(SHARED, "chart.html.j2", title=title, svg=_to_svg(figure, label=title))


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
        for index, (x, y, count) in enumerate(zip(confidences, accuracies, counts, strict=True)):
            name, radius = f"bin-{index}", 2 + 6 * math.sqrt(count / max(counts))
            titles[name] = f"{count} cases: confidence {x:.2f}, accuracy {y:.2f}"
            axes.plot(x, y, "o", color=_LINE_COLOURS[0], ms=2 * radius, alpha=0.6, mew=0, clip_on=False, gid=name)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        svg = _to_svg(figure, label=f"{title}: {model}", titles=titles)
        return render(SHARED, "chart.html.j2", title=title, svg=svg)


def draw_band(axes: Axes, figures: Sequence[Interval], *, label: str, at: Sequence[float] = ()) -> None:
    """Draw figures in percent as a line, from 0 on without `at`, with a band of their intervals; alone, as a bar."""
    at = at or range(len(figures))
    values, low, high = (
        100 * np.array([getattr(figure, end) for figure in figures], float) for end in ("value", "low", "high")
    )
    (line,) = axes.plot(at, values, marker="o", markersize=3, label=label)
    axes.fill_between(at, low, high, color=line.get_color(), alpha=0.1, linewidth=0)
    known = np.concatenate([[False], np.isfinite(low), [False]])
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.vlines(np.array(at, float)[alone], low[alone], high[alone], color=line.get_color(), alpha=0.5)


def to_png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content)
    return content.getvalue()


def _make_axes(width: float, height: float, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes; one SVG unit is one point, and the page scales the drawing to its column."""
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
