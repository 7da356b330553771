"""Explanations of image files: drawn as pictures, and written with their numbers to a folder."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import removing_half, write_whole, writing_for
from stepcot_jax.host.text import make_printable, plain_text_style, wrap_text
from stepcot_jax.reading.corrections import Given, given_distributions
from stepcot_jax.reading.explain import Claim, Explainer, Explanation, change_a_step, describe_change, spread
from stepcot_jax.reading.image_reader import explain_pictures
from stepcot_jax.reading.radiographs import Pixels, read_pictures
from stepcot_jax.reading.readings import ChainReading, percent
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.tools.explain.scoring import smooth

BATCH_SIZE = 4
MEMORY = "Memory"

_COLUMNS = 4
_DPI = 130


def write_explanations(
    trained: Trained,
    paths: Sequence[pathlib.Path],
    *,
    model: str,
    given: Given,
    out: pathlib.Path,
    refuse: Callable[[str], None],
    as_published: bool = False,
) -> Iterator[tuple[pathlib.Path, ChainReading]]:
    """Write `NAME.maps.png`, `NAME.json` with the numbers, and the teacher's `NAME.attention.png`, and yield each."""
    shares = given_distributions(given, trained.chain)
    explainer = Explainer(trained, model=model, as_published=as_published)
    explainer.reader.check_given(shares[None], 1)
    batches = read_pictures(
        paths,
        trained.preprocessing,
        batch_size=min(BATCH_SIZE, len(paths)),
        max_pixels=trained.run.max_pixels,
        num_threads=trained.run.settings.data.decoding_threads,
        refuse=refuse,
    )
    taken: set[str] = set()
    before = None
    for names, pictures, headers in batches:
        how: dict[str, Any] = {"given": shares, "headers": headers, "before": before}
        explained, readings = explain_pictures(explainer, names=list(map(str, names)), pictures=pictures, **how)
        before = explained.maps[-1]
        for case, reading in enumerate(readings):
            name = _free_name(names[case].stem, taken)
            with writing_for("--out", out / name):
                path = _write(out / name, explainer, explained, case, pictures[case], reading)
            yield path, reading


