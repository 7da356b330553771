"""Count a collection as the paper's Figure 2 and Table 7: origins, diagnoses, answers, reasoning, answer flow, splits.

Cases that are not annotated have the last place of each count.
"""

import csv
import dataclasses
import io
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from stepcot_jax.chain import Chain
from stepcot_jax.data.columns import RecordTable, as_table
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.text import defuse_formula, escape_markdown, make_printable
from stepcot_jax.record import Record

NOT_ANNOTATED_NAME = "(not annotated)"
NO_ORIGIN_NAME = "(none)"

LENGTH_ENDS = (5, 10, 15, 20, 25)
"""The most words of each range of lengths but the last; those of the paper's Figure 2B are not in its text."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts of a collection.

    Attributes:
      origins: names, the most frequent first.
      diagnoses: cases of each answer of the last step and each origin.
      answers: for each step, the cases of each answer.
      uncertain: for each step, the cases whose answer is uncertain; they are among those not annotated.
      flows: for each step but the last, the cases with each answer and each next answer.
      rest_flows: the same without the cases of the most frequent first answer.
      words: for each step and origin, the number of words of each reasoning that is not empty.
      diagnosis_words: for each step and answer of the last step, the same.
      splits: cases of each answer of the last step in each split.
      origin_splits: cases of each origin in each split.
      splits_source: where the splits come from, in words.
    """

    chain: Chain
    num_cases: int
    num_patients: int
    origins: tuple[str, ...]
    diagnoses: Int64[np.ndarray, "answer origin"]
    answers: tuple[Int64[np.ndarray, " answer"], ...]
    uncertain: Int64[np.ndarray, " step"]
    flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    rest_flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]
    diagnosis_words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]
    splits: Int64[np.ndarray, "answer split"]
    origin_splits: Int64[np.ndarray, "origin split"]
    splits_source: str

    def answer_names(self, step: int) -> tuple[str, ...]:
        """Return the names of a step's answers, "(not annotated)" last."""
        return (*self.chain.steps[step].options, NOT_ANNOTATED_NAME)


def compute_statistics(cases: Iterable[Record], chain: Chain, splits: Splits, *, splits_source: str) -> Statistics:
    """Count cases (at least one) and their splits; `splits_source` says in words where the splits come from."""
    table = as_table(cases)
    labels = table.labels.astype(np.int64)
    sizes = [num_answers + 1 for num_answers in chain.answers_per_step]
    places = np.where(labels < 0, np.array(sizes) - 1, labels)
    origins, origin_of = _rank_origins(table)
    split_of = np.full(len(table), -1)
    for number, indices in enumerate(splits.by_name().values()):
        split_of[list(indices)] = number
    in_split = split_of >= 0
    answers = tuple(np.bincount(places[:, step], minlength=size) for step, size in enumerate(sizes))
    rest = places[places[:, 0] != np.argmax(answers[0])]
    words = np.array([[len(text.split()) for text in case.reasoning] for case in table], np.int64)
    return Statistics(
        chain=chain,
        num_cases=len(table),
        num_patients=table.count_patients(),
        origins=origins,
        diagnoses=_cross(places[:, -1], origin_of, sizes[-1], len(origins)),
        answers=answers,
        uncertain=table.count_uncertain(np.ones(len(table), bool)),
        flows=_count_flows(places, sizes),
        rest_flows=_count_flows(rest, sizes),
        words=_group_lengths(words, origin_of, len(origins)),
        diagnosis_words=_group_lengths(words, places[:, -1], sizes[-1]),
        origin_splits=_cross(origin_of[in_split], split_of[in_split], len(origins), len(SPLIT_NAMES)),
        splits=_cross(places[in_split, -1], split_of[in_split], sizes[-1], len(SPLIT_NAMES)),
        splits_source=splits_source,
    )


def _rank_origins(table: RecordTable) -> tuple[tuple[str, ...], Int64[np.ndarray, " case"]]:
    """Return the names of the origins, the most frequent first, and each case's place among them."""
    names = [name or NO_ORIGIN_NAME for name in table.origins.names]
    found = sorted(set(names))  # a file may write "(none)" itself
    number_of = np.array([found.index(name) for name in names])[table.origins.numbers]
    order = np.argsort(-np.bincount(number_of), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return tuple(found[place] for place in order), rank[number_of]


def _group_lengths(
    words: Int64[np.ndarray, "case step"], group_of: Int64[np.ndarray, " case"], num_groups: int
) -> tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]:
    """Return by step and group the numbers of words of the reasonings that are not empty."""
    return tuple(
        tuple(lengths[(group_of == group) & (lengths > 0)] for group in range(num_groups)) for lengths in words.T
    )


def _cross(
    rows: Int64[np.ndarray, " case"], columns: Int64[np.ndarray, " case"], num_rows: int, num_columns: int
) -> Int64[np.ndarray, "row column"]:
    """Count the cases with each pair of values."""
    return np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns).reshape(num_rows, num_columns)


def _count_flows(
    places: Int64[np.ndarray, "case step"], sizes: Sequence[int]
) -> tuple[Int64[np.ndarray, "answer next_answer"], ...]:
    steps = itertools.pairwise(zip(places.T, sizes, strict=True))
    return tuple(_cross(given, then, size, next_size) for (given, size), (then, next_size) in steps)


def count_lengths(words: Int64[np.ndarray, " reasoning"]) -> Int64[np.ndarray, " range"]:
    """Count reasonings by range of their numbers of words.

    >>> count_lengths(np.array([1, 5, 6, 25, 26, 90])).tolist()
    [2, 1, 0, 0, 1, 2]
    """
    return np.bincount(np.searchsorted(LENGTH_ENDS, words), minlength=len(LENGTH_ENDS) + 1)


def list_ranges() -> list[str]:
    """Return the names of the ranges of numbers of words.

    >>> list_ranges()
    ['1-5', '6-10', '11-15', '16-20', '21-25', 'over 25']
    """
    starts = [1, *(end + 1 for end in LENGTH_ENDS[:-1])]
    return [*(f"{start}-{end}" for start, end in zip(starts, LENGTH_ENDS, strict=True)), f"over {LENGTH_ENDS[-1]}"]


# Write the counts of a collection as CSV and Markdown.
#
# The csv module writes the tables, not pandas: some integer columns have empty cells, which a data frame would turn
# into floats.


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
