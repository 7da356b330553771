"""The tables of docs/results/scaling_notes.md, from measured and computed numbers."""

import math
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from benchmarks.scaling_sizes import SECONDS_A_DAY, Traffic, read_result, say_bytes, say_number, say_seconds

RESULTS = pathlib.Path(__file__).with_name("RESULTS.md")

_DEVICES = (8, 64, 256, 1024)
_CASES_PER_DEVICE = 32
_IMAGES = (1_000_000, 10_000_000, 1_000_000_000)


def make_tables(numbers: dict[str, Any]) -> dict[str, str]:
    """Return every table by name, in Markdown, without tables whose numbers are missing.

    Of the sizes only the published ones; `benchmarks/scaling.json` has the others.

    Args:
      numbers: the JSON that `benchmarks.scaling` writes.
    """
    tables = {}
    if rows := [row for row in numbers.get("steps", ()) if row["size"] == "published"]:
        tables["steps"] = _steps_table(rows)
    if parameters := numbers.get("trained_parameters"):
        tables["interconnect"] = _interconnect_table(parameters["7"])
    if store := numbers.get("store"):
        tables["features"] = _features_table(store)
    return tables


def fill(document: str, tables: dict[str, str]) -> str:
    """Replace each table of `document` between `<!-- table: NAME -->` and `<!-- end -->`.

    Raises:
      ValueError: the document does not have exactly one place for a table.
    """
    for name, table in tables.items():
        place = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)", re.S)
        document, count = place.subn(lambda match, table=table: f"{match[1]}{table}{match[2]}", document)
        if count != 1:
            raise ValueError(f"the document has {count} places for table {name!r}, expected 1")
    return document


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    first, *others = ("| " + " | ".join(line) + " |\n" for line in [head, *rows])
    return "".join([first, "|" + "---|" * len(head) + "\n", *others])


def _steps_table(rows: list[dict[str, Any]]) -> str:
    """Milliseconds of an update, by number of steps and batch size; then parameters, compilation and memory."""
    by_place = {(row["num_steps"], row["batch_size"]): row for row in rows}
    batches = sorted({row["batch_size"] for row in rows})
    body = []
    for steps in sorted({row["num_steps"] for row in rows}):
        own = {batch: by_place[steps, batch] for batch in batches if (steps, batch) in by_place}
        seconds = [row["compile_seconds"] for row in own.values()]
        row = own.get(32) or next(iter(own.values()))
        body.append(
            [
                str(steps),
                *(_say_step(own.get(batch)) for batch in batches),
                f"{row['trained_parameters']:,}",
                f"{min(seconds):.1f} to {max(seconds):.1f} s",
                say_bytes(1e6 * row["work_megabytes"]),
            ]
        )
    head = ["steps", *(f"batch {batch}" for batch in batches), "parameters", "compilation", "working memory, batch 32"]
    return make_table(head, body)


def _say_step(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["step_seconds"] is None:
        return f"not run: {say_bytes(1e6 * row['work_megabytes'])}"
    milliseconds, spread = say_number(1000 * row["step_seconds"]), 100 * row["step_spread"]
    return f"{milliseconds} ms (± {spread:.0f} %), {say_number(row['case_gflop'], 2)}"


def _interconnect_table(gradients: int) -> str:
    """Traffic and alignment at the published sizes, 32 cases per device."""
    traffic, body = Traffic(gradients), []
    own_work = _CASES_PER_DEVICE * read_result(RESULTS, "joint_b32_cost_gflop")
    for devices in _DEVICES:
        batch = _CASES_PER_DEVICE * devices
        own, alignment = traffic.sent_gradient_bytes(devices), traffic.sent_alignment_bytes(devices, batch)
        body.append(
            [
                f"{devices:,}",
                f"{batch:,}",
                say_bytes(own),
                say_bytes(alignment),
                f"{say_number(1000 * (own + alignment) / 100e9, 2)} ms",
                f"{say_number(traffic.alignment_flop(batch) / 1e9)} Gflop",
                say_bytes(traffic.gram_bytes(batch)),
            ]
        )
    head = [
        "devices",
        "batch",
        "gradients, sent a device",
        "alignment, sent a device",
        "at 100 GB/s a device",
        f"alignment's work a device (all else: {say_number(own_work)} Gflop)",
        "its Gram matrices a device",
    ]
    return make_table(head, body)


def _features_table(store: dict[str, float]) -> str:
    rate = read_result(RESULTS, "clip_images_per_second")
    body = [
        [
            f"{count:,}",
            say_bytes(count * store["file_bytes"]),
            say_bytes(count * store["index_bytes"]),
            say_seconds(count / rate),
            f"{max(1, math.ceil(count / rate / SECONDS_A_DAY)):,}",
        ]
        for count in _IMAGES
    ]
    head = [
        "images",
        "feature store",
        "its index in memory",
        f"encoding at {rate:g} images/s",
        "such machines for a day",
    ]
    return make_table(head, body)
