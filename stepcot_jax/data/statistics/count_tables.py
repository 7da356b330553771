"""Write the counts of a collection as CSV, and its splits as a Markdown table like the paper's Table 7.

The csv module, not pandas: integer counts stand beside empty cells, which a data frame would write as 1.0.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from stepcot_jax.data.checks.check_printing import make_printable
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.data.statistics.counts import Statistics
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.text import defuse_formula, escape_markdown

Row = Sequence[str | int | float]

_PERCENTILES = (5, 25, 50, 75, 95)


def write_tables(folder: Path, statistics: Statistics) -> list[str]:
    """Write all tables into a folder; return the names of the files."""
    tables: dict[str, Iterable[Row]] = {
        "origins_diagnoses.csv": _origins_diagnoses(statistics),
        "answers.csv": _answers(statistics),
        "reasoning_length.csv": _reasoning_length(statistics),
        "answer_flow.csv": _answer_flow(statistics),
        "splits.csv": list_splits(statistics),
    }
    for name, rows in tables.items():
        _write_csv(folder / name, rows)
    write_whole(folder / "splits.md", _splits_in_markdown(statistics).encode())
    return [*tables, "splits.md"]


def _write_csv(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    safe = ([defuse_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(safe)
    write_whole(path, text.getvalue().encode("utf-8", "backslashreplace"))


def _origins_diagnoses(statistics: Statistics) -> list[Row]:
    names = statistics.answer_names(-1)
    rows = [[name, *counts, sum(counts)] for name, counts in zip(names, statistics.diagnoses.tolist(), strict=True)]
    totals = statistics.diagnoses.sum(axis=0).tolist()
    return [["diagnosis", *statistics.origins, "total"], *rows, ["total", *totals, sum(totals)]]


def _answers(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "cases", "share_of_annotated"]]
    for number, (step, counts) in enumerate(zip(statistics.chain.steps, statistics.answers, strict=True)):
        *given, missing = counts.tolist()
        *names, none = statistics.answer_names(number)
        num_annotated = max(sum(given), 1)
        rows += [
            [step.name, name, count, round(count / num_annotated, 6)] for name, count in zip(names, given, strict=True)
        ]
        rows.append([step.name, none, missing, ""])
    return rows


def _reasoning_length(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "origin", "reasonings", "mean_words", *(f"percentile_{each}" for each in _PERCENTILES)]]
    for step, by_origin in zip(statistics.chain.steps, statistics.words, strict=True):
        for origin, words in zip(statistics.origins, by_origin, strict=True):
            if words.size:
                spread = np.percentile(words, _PERCENTILES).tolist()
                rows.append([step.name, origin, words.size, round(float(words.mean()), 3), *spread])
            else:
                rows.append([step.name, origin, 0, *[""] * (1 + len(_PERCENTILES))])
    return rows


def _answer_flow(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "next_step", "next_answer", "cases"]]
    steps = statistics.chain.steps
    for number, counts in enumerate(statistics.flows):
        for place, name in enumerate(statistics.answer_names(number)):
            for next_place, next_name in enumerate(statistics.answer_names(number + 1)):
                if count := int(counts[place, next_place]):
                    rows.append([steps[number].name, name, steps[number + 1].name, next_name, count])
    return rows


def list_splits(statistics: Statistics) -> list[Row]:
    """Return head, a row for each diagnosis, and the totals; "(not annotated)" only if there are such cases."""
    names = statistics.answer_names(-1)
    rows = [[name, *counts, sum(counts)] for name, counts in zip(names, statistics.splits.tolist(), strict=True)]
    totals = statistics.splits.sum(axis=0).tolist()
    last = rows[-1:] if rows[-1][-1] else []
    return [["diagnosis", *SPLIT_NAMES, "total"], *rows[:-1], *last, ["total", *totals, sum(totals)]]


def _splits_in_markdown(statistics: Statistics) -> str:
    head, *rows = list_splits(statistics)
    lines = [
        "| " + " | ".join(str(cell).capitalize() for cell in head) + " |",
        "|---|" + "---:|" * (len(head) - 1),
        *(
            "| " + " | ".join([escape_markdown(make_printable(str(row[0]))), *(f"{cell:,}" for cell in row[1:])]) + " |"
            for row in rows
        ),
    ]
    return "\n".join([*lines, "", f"Splits: {escape_markdown(make_printable(statistics.splits_source))}.", ""])
