"""Learning curves of a run, epoch by epoch, from the numbers that it logged."""

import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.report.figures import Line, draw_lines
from stepcot_jax.report.markup import Html, join, tag

_LOSS_PARTS = {"hard_label": "answers", "soft_label": "teacher's answers", "channel_alignment": "channel alignment"}
_FIRST_NAMES = ("teacher", "student")

Entry = Mapping[str, Any]


def read_metrics(path: pathlib.Path) -> list[Entry]:
    """The entries of a `metrics.jsonl`, in order.

    Raises:
      BadInput: the file cannot be read or a line of it is no entry.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: found no log of numbers ({error}), accepted is what a run wrote there") from None
    return [_read_entry(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _read_entry(path: pathlib.Path, number: int, line: str) -> Entry:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("kind"), str)
        or not isinstance(entry.get("epoch"), int)
        or not all(value is None or isinstance(value, int | float | str) for value in entry.values())
    ):
        raise BadInput(f"{path}: line {number}: found {line[:60]!r}, accepted is an object with kind, step and epoch")
    return entry


def write_curves(entries: Sequence[Entry]) -> Html:
    """The charts: validation accuracy, training loss, and the parts of the student's loss if it was distilled."""
    accuracies = [Line(name, _by_epoch(entries, "val", f"{name}/mean_accuracy")) for name in _names(entries)]
    losses = [Line(name, _by_epoch(entries, "train", f"{name}/total")) for name in _names(entries)]
    charts = [
        draw_lines(
            _present(accuracies),
            title="Mean accuracy of the steps on validation",
            x_label="epoch",
            y_label="accuracy",
        ),
        draw_lines(
            _present(losses), title="Training loss, mean of the epoch's logged steps", x_label="epoch", y_label="loss"
        ),
    ]
    parts = _present([Line(text, _by_epoch(entries, "train", f"student/{key}")) for key, text in _LOSS_PARTS.items()])
    if len(parts) > 1:
        title = "Parts of the student's loss, before their weights"
        charts.append(draw_lines(parts, title=title, x_label="epoch", y_label="loss"))
    return tag("div", join(*charts), class_="charts")


def _names(entries: Sequence[Entry]) -> list[str]:
    """The networks that the entries tell of, the teacher first."""
    found = dict.fromkeys(name for entry in entries for name in _networks(entry))
    return sorted(found, key=lambda name: (name not in _FIRST_NAMES, name != "teacher", name))


def _networks(entry: Entry) -> Iterator[str]:
    for key in entry:
        name, _, rest = key.partition("/")
        if rest in ("total", "mean_accuracy"):
            yield name


def _by_epoch(entries: Sequence[Entry], kind: str, key: str) -> list[tuple[float, float]]:
    """(epoch from 1, mean of the numbers that the epoch's entries have)."""
    numbers: dict[int, list[float]] = {}
    for entry in entries:
        if entry["kind"] == kind and key in entry:
            value = entry[key]
            numbers.setdefault(entry["epoch"], []).append(float(value) if isinstance(value, int | float) else math.nan)
    return [(epoch + 1.0, sum(values) / len(values)) for epoch, values in sorted(numbers.items())]


def _present(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.points]
