"""Draw the counts of a collection with matplotlib's object API: no global state, no window."""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.ticker import MaxNLocator, NullFormatter

from stepcot_jax.chain import NOT_APPLICABLE, fold
from stepcot_jax.data.statistics import LENGTH_ENDS, NOT_ANNOTATED_NAME, Statistics, count_lengths, list_ranges
from stepcot_jax.host.files import removing_half
from stepcot_jax.host.text import plain_text_style, wrap_text

_COLOURS = [matplotlib.colormaps["viridis"](share) for share in np.linspace(0.95, 0.05, len(LENGTH_ENDS) + 1)]


def draw_lengths_by_diagnosis(statistics: Statistics) -> Figure | None:
    """Draw the words of the reasoning by diagnosis and step (paper: Figure 2B); None without any reasoning.

    A cell has the mean number of words, by which it is shaded, and a pie of its reasonings by range of lengths. The
    histograms above and to the right are of a step and of a diagnosis.
    """
    answers = statistics.answer_names(-1)
    counts = np.array([[count_lengths(words) for words in by_answer] for by_answer in statistics.diagnosis_words])
    shown = np.flatnonzero(counts.sum(axis=(0, 2))).tolist()
    if not shown:
        return None
    num_steps = statistics.chain.num_steps
    figure = Figure(figsize=(max(7.6, 3.6 + 1.05 * num_steps), 2.6 + 1.05 * len(shown)), layout="constrained")
    figure.suptitle(_title(statistics, "Words of the reasoning by diagnosis"), fontsize=11)
    grid = figure.subplots(len(shown) + 1, num_steps + 1, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[], frame_on=False)
    means = np.array([[words.mean() if words.size else 0 for words in row] for row in statistics.diagnosis_words])
    for column, step in enumerate(statistics.chain.steps):
        grid[0, column].bar(range(len(_COLOURS)), counts[column].sum(axis=0), color=_COLOURS)
        grid[0, column].set_title(wrap_text(step.name, 12, num_lines=2), fontsize=8.5)
        for row, answer in enumerate(shown, start=1):
            mean = means[column, answer]
            _draw_cell(grid[row, column], counts[column, answer], mean, 0.5 * mean / means.max())
    for row, answer in enumerate(shown, start=1):
        number, name = counts[:, answer].sum(axis=0), wrap_text(answers[answer], 22, num_lines=2)
        grid[row, 0].set_ylabel(name, fontsize=9, rotation=0, ha="right", va="center")
        grid[row, -1].barh(range(len(_COLOURS)), number, color=_COLOURS)
        grid[row, -1].invert_yaxis()
        grid[row, -1].set_xlabel(f"{number.sum():,}", fontsize=8.5)
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in _COLOURS]
    title = "Words. In a cell the mean; pies and bars: shares of the reasonings; right: their number."
    figure.legend(handles, list_ranges(), title=title, loc="outside lower left", ncols=len(_COLOURS), frameon=False)
    return figure


def _draw_cell(axes: Axes, counts: Int64[np.ndarray, " range"], mean: float, darkness: float) -> None:
    """Draw a pie of the lengths over the mean; a hyphen without reasoning."""
    axes.set_xlabel(f"{mean:.1f}" if counts.any() else "-", fontsize=8.5)
    if counts.any():
        axes.pie(counts, colors=_COLOURS, startangle=90, counterclock=False, frame=True)
        axes.set(frame_on=True, facecolor=matplotlib.colormaps["Oranges"](darkness), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


# Okabe and Ito's colours, safe for colour-blind readers.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

_GREY = "#9A9A9A"
_GLYPH = re.compile(r"Glyph (\d+) ")
_MOST_ORIGINS = 7
_DPI = 150
_WITH_SEPARATORS = "{x:,.0f}"
STYLE: dict[str, Any] = {"svg.fonttype": "none", "svg.hashsalt": "stepcot_jax"}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False}


def write_pictures(folder: Path, statistics: Statistics) -> tuple[list[str], str]:
    """Draw all pictures into a folder, each as PNG and as SVG."""
    names: list[str] = []
    missing: set[str] = set()
    with plain_text_style(**STYLE):
        pictures = {
            "origins_diagnoses": draw_origins_diagnoses(statistics),
            "answers": draw_answers_of_steps(statistics),
            "reasoning_length_by_diagnosis": draw_lengths_by_diagnosis(statistics),
            "answer_flow": draw_flow(statistics),
            "answer_flow_rest": draw_flow(statistics, without_usual=True),
        }
        for name, figure in pictures.items():
            if figure is not None:
                FigureCanvasAgg(figure)
                missing |= _save(figure, folder / f"{name}.png", dpi=_DPI)
                missing |= _save(figure, folder / f"{name}.svg", metadata={"Date": None})
                names += [f"{name}.png", f"{name}.svg"]
    return names, "".join(sorted(missing))


