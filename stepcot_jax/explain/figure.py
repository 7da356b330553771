"""Draw an explanation: the maps of all steps over the radiograph, and the attention between the steps."""

import pathlib

import numpy as np
from jaxtyping import Float, Float32, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stepcot_jax.chain import Chain
from stepcot_jax.explain.geometry import change_a_step, describe_change, smooth, spread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import make_printable, plain_text_style, wrap_text
from stepcot_jax.predict.answers import ChainReading
from stepcot_jax.predict.paragraph import percent

MEMORY = "Memory"

_COLUMNS = 4
_DPI = 130
_MAP_COLOURS = "inferno"


def draw_explanation(
    picture: UInt8[np.ndarray, "size size 3"], maps: Float[np.ndarray, "step row column"], reading: ChainReading
) -> Figure:
    """Draw a panel for each step: the map over the radiograph, question, answer, probability and spread of the map.

    Args:
      picture: the encoder's input.
      maps: of the steps, each summing to 1.
      reading: the answers.
    """
    num_steps = len(reading.steps)
    num_rows = -(-(num_steps + 1) // _COLUMNS)
    spreads = spread(maps)
    with plain_text_style():
        figure = Figure(figsize=(3.3 * _COLUMNS, 4.15 * num_rows + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(num_rows, _COLUMNS, squeeze=False).ravel()
        for place, answer in enumerate(reading.steps):
            axes[place].imshow(picture)
            heat = smooth(maps[place], picture.shape[0])
            # The opacity follows the map, so that the picture stays visible elsewhere.
            axes[place].imshow(heat, cmap=_MAP_COLOURS, vmin=0, vmax=1, alpha=0.65 * heat)
            axes[place].set(xticks=[], yticks=[])
            axes[place].set_title(
                wrap_text(f"{place + 1}. {answer.step.question}", 36, num_lines=3), fontsize=9, loc="left"
            )
            how = "given" if answer.given else percent(answer.probability)
            below = f"{wrap_text(answer.answer, 30, num_lines=3)} ({how})\nspread of the map {spreads[place]:.2f}"
            axes[place].set_xlabel(below, fontsize=9, fontweight="bold")
        _show_spreads(axes[num_steps], spreads)
        for empty in axes[num_steps + 1 :]:
            empty.set_axis_off()
        name = make_printable(pathlib.PurePath(reading.source).name)[:80]
        title = (
            f"{name}: parts of the picture that support each answer of the {reading.model} (bright), for research only"
        )
        figure.suptitle(title, fontsize=11)
    return figure


def _show_spreads(axes: Axes, spreads: np.ndarray) -> None:
    change = float(change_a_step(spreads))
    places = np.arange(1, len(spreads) + 1)
    axes.plot(places, spreads, marker="o", color="#0072B2")
    axes.set_ylim(0, 1.02)
    axes.set_box_aspect(1)
    axes.set_xticks(places)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"step\n{describe_change(change)} ({change:+.3f} a step)", fontsize=9, fontweight="bold")
    axes.set_title("Spread of the map, step by step\n(1: an even map)", fontsize=9, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def step_attention(
    attention: Float32[np.ndarray, "case step layer head node node"],
) -> Float[np.ndarray, "case step node"]:
    """Return the attention of each step, in its own turn, to every step and to the memory; rows sum to 1.

    Args:
      attention: of the teacher's graph, in the pass before each step's answer.

    Returns:
      The mean over the heads.
    """
    num_steps = attention.shape[1]
    of_layer = attention[:, :, -1].mean(axis=2, dtype=np.float64)  # the step reads the last layer's output
    return of_layer[:, np.arange(num_steps), np.arange(num_steps)]


def node_names(chain: Chain, *, num_nodes: int) -> tuple[str, ...]:
    """Return the names of the graph's nodes: the steps, then the memory if there is one.

    Raises:
      BadInput: the chain has another number of steps than the graph.
    """
    names = tuple(step.name for step in chain.steps)
    if num_nodes not in (len(names), len(names) + 1):
        raise BadInput(f"attention over {num_nodes} nodes does not fit {len(names)} steps with or without a memory")
    return names + (MEMORY,) * (num_nodes - len(names))


def attention_table(weights: Float[np.ndarray, "step node"], chain: Chain) -> dict[str, dict[str, float]]:
    """Return the attention of each step by name, for JSON."""
    names = node_names(chain, num_nodes=weights.shape[1])
    return {
        step.name: {name: float(weight) for name, weight in zip(names, row, strict=True)}
        for step, row in zip(chain.steps, weights, strict=True)
    }


def draw_attention(weights: Float[np.ndarray, "step node"], chain: Chain) -> Figure:
    """Draw the attention of each step to every step and to the memory as a heat map with numbers."""
    names = [wrap_text(name, 18, num_lines=3) for name in node_names(chain, num_nodes=weights.shape[1])]
    with plain_text_style():
        figure = Figure(figsize=(0.95 * len(names) + 2.2, 0.6 * len(weights) + 1.8), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        # Even attention is at most half way up the scale, so that it does not look like a preference.
        most = max(float(weights.max()), 2 / weights.shape[1])
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
        axes.set_yticks(range(len(weights)), names[: len(weights)], fontsize=8)
        for (row, column), weight in np.ndenumerate(weights):
            colour = "white" if weight > 0.6 * most else "black"
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_ylabel("step that is answered")
        even = 1 / weights.shape[1]
        axes.set_title(
            "Attention of each step (row) to every step and to the memory (column)\n"
            f"share in the last layer, mean of the heads; {even:.3f} everywhere: no preference",
            fontsize=9,
        )
    return figure


def save(figure: Figure, path: pathlib.Path) -> None:
    """Write a picture as PNG."""
    with plain_text_style():
        figure.savefig(path, dpi=_DPI)
