"""Draw the flow of answers: a column for each step, a band for the cases with a pair of answers."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from stepcot_jax.chain import NOT_APPLICABLE, fold
from stepcot_jax.data.statistics import NOT_ANNOTATED_NAME, Statistics
from stepcot_jax.host.text import make_printable

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#6A3D9A", "#8C564B")
_NOT_APPLICABLE_COLOUR = "#BDBDBD"
_NOT_ANNOTATED_COLOUR = "#6E6E6E"
_NODE_WIDTH = 0.05
_GAP = 0.035  # the height of a label, so that labels never overlap
_NUM_SHOWN = 24


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
        name = _shorten(f"{step + 1}. {statistics.chain.steps[step].name}")
        axes.text(step, 1.05, name, fontsize=12, weight="bold", va="bottom")
    axes.set_xlim(-0.05, num_steps - 0.05)
    axes.set_ylim(min(nodes[-1].low for nodes in columns) - 0.03, 1.10)
    axes.set_axis_off()
    shown = "cases"
    if without_usual:
        usual = _shorten(statistics.answer_names(0)[int(np.argmax(statistics.answers[0]))])
        shown = f'of {statistics.num_cases:,} cases, those without "{usual}" at the first step'
    axes.set_title(f"Flow of answers from step to step: {num_cases:,} {shown}", fontsize=14)
    return figure


def _shorten(text: str) -> str:
    shown = make_printable(text)
    return shown if len(shown) <= _NUM_SHOWN else shown[: _NUM_SHOWN - 1] + "…"


def _stack(names: Sequence[str], counts: Int64[np.ndarray, " answer"], num_cases: int) -> list[_Node]:
    """Return the nodes of the answers that occur, top down with gaps; the heights sum to 1."""
    nodes, top = [], 1.0
    for index, (name, count) in enumerate(zip(names, counts.tolist(), strict=True)):
        if count:
            colour = _COLOURS[index % len(_COLOURS)]
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
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    return PathPatch(Path(corners, codes), facecolor=colour, alpha=0.4, edgecolor=colour, linewidth=0.3)


def _draw_nodes(axes: Axes, step: int, nodes: Sequence[_Node]) -> None:
    edge = step + _NODE_WIDTH
    for node in nodes:
        axes.add_patch(Rectangle((step, node.low), _NODE_WIDTH, node.high - node.low, facecolor=node.colour))
        axes.text(
            edge + 0.02,
            (node.low + node.high) / 2,
            f"{_shorten(node.name)}  {node.count:,}",
            fontsize=9,
            va="center",
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0},
        )