def _save(figure: Figure, path: Path, **how: Any) -> set[str]:
    """Write a picture; return the characters that its fonts lack."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with removing_half(path):
            figure.savefig(path, **how)
    lacking = [_GLYPH.match(str(warning.message)) for warning in caught]
    return {chr(int(match[1])) for match in lacking if match}


def _title(statistics: Statistics, what: str) -> str:
    return f"{what}: {statistics.num_cases:,} cases of {statistics.num_patients:,} patients"


def _list_origins(statistics: Statistics) -> list[tuple[str, Sequence[int], str]]:
    """Return name, indices and colour of the origins drawn; those beyond the seventh are merged."""
    named = enumerate(statistics.origins[:_MOST_ORIGINS])
    origins = [(wrap_text(name, 30, num_lines=2), range(index, index + 1), PALETTE[index]) for index, name in named]
    others = range(_MOST_ORIGINS, len(statistics.origins))
    return [*origins, *([(f"{len(others)} more", others, _GREY)] if others else ())]


def draw_origins_diagnoses(statistics: Statistics) -> Figure:
    """Draw the cases of each origin, and of each diagnosis by origin on a logarithmic scale."""
    origins = _list_origins(statistics)
    names = [wrap_text(name, 24, num_lines=2) for name in statistics.answer_names(-1)]
    counts = statistics.diagnoses
    shown = [diagnosis for diagnosis in range(len(names)) if diagnosis < len(names) - 1 or counts[diagnosis].sum()]
    figure = Figure(figsize=(13, 1.8 + 0.5 * max(len(shown), len(origins))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    figure.suptitle(_title(statistics, "Origins and diagnoses"))
    totals = [int(counts[:, indices].sum()) for _, indices, _ in origins]
    _draw_bars(left, [name for name, _, _ in origins], totals, [colour for _, _, colour in origins])
    left.set_xlabel("cases")
    height = 0.8 / len(origins)
    for number, (_, indices, colour) in enumerate(origins):
        values = counts[shown][:, indices].sum(axis=1)
        at = np.arange(len(shown)) + (number - (len(origins) - 1) / 2) * height
        right.barh(at, np.maximum(values - 0.5, 0), height, left=0.5, color=colour)
    for row, diagnosis in enumerate(shown):
        total = int(counts[diagnosis].sum())
        largest = max(int(counts[diagnosis][indices].sum()) for _, indices, _ in origins)
        right.text(largest * 1.15 + 1, row, f"{total:,} ({total / statistics.num_cases:.1%})", va="center", fontsize=9)
    right.set_xscale("log")
    right.xaxis.set_major_formatter(_WITH_SEPARATORS)
    right.xaxis.set_minor_formatter(NullFormatter())
    right.set_xlim(0.8, max(10, int(counts.sum(axis=0).max())) * 6)
    right.set_yticks(range(len(shown)), [names[diagnosis] for diagnosis in shown])
    right.invert_yaxis()
    right.set_xlabel("cases (logarithmic), in the origins' colours; beside the bars all origins together")
    return figure


def _draw_bars(axes: Axes, names: Sequence[str], values: Sequence[int], colours: Sequence[str]) -> None:
    bars = axes.barh(range(len(names)), values, color=list(colours))
    total = max(sum(values), 1)
    axes.bar_label(bars, [f"{value:,} ({value / total:.1%})" for value in values], padding=3, fontsize=8)
    axes.set_xlim(0, max(1, *values) * 1.45)
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(_WITH_SEPARATORS)
    axes.invert_yaxis()


def draw_answers_of_steps(statistics: Statistics) -> Figure:
    """Draw how often each answer of each step is given."""
    num_columns = min(4, statistics.chain.num_steps)
    num_rows = -(-statistics.chain.num_steps // num_columns)
    most = max(len(counts) for counts in statistics.answers)
    figure = Figure(figsize=(4.6 * num_columns, (1.2 + 0.34 * most) * num_rows), layout="constrained")
    figure.suptitle(_title(statistics, "Answers of each step"))
    for number, (step, counts) in enumerate(zip(statistics.chain.steps, statistics.answers, strict=True)):
        axes = figure.add_subplot(num_rows, num_columns, number + 1)
        names = [wrap_text(name, 22, num_lines=2) for name in statistics.answer_names(number)]
        shown = len(names) if counts[-1] else len(names) - 1
        colours = [PALETTE[0]] * (len(names) - 1) + [_GREY]
        _draw_bars(axes, names[:shown], counts[:shown].tolist(), colours[:shown])
        axes.set_title(wrap_text(f"{number + 1}. {step.name}", 40, num_lines=2), fontsize=11)
        axes.tick_params(labelsize=8)
    return figure


_ANSWER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#6A3D9A", "#8C564B")
_NOT_APPLICABLE_COLOUR = "#BDBDBD"
_NOT_ANNOTATED_COLOUR = "#6E6E6E"
_NODE_WIDTH = 0.05
_GAP = 0.035  # the height of a label, so that labels never overlap


@dataclasses.dataclass(frozen=True)
class _Node:
    """An answer in the picture: its cases, its edges, and the colour of the node and of its bands to the next step."""

    name: str
    count: int
    low: float
    high: float
    colour: str


def draw_flow(statistics: Statistics, *, without_usual: bool = False) -> Figure | None:
    """Draw the flow of answers from step to step; None for a chain of one step or without cases.

    `without_usual` leaves out the cases with the most frequent first answer, which dwarf the others.
    """
    flows = statistics.rest_flows if without_usual else statistics.flows
    if not flows or not flows[0].sum():
        return None
    num_cases = int(flows[0].sum())
    num_steps = len(flows) + 1
    figure = Figure(figsize=(max(12.0, 3.0 * num_steps), 9.5), layout="constrained")
    axes = figure.subplots()
    counts = [flows[0].sum(axis=1), *(flow.sum(axis=0) for flow in flows)]
    columns = [_stack(statistics.answer_names(step), counts[step], num_cases) for step in range(num_steps)]
    for step, flow in enumerate(flows):
        _draw_bands(axes, step, flow / num_cases, columns)
    for step, nodes in enumerate(columns):
        _draw_nodes(axes, step, nodes)
        name = wrap_text(f"{step + 1}. {statistics.chain.steps[step].name}", 24, num_lines=1)
        axes.text(step, 1.05, name, fontsize=12, weight="bold", va="bottom")
    axes.set_xlim(-0.05, num_steps - 0.05)
    axes.set_ylim(min(nodes[-1].low for nodes in columns) - 0.03, 1.10)
    axes.set_axis_off()
    shown = "cases"
    if without_usual:
        usual = wrap_text(statistics.answer_names(0)[int(np.argmax(statistics.answers[0]))], 24, num_lines=1)
        shown = f'of {statistics.num_cases:,} cases, those without "{usual}" at the first step'
    axes.set_title(f"Flow of answers from step to step: {num_cases:,} {shown}", fontsize=14)
    return figure


def _stack(names: Sequence[str], counts: Int64[np.ndarray, " answer"], num_cases: int) -> list[_Node]:
    """Return the nodes of the answers that occur, top down with gaps; the heights sum to 1."""
    nodes, top = [], 1.0
    for index, (name, count) in enumerate(zip(names, counts.tolist(), strict=True)):
        if count:
            colour = _ANSWER_COLOURS[index % len(_ANSWER_COLOURS)]
            if name == NOT_ANNOTATED_NAME:
                colour = _NOT_ANNOTATED_COLOUR
            elif fold(name) == fold(NOT_APPLICABLE):
                colour = _NOT_APPLICABLE_COLOUR
            nodes.append(_Node(name, count, top - count / num_cases, top, colour))
            top -= count / num_cases + _GAP
    return nodes


def _draw_bands(
    axes: Axes, step: int, shares: Float64[np.ndarray, "answer next_answer"], columns: Sequence[Sequence[_Node]]
) -> None:
    """Draw the bands from a step to the next; `shares` are of all cases."""
    given, then = np.flatnonzero(shares.any(axis=1)).tolist(), np.flatnonzero(shares.any(axis=0)).tolist()
    left = [node.high for node in columns[step]]
    right = [node.high for node in columns[step + 1]]
    for row, answer in enumerate(given):
        for column, next_answer in enumerate(then):
            if height := float(shares[answer, next_answer]):
                axes.add_patch(_band(step, left[row], right[column], height, columns[step][row].colour))
                left[row] -= height
                right[column] -= height


def _band(step: int, left: float, right: float, height: float, colour: str) -> PathPatch:
    begin, end = step + _NODE_WIDTH, step + 1.0
    middle = (begin + end) / 2
    upper = [(begin, left), (middle, left), (middle, right), (end, right)]
    corners = [*upper, *((x, y - height) for x, y in reversed(upper)), upper[0]]
    codes = [Curve.MOVETO, *[Curve.CURVE4] * 3, Curve.LINETO, *[Curve.CURVE4] * 3, Curve.CLOSEPOLY]
    return PathPatch(Curve(corners, codes), facecolor=colour, alpha=0.4, edgecolor=colour, linewidth=0.3)


def _draw_nodes(axes: Axes, step: int, nodes: Sequence[_Node]) -> None:
    behind = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0}
    for node in nodes:
        axes.add_patch(Rectangle((step, node.low), _NODE_WIDTH, node.high - node.low, facecolor=node.colour))
        label = f"{wrap_text(node.name, 24, num_lines=1)}  {node.count:,}"
        middle = (node.low + node.high) / 2
        axes.text(step + _NODE_WIDTH + 0.02, middle, label, fontsize=9, va="center", bbox=behind)
