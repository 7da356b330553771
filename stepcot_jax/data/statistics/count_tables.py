"""Write the counts of a collection as CSV and Markdown.

The csv module writes the tables, not pandas: some integer columns have empty cells, which a data frame would turn into
floats.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.data.statistics.counts import Statistics, count_lengths, list_ranges
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.text import defuse_formula, escape_markdown, make_printable

Row = Sequence[str | int | float]

UNCERTAIN_NAME = "(uncertain, of those not annotated)"
_PERCENTILES = (5, 25, 50, 75, 95)


def write_tables(folder: Path, statistics: Statistics) -> list[str]:
    """Write all tables into a folder; return the names of the files."""
    tables: dict[str, Iterable[Row]] = {
        "origins_diagnoses.csv": _with_totals(
            "diagnosis", statistics.answer_names(-1), statistics.origins, statistics.diagnoses
        ),
        "answers.csv": _answers(statistics),
        "reasoning_length.csv": _reasoning_length(statistics),
        "reasoning_length_by_diagnosis.csv": _reasoning_by_diagnosis(statistics),
        "answer_flow.csv": _answer_flow(statistics),
        "splits.csv": list_splits(statistics),
        "splits_by_origin.csv": list_origin_splits(statistics),
    }
    for name, rows in tables.items():
        text = io.StringIO()
        safe = ([defuse_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        csv.writer(text, lineterminator="\n").writerows(safe)
        write_whole(folder / name, text.getvalue().encode("utf-8", "backslashreplace"))
    write_whole(folder / "splits.md", _splits_in_markdown(statistics).encode())
    return [*tables, "splits.md"]


def _with_totals(
    what: str, names: Sequence[str], columns: Sequence[str], counts: Int64[np.ndarray, "name column"]
) -> list[Row]:
    """Return head, a row for each name, and the totals."""
    rows = [[name, *row, sum(row)] for name, row in zip(names, counts.tolist(), strict=True)]
    totals = counts.sum(axis=0).tolist()
    return [[what, *columns, "total"], *rows, ["total", *totals, sum(totals)]]


def _answers(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "cases", "share_of_annotated"]]
    for number, (step, counts) in enumerate(zip(statistics.chain.steps, statistics.answers, strict=True)):
        *given, missing = counts.tolist()
        shares = [*(round(count / max(sum(given), 1), 6) for count in given), ""]
        answers = zip(statistics.answer_names(number), [*given, missing], shares, strict=True)
        rows += [[step.name, *answer] for answer in answers]
        if number_uncertain := int(statistics.uncertain[number]):
            rows.append([step.name, UNCERTAIN_NAME, number_uncertain, ""])
    return rows


def _reasoning_length(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "origin", "reasonings", "mean_words", *(f"percentile_{each}" for each in _PERCENTILES)]]
    for step, by_origin in zip(statistics.chain.steps, statistics.words, strict=True):
        rows += ([step.name, *_spread(*found)] for found in zip(statistics.origins, by_origin, strict=True))
    return rows


def _reasoning_by_diagnosis(statistics: Statistics) -> list[Row]:
    """Return head, and for each step and diagnosis also the reasonings of each range of lengths."""
    spread = ["mean_words", *(f"percentile_{each}" for each in _PERCENTILES)]
    ranges = [f"{each} words" for each in list_ranges()]
    rows: list[Row] = [["step", "diagnosis", "reasonings", *spread, *ranges]]
    for step, by_answer in zip(statistics.chain.steps, statistics.diagnosis_words, strict=True):
        for name, words in zip(statistics.answer_names(-1), by_answer, strict=True):
            rows.append([step.name, *_spread(name, words), *count_lengths(words).tolist()])
    return rows


def _spread(name: str, words: Int64[np.ndarray, " reasoning"]) -> list[str | int | float]:
    """Name, number, and mean and percentiles, which are empty without any."""
    if not words.size:
        return [name, 0, *[""] * (1 + len(_PERCENTILES))]
    return [name, words.size, round(float(words.mean()), 3), *np.percentile(words, _PERCENTILES).tolist()]


def _answer_flow(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "next_step", "next_answer", "cases"]]
    steps = statistics.chain.steps
    for number, counts in enumerate(statistics.flows):
        names, next_names = statistics.answer_names(number), statistics.answer_names(number + 1)
        for row, column in np.argwhere(counts).tolist():
            answers = steps[number].name, names[row], steps[number + 1].name, next_names[column]
            rows.append([*answers, int(counts[row, column])])
    return rows


def list_splits(statistics: Statistics) -> list[Row]:
    """Return head, a row for each diagnosis, and the totals; "(not annotated)" only if there are such cases."""
    rows = _with_totals("diagnosis", statistics.answer_names(-1), SPLIT_NAMES, statistics.splits)
    return rows if rows[-2][-1] else [*rows[:-2], rows[-1]]


def list_origin_splits(statistics: Statistics) -> list[Row]:
    """Return head, a row for each origin, the most frequent first, and the totals."""
    return _with_totals("origin", statistics.origins, SPLIT_NAMES, statistics.origin_splits)


def _splits_in_markdown(statistics: Statistics) -> str:
    lines = [*_to_markdown(list_splits(statistics)), "", *_to_markdown(list_origin_splits(statistics))]
    return "\n".join([*lines, "", f"Splits: {escape_markdown(make_printable(statistics.splits_source))}.", ""])


def _to_markdown(table: Sequence[Row]) -> list[str]:
    """Return the lines of a table of counts; after the total, each split's share of the row."""
    head, *rows = table
    shares = [f"{name} (%)" for name in head[1:-1]]
    lines = [
        "| " + " | ".join(str(cell).capitalize() for cell in (*head, *shares)) + " |",
        "|---|" + "---:|" * (len(head) - 1 + len(shares)),
    ]
    for name, *counts, total in rows:
        parts = [f"{100 * int(count) / int(total):.1f}" if total else "-" for count in counts]
        cells = [escape_markdown(make_printable(str(name))), *(f"{count:,}" for count in (*counts, total)), *parts]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
