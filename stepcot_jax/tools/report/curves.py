"""Learning curves of a run: validation score, loss and its parts, reward."""

import itertools
import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from stepcot_jax.pages.figures import Line, draw_lines
from stepcot_jax.reading.finished import Entry

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
    measure = next((name for name in _MEASURES if any(key.endswith(f"/{name}") for key in keys)), "mean_accuracy")
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