def _free_name(name: str, taken: set[str]) -> str:
    """Return a name that no earlier file of this call has; images in different folders may have the same name."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    taken.add(free)
    return free


def _write(
    stem: pathlib.Path, explainer: Explainer, explained: Explanation, case: int, picture: Pixels, reading: ChainReading
) -> pathlib.Path:
    maps, claims, chain = explained.maps[case], explained.claims[case], explainer.trained.chain
    spreads = spread(maps)
    change = float(change_a_step(spreads))
    facts: dict[str, Any] = reading.as_dict()
    facts["focus"] = {"spread": spreads.tolist(), "change_a_step": change, "words": describe_change(spreads)}
    facts["maps_filled_with"] = explainer.filled_with
    names = [answer.step.name for answer in reading.steps]
    facts["claims"] = dict(zip(names, map(dataclasses.asdict, claims), strict=True))
    facts["maps"] = [[[round(float(cell), 6) for cell in row] for row in of_step] for of_step in maps]
    path = stem.with_name(f"{stem.name}.maps.png")
    is_blurred = explainer.trained.normal_picture is None
    note = f"Parts were replaced by {explainer.filled_with}" if is_blurred else ""
    with plain_text_style():
        with removing_half(path):
            draw_explanation(picture, maps, reading, claims, note=note).savefig(path, dpi=_DPI)
        if explained.reading.attention is not None:
            weights = step_attention(explained.reading.attention)[case]
            facts["attention"] = attention_table(weights, chain)
            picture_path = stem.with_name(f"{stem.name}.attention.png")
            with removing_half(picture_path):
                draw_attention(weights, chain).savefig(picture_path, dpi=_DPI)
    write_whole(stem.with_name(f"{stem.name}.json"), (json.dumps(facts, indent=1) + "\n").encode())
    return path


def draw_explanation(
    picture: UInt8[np.ndarray, "size size 3"],
    maps: Float[np.ndarray, "step row column"],
    reading: ChainReading,
    claims: Sequence[Claim],
    *,
    note: str = "",
) -> Figure:
    """Draw a panel for each step: the map over the radiograph, question, answer, and what the map claims.

    `note` is a line below the title.
    """
    num_steps = len(reading.steps)
    num_rows = -(-(num_steps + 1) // _COLUMNS)
    spreads = spread(maps)
    figure = Figure(figsize=(3.3 * _COLUMNS, 4.15 * num_rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_rows, _COLUMNS, squeeze=False).ravel()
    for index, answer in enumerate(reading.steps):
        axes[index].imshow(picture)
        heat = smooth(maps[index], picture.shape[0])
        # The opacity follows the map, so that the picture stays visible elsewhere.
        axes[index].imshow(heat, cmap="inferno", vmin=0, vmax=1, alpha=0.65 * heat)
        axes[index].set(xticks=[], yticks=[])
        question = wrap_text(f"{index + 1}. {answer.step.question}", 36, num_lines=3)
        axes[index].set_title(question, fontsize=9, loc="left")
        how = "given" if answer.given else percent(answer.probability)
        _write_below(axes[index], wrap_text(answer.answer, 30, num_lines=3), how, claims[index])
    _show_spreads(axes[num_steps], spreads)
    for empty in axes[num_steps + 1 :]:
        empty.set_axis_off()
    name = make_printable(pathlib.PurePath(reading.source).name)[:80]
    title = f"{name} ({reading.model}), for research only\nBright: without this part the answer loses most"
    warnings = [wrap_text(make_printable(f"Warning: {line}"), 110, num_lines=2) for line in reading.warnings]
    figure.suptitle("\n".join(filter(None, [title, note, *warnings])), fontsize=11)
    return figure


def _write_below(axes: Axes, answer: str, how: str, claim: Claim) -> None:
    """Write the answer below a panel, and below it in a smaller font, which the layout makes room for, the claim."""
    is_long = len(answer.rpartition("\n")[2]) + len(how) > 31
    axes.set_xlabel(("\n" if is_long else " ").join([answer, f"({how})"]), fontsize=9, fontweight="bold")
    lower: Any = {"xycoords": axes.xaxis.label, "xytext": (0, -2), "textcoords": "offset points"}
    axes.annotate(_write_claim(claim), (0.5, 0), **lower, ha="center", va="top", fontsize=7.5)


def _write_claim(claim: Claim) -> str:
    tenths = "brightest tenth blurred", "another image's", "a random tenth"
    after = zip(tenths, (claim.brightest, claim.other, claim.random), strict=True)
    before = percent(claim.probability)
    return "\n".join(f"{name}: {before} → {percent(share)}" for name, share in after if share is not None)


def _show_spreads(axes: Axes, spreads: np.ndarray) -> None:
    change = float(change_a_step(spreads))
    numbers = np.arange(1, len(spreads) + 1)
    axes.plot(numbers, spreads, marker="o", color="#0072B2")
    axes.set_ylim(0, 1.02)
    axes.set_box_aspect(1)
    axes.set_xticks(numbers)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"step\n{describe_change(spreads)} ({change:+.3f} a step)", fontsize=9, fontweight="bold")
    axes.set_title("Spread of the map, step by step\n(1: an even map)", fontsize=9, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def step_attention(
    attention: Float32[np.ndarray, "case step layer head node node"],
) -> Float[np.ndarray, "case step node"]:
    """Return the attention of each step, in its own turn, to every step and to the memory; rows sum to 1."""
    num_steps = attention.shape[1]
    of_layer = attention[:, :, -1].mean(axis=2, dtype=np.float64)  # the step reads the last layer's output
    return of_layer[:, np.arange(num_steps), np.arange(num_steps)]


def node_names(chain: Chain, *, num_nodes: int) -> tuple[str, ...]:
    """Return the names of the graph's nodes: the steps, then the memory if there is one."""
    names = tuple(step.name for step in chain.steps)
    if num_nodes not in (len(names), len(names) + 1):
        raise BadInput(f"attention over {num_nodes} nodes does not fit {len(names)} steps with or without a memory")
    return names + (MEMORY,) * (num_nodes - len(names))


def attention_table(weights: Float[np.ndarray, "step node"], chain: Chain) -> dict[str, dict[str, float]]:
    """Return the attention of each step by name, for JSON."""
    names = node_names(chain, num_nodes=weights.shape[1])
    pairs = zip(chain.steps, weights, strict=True)
    return {step.name: dict(zip(names, map(float, row), strict=True)) for step, row in pairs}


def draw_attention(weights: Float[np.ndarray, "step node"], chain: Chain) -> Figure:
    """Draw the attention of each step to every step and to the memory as a heat map with numbers."""
    names = [wrap_text(name, 18, num_lines=3) for name in node_names(chain, num_nodes=weights.shape[1])]
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
