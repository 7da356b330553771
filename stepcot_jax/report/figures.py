"""Line charts and reliability diagrams as SVG, whose colours the page's style decides."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from stepcot_jax.report.markup import Html, join, tag

_LEFT, _TOP, _RIGHT, _BOTTOM = 46, 10, 12, 36  # room for labels around the area that is drawn in


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
      name: for the legend.
      points: (x, y) in order; a y that is not finite is a gap.
    """

    name: str
    points: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class _Area:
    """Where numbers lie in a drawing of `width` times `height`."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def place(self, x: float, y: float) -> tuple[float, float]:
        (x_low, x_high), (y_low, y_high) = self.x_range, self.y_range
        across = (x - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        inner_width, inner_height = self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM
        return _LEFT + across * inner_width, _TOP + (1 - up) * inner_height


def draw_lines(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    y_range: tuple[float, float] | None = None,
) -> Html:
    """A chart of several lines over one axis, with its legend.

    Args:
      lines: at most six are told apart by colour and dashes; each needs a name of its own.
      title: above the chart.
      x_label: what is counted from left to right, in whole numbers.
      y_label: what is measured.
      y_range: lowest and highest value shown; None takes it from the lines.

    Returns:
      A `figure`; one that says so where no line has a finite number.
    """
    finite = [(x, y) for line in lines for x, y in line.points if math.isfinite(y)]
    if not finite:
        return _figure(title, tag("p", "No numbers were logged.", class_="note"))
    xs, ys = zip(*finite, strict=True)
    area = _Area(380, 240, _widen(min(xs), max(xs), whole=True), y_range or _widen(min(ys), max(ys)))
    parts = [_draw_axes(area, x_label, y_label, whole_x=True)]
    parts += [_draw_line(area, line.points, number) for number, line in enumerate(lines)]
    return _figure(title, _svg(area, title, parts), _legend([line.name for line in lines]))


def draw_reliability(
    confidences: Sequence[float], accuracies: Sequence[float], counts: Sequence[int], *, title: str
) -> Html:
    """How often answers were right against how sure the network was; the diagonal is perfect.

    Args:
      confidences: mean confidence of each bin that holds cases, in 0..1.
      accuracies: share answered right in each of them.
      counts: number of cases in each; a point's area follows it.
      title: above the diagram.
    """
    area = _Area(240, 240, (0.0, 1.0), (0.0, 1.0))
    parts: list[Html | None] = [_draw_axes(area, "confidence", "accuracy")]
    parts.append(_path([area.place(0, 0), area.place(1, 1)], "diagonal"))
    parts.append(_path([area.place(x, y) for x, y in zip(confidences, accuracies, strict=True)], "line line-0"))
    most = max(counts, default=1)
    for x, y, count in zip(confidences, accuracies, counts, strict=True):
        left, top = area.place(x, y)
        point = tag("title", f"{count} cases: confidence {x:.2f}, accuracy {y:.2f}")
        radius = 2 + 6 * math.sqrt(count / most)
        parts.append(tag("circle", point, class_="bin", cx=_short(left), cy=_short(top), r=_short(radius)))
    return _figure(title, _svg(area, title, parts))


def choose_ticks(low: float, high: float, *, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`.

    >>> choose_ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> choose_ticks(1, 14, most=8, whole=True)
    [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10, 20) if factor * size >= raw * 0.99 or factor == 20)
    if whole:
        step = max(1.0, step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _widen(low: float, high: float, *, whole: bool = False) -> tuple[float, float]:
    """A range with some room, and never an empty one."""
    if whole:
        return (low - 0.5, high + 0.5) if low == high else (low, high)
    room = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
    return low - room, high + room


def _draw_axes(area: _Area, x_label: str, y_label: str, *, whole_x: bool = False) -> Html:
    parts = []
    small = area.width < 300
    (x_low, x_high), (y_low, y_high) = area.x_range, area.y_range
    for y in choose_ticks(y_low, y_high, most=4 if small else 6):
        left, top = area.place(x_low, y)
        parts.append(_path([(left, top), area.place(x_high, y)], "grid"))
        parts.append(_text(left - 6, top + 4, f"{y:g}", "end"))
    for x in choose_ticks(x_low, x_high, most=4 if small else 8, whole=whole_x):
        left, top = area.place(x, y_low)
        parts.append(_path([(left, top), (left, top + 4)], "axis"))
        parts.append(_text(left, top + 17, f"{x:g}", "middle"))
    parts.append(_path([area.place(x_low, y_low), area.place(x_high, y_low)], "axis"))
    middle = (_LEFT + area.width - _RIGHT) / 2
    parts.append(_text(middle, area.height - 4, x_label, "middle", "label"))
    centre = (_TOP + area.height - _BOTTOM) / 2
    turned = f"rotate(-90 11 {_short(centre)})"
    parts.append(tag("text", y_label, x=11, y=_short(centre), text_anchor="middle", class_="label", transform=turned))
    return join(*parts)


def _draw_line(area: _Area, points: Sequence[tuple[float, float]], number: int) -> Html:
    """A line with a dot at each point; the line is interrupted where a number is not finite."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append(area.place(x, float(np.clip(y, *area.y_range))))
        elif runs[-1]:
            runs.append([])
    parts = [_path(run, f"line line-{number % 6}") for run in runs if len(run) > 1]
    dots = [
        tag("circle", cx=_short(x), cy=_short(y), r=2.5, class_=f"dot dot-{number % 6}") for run in runs for x, y in run
    ]
    return join(*parts, *dots)


def _legend(names: Sequence[str]) -> Html:
    items = []
    for number, name in enumerate(names):
        sample = tag("path", d="M0 6H26", class_=f"line line-{number % 6}")
        items.append(tag("li", tag("svg", sample, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true"), name))
    return tag("ul", *items, class_="legend")


def _figure(title: str, *children: Html) -> Html:
    return tag("figure", tag("figcaption", title), *children)


def _svg(area: _Area, title: str, parts: Sequence[Html | None]) -> Html:
    box = f"0 0 {area.width:g} {area.height:g}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=title, class_="chart")


def _path(points: Sequence[tuple[float, float]], css_class: str) -> Html | None:
    if not points:
        return None
    steps = " ".join(f"{_short(x)} {_short(y)}" for x, y in points)
    return tag("path", d=f"M{steps}", class_=css_class)


def _text(x: float, y: float, text: str, anchor: str, css_class: str = "tick") -> Html:
    return tag("text", text, x=_short(x), y=_short(y), text_anchor=anchor, class_=css_class)


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
