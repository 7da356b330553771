"""Draw the words of the reasoning by diagnosis and step (paper: Figure 2B): mean, and shares by range of lengths."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, Wedge

from stepcot_jax.data.statistics.counts import LENGTH_ENDS, Statistics, count_lengths, list_ranges

# Inches, which are also the units of the only axes.
_CELL = (1.05, 0.85)
_LEFT, _TOP, _BARS, _RIGHT, _BOTTOM = 2.1, 1.0, 0.7, 2.2, 1.0
_LEAST_WIDTH = 7.6  # of the title
_RADIUS = 0.27

_COLOURS = [matplotlib.colormaps["viridis"](share) for share in np.linspace(0.95, 0.05, len(LENGTH_ENDS) + 1)]


def draw_reasoning_by_diagnosis(
    statistics: Statistics, title: str, *, steps: Sequence[str], answers: Sequence[str]
) -> Figure | None:
    """Draw a matrix of diagnoses and steps; None without any reasoning.

    A cell has the mean number of words, by which it is shaded, and a pie of its reasonings by range of lengths. The
    histograms above and to the right are of a step and of a diagnosis.

    Args:
      answers: names of the answers of the last step, "(not annotated)" last, in at most two lines each.
    """
    counts = np.array([[count_lengths(words) for words in by_answer] for by_answer in statistics.diagnosis_words])
    shown = np.flatnonzero(counts.sum(axis=(0, 2))).tolist()
    if not shown:
        return None
    width = max(_LEAST_WIDTH, _LEFT + _CELL[0] * len(steps) + _RIGHT)
    height = _TOP + _BARS + _CELL[1] * len(shown) + _BOTTOM
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    axes.text(0.2, 0.25, title, fontsize=11, va="center")
    means = np.array([[words.mean() if words.size else np.nan for words in row] for row in statistics.diagnosis_words])
    of_steps, of_answers = _share(counts.sum(axis=1)), _share(counts.sum(axis=0))
    largest = max(of_steps.max(), of_answers.max())
    for column, name in enumerate(steps):
        left = _LEFT + column * _CELL[0]
        axes.text(left + _CELL[0] / 2, _TOP - 0.1, name, fontsize=8.5, ha="center", va="bottom")
        _draw_histogram(axes, of_steps[column] / largest, left, _TOP, upright=True)
    edge = _LEFT + len(steps) * _CELL[0]
    for row, answer in enumerate(shown):
        top = _TOP + _BARS + row * _CELL[1]
        axes.text(_LEFT - 0.15, top + _CELL[1] / 2, answers[answer], fontsize=9, ha="right", va="center")
        for column in range(len(steps)):
            darkness = means[column, answer] / np.nanmax(means)
            _draw_cell(axes, counts[column, answer], means[column, answer], darkness, _LEFT + column * _CELL[0], top)
        _draw_histogram(axes, of_answers[answer] / largest, edge + 0.1, top, upright=False)
        axes.text(edge + 1.1, top + _CELL[1] / 2, f"{counts[:, answer].sum():,}", fontsize=8.5, va="center")
    _draw_legend(axes, height)
    return figure


def _draw_cell(
    axes: Axes, counts: Int64[np.ndarray, " range"], mean: float, darkness: float, left: float, top: float
) -> None:
    """Draw a pie of the lengths over the mean; a hyphen without reasoning."""
    middle, total = left + _CELL[0] / 2, counts.sum()
    background = matplotlib.colormaps["Oranges"](0.5 * darkness) if total else "white"
    axes.add_patch(Rectangle((left, top), *_CELL, facecolor=background, edgecolor="white"))
    if not total:
        axes.text(middle, top + 0.7, "-", fontsize=8.5, ha="center", va="center")
        return
    axes.text(middle, top + 0.72, f"{mean:.1f}", fontsize=8.5, ha="center", va="center")
    ends = np.concatenate([[0.0], np.cumsum(counts) / total])
    # From the top on, clockwise: the axis of y points down.
    for start, end, colour in zip(ends[:-1], ends[1:], _COLOURS, strict=True):
        if end > start:
            pie = (middle, top + 0.33), _RADIUS, 360 * start - 90, 360 * end - 90
            axes.add_patch(Wedge(*pie, facecolor=colour, linewidth=0))


def _share(counts: Int64[np.ndarray, "row range"]) -> Float64[np.ndarray, "row range"]:
    """Shares of each row's reasonings; zeros without any."""
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _draw_histogram(
    axes: Axes, lengths: Float64[np.ndarray, " range"], left: float, top: float, *, upright: bool
) -> None:
    """Draw a bar of a length in 0..1 for each range: above a column, or right of a row."""
    thickness = (_CELL[0] if upright else _CELL[1]) / (len(lengths) + 2)
    for place, (length, colour) in enumerate(zip(lengths.tolist(), _COLOURS, strict=True), start=1):
        if upright:
            height = length * (_BARS - 0.05)
            corner, size = (left + place * thickness, top + _BARS - height), (thickness, height)
        else:
            corner, size = (left, top + place * thickness), (length * 0.9, thickness)
        axes.add_patch(Rectangle(corner, *size, facecolor=colour))


def _draw_legend(axes: Axes, height: float) -> None:
    """Draw the colours of the ranges, and what the picture shows."""
    axes.text(0.2, height - 0.65, "words:", fontsize=9, va="center")
    for place, (name, colour) in enumerate(zip(list_ranges(), _COLOURS, strict=True)):
        left = 1.1 + place
        axes.add_patch(Rectangle((left, height - 0.73), 0.16, 0.16, facecolor=colour))
        axes.text(left + 0.24, height - 0.65, name, fontsize=9, va="center")
    about = "In a cell the mean; pies and bars: shares of the reasonings; right: their number."
    axes.text(0.2, height - 0.3, about, fontsize=9, va="center")
