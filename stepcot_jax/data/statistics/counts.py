"""Count a collection as the paper's Figure 2 and Table 7: origins, diagnoses, answers, reasoning, answer flow, splits.

Cases that are not annotated have the last place of each count. The csv module writes the tables, not pandas: some
integer columns have empty cells, which a data frame would turn into floats.
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
from stepcot_jax.data.records.cases import Case, CaseTable, as_table
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.text import defuse_formula, escape_markdown, make_printable

NOT_ANNOTATED_NAME = "(not annotated)"
NO_ORIGIN_NAME = "(none)"

Row = Sequence[str | int | float]

_PERCENTILES = (5, 25, 50, 75, 95)


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts of a collection.

    Attributes:
      chain: the steps.
      num_cases: number of cases.
      num_patients: number of patients.
      origins: names, the most frequent first.
      diagnoses: cases of each answer of the last step and each origin.
      answers: for each step, the cases of each answer.
      flows: for each step but the last, the cases with each answer and each next answer.
      rest_flows: the same without the cases of the most frequent first answer.
      words: for each step and origin, the number of words of each reasoning that is not empty.
      splits: cases of each answer of the last step in each split.
      splits_source: where the splits come from, in words.
    """

    chain: Chain
    num_cases: int
    num_patients: int
    origins: tuple[str, ...]
    diagnoses: Int64[np.ndarray, "answer origin"]
    answers: tuple[Int64[np.ndarray, " answer"], ...]
    flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    rest_flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]
    splits: Int64[np.ndarray, "answer split"]
    splits_source: str

    def answer_names(self, step: int) -> tuple[str, ...]:
        """Return the names of a step's answers, "(not annotated)" last."""
        return (*self.chain.steps[step].options, NOT_ANNOTATED_NAME)


def compute_statistics(cases: Iterable[Case], chain: Chain, splits: Splits, *, splits_source: str) -> Statistics:
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
        flows=_count_flows(places, sizes),
        rest_flows=_count_flows(rest, sizes),
        words=tuple(
            tuple(lengths[(origin_of == origin) & (lengths > 0)] for origin in range(len(origins)))
            for lengths in words.T
        ),
        splits=_cross(places[in_split, -1], split_of[in_split], sizes[-1], len(SPLIT_NAMES)),
        splits_source=splits_source,
    )


def _rank_origins(table: CaseTable) -> tuple[tuple[str, ...], Int64[np.ndarray, " case"]]:
    """Return the names of the origins, the most frequent first, and each case's place among them."""
    names = [name or NO_ORIGIN_NAME for name in table.origins.names]
    found = sorted(set(names))  # a file may write "(none)" itself
    number_of = np.array([found.index(name) for name in names])[table.origins.numbers]
    order = np.argsort(-np.bincount(number_of), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return tuple(found[place] for place in order), rank[number_of]


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


def write_tables(folder: Path, statistics: Statistics) -> list[str]:
    """Write all tables into a folder; return the names of the files."""
    tables: dict[str, Iterable[Row]] = {
        "origins_diagnoses.csv": _with_totals(statistics, statistics.origins, statistics.diagnoses),
        "answers.csv": _answers(statistics),
        "reasoning_length.csv": _reasoning_length(statistics),
        "answer_flow.csv": _answer_flow(statistics),
        "splits.csv": list_splits(statistics),
    }
    for name, rows in tables.items():
        text = io.StringIO()
        safe = ([defuse_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        csv.writer(text, lineterminator="\n").writerows(safe)
        write_whole(folder / name, text.getvalue().encode("utf-8", "backslashreplace"))
    write_whole(folder / "splits.md", _splits_in_markdown(statistics).encode())
    return [*tables, "splits.md"]


def _with_totals(statistics: Statistics, names: Sequence[str], counts: Int64[np.ndarray, "answer column"]) -> list[Row]:
    """Return head, a row for each diagnosis, and the totals."""
    diagnoses = statistics.answer_names(-1)
    rows = [[name, *row, sum(row)] for name, row in zip(diagnoses, counts.tolist(), strict=True)]
    totals = counts.sum(axis=0).tolist()
    return [["diagnosis", *names, "total"], *rows, ["total", *totals, sum(totals)]]


def _answers(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "cases", "share_of_annotated"]]
    for number, (step, counts) in enumerate(zip(statistics.chain.steps, statistics.answers, strict=True)):
        *given, missing = counts.tolist()
        shares = [*(round(count / max(sum(given), 1), 6) for count in given), ""]
        answers = zip(statistics.answer_names(number), [*given, missing], shares, strict=True)
        rows += [[step.name, *answer] for answer in answers]
    return rows


def _reasoning_length(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "origin", "reasonings", "mean_words", *(f"percentile_{each}" for each in _PERCENTILES)]]
    for step, by_origin in zip(statistics.chain.steps, statistics.words, strict=True):
        for origin, words in zip(statistics.origins, by_origin, strict=True):
            spread: list[float | str] = [""] * (1 + len(_PERCENTILES))
            if words.size:
                spread = [round(float(words.mean()), 3), *np.percentile(words, _PERCENTILES).tolist()]
            rows.append([step.name, origin, words.size, *spread])
    return rows


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
    rows = _with_totals(statistics, SPLIT_NAMES, statistics.splits)
    return rows if rows[-2][-1] else [*rows[:-2], rows[-1]]


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
