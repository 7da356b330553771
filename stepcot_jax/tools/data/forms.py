"""Write the counts of structured reports, and the figures of the constant that says no to everything."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.data.statistics import FormPart, count_form
from stepcot_jax.evaluation.structured_reports import format_scores, score_reports
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.text import write_csv

Row = list[str | int]


def write_form_statistics(folder: Path, collection: Collection, splits: Splits) -> list[str]:
    """Write questions.csv and reports.md; return their names. The constant is scored on one image a report."""
    table, chain = collection.cases, collection.chain
    members = {}
    for name, indices in splits.by_name().items():
        members[name] = np.zeros(len(table), bool)
        members[name][list(indices)] = True
    text = io.StringIO()
    write_csv(
        text, [["question", "wording", "part", "asked if", "answer", *members], *_list_answers(chain, table, members)]
    )
    write_whole(folder / "questions.csv", text.getvalue().encode())
    lines = ["# Structured reports", "", *_list_parts(count_form(table, chain, members))]
    patients = np.array(list(table.patient_ids))
    for name, chosen in members.items():
        rows = np.flatnonzero(chosen)
        first = rows[np.unique(patients[rows], return_index=True)[1]]
        scores, differences = score_reports({}, table.labels[first].astype(int), chain, patients=patients[first])
        lines += ["", f"## No to everything: {name}, {len(first):,} reports", "", format_scores(scores, differences)]
    write_whole(folder / "reports.md", ("\n".join(lines) + "\n").encode())
    return ["questions.csv", "reports.md"]


def _list_answers(chain: Chain, table: RecordTable, members: dict[str, np.ndarray]) -> Iterator[Row]:
    """Yield a row for each answer of each step, with the cases of each split."""
    for position, step in enumerate(chain.steps):
        opened = "" if step.asked_if is None else _name(chain, *step.asked_if)
        for label, option in [*enumerate(step.options), (NOT_ANNOTATED, "(not asked)")]:
            counts = [int((table.labels[chosen, position] == label).sum()) for chosen in members.values()]
            yield [step.name, step.question, step.part, opened, option, *counts]


def _name(chain: Chain, position: int, label: int) -> str:
    step = chain.steps[position]
    return f"{step.name}: {step.options[label]}"


def _list_parts(parts: list[FormPart]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the parts."""
    splits = list(parts[0].asked)
    yield (
        "| part | questions | several right | "
        + " | ".join(f"asked, {name} | only no, {name}" for name in splits)
        + " |"
    )
    yield "|---|" + "---:|" * (2 + 2 * len(splits))
    for part in parts:
        counts = [
            f"{part.asked[name]:,} | {part.only_no[name]:,} ({part.only_no[name] / max(part.patients[name], 1):.1%})"
            for name in splits
        ]
        yield "| " + " | ".join([part.name, f"{part.questions:,}", f"{part.several_right:,}", *counts]) + " |"
