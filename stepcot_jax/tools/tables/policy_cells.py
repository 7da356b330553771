"""Cells that train policies, and their scored replies to the test questions."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, JUDGED, MEANS, ReplyComparison
from stepcot_jax.evaluation.replies import BASELINE, ReplyScore, ScoringSettings, as_columns, score_all
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Entry, Table, columns
from stepcot_jax.record import Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.policy_data import TEST_RECORDS
from stepcot_jax.run.scored_baseline import score_baseline
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import Plan

_PLAIN: dict[str, Any] = {
    "policy.start": "",
    "curriculum.schedule": "none",
    "self_check.enabled": False,
    "grpo.shuffle_rewards": False,
}
"""Settings of every cell whose row does not change them; they override the config."""


def sft_cell(plan: Plan, seed: int, name: str, changes: Mapping[str, Any] | None = None) -> Cell:
    """Return a run of fine-tuning alone, from random weights."""
    return Cell(name, vary(plan.settings, {**_PLAIN, "job": "sft", "seed": seed, **(changes or {})}))


def grpo_cell(plan: Plan, start: Cell, name: str, changes: Mapping[str, Any] | None = None) -> Cell:
    """Return a run of GRPO alone, from the best weights of a finished cell, with its seed and vocabulary."""
    job = {"job": "grpo", "policy.start": plan.cells.source(start), "sft.epochs": 0}
    return Cell(name, vary(start.settings, {**job, **(changes or {})}))


def make_scoring(settings: Settings) -> ScoringSettings:
    """Return the settings with which a run scores its replies."""
    return ScoringSettings(dialect=settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)


def read_test_records(plan: Plan, cell: Cell) -> list[Record]:
    """Return the test records of a finished cell; boxes are in pixels of the picture that the policy sees."""
    return list(read_vqa_records(plan.cells.folder(cell) / TEST_RECORDS).records)


def score_cell(plan: Plan, cell: Cell, records: Sequence[Record]) -> list[ReplyScore]:
    """Score the replies of a finished cell with its best weights."""
    folder = plan.cells.folder(cell)
    if read_test_records(plan, cell) != list(records):
        raise BadInput(f"cell {cell.name!r} in {folder}: {TEST_RECORDS} has other records than the cells beside it")
    ids = {record.id: None for record in records}
    path = folder / cell.settings.trains.replies
    file = read_replies(path, name=cell.name, chosen=ids.keys(), known=ids.keys(), missing="stop")
    return score_all(records, file.replies, make_scoring(cell.settings))


def score_constant(settings: Settings, records: Sequence[Record]) -> list[ReplyScore]:
    """Score the majority answer with the constant box of the training split."""
    scores, remark = score_baseline(load_training_records(settings), records, make_scoring(settings))
    if scores is None:
        raise BadInput(remark)
    return scores


def compare_policies(plan: Plan, cells_of: Callable[[int], Mapping[str, Cell]]) -> tuple[ReplyComparison, int]:
    """Compare the cells of each seed by name, after the majority answer with the constant box."""
    first = next(iter(cells_of(plan.seeds[0]).values()))
    records = read_test_records(plan, first)
    baseline = as_columns(records, score_constant(first.settings, records))
    splits = [
        {BASELINE: baseline}
        | {name: as_columns(records, score_cell(plan, cell, records)) for name, cell in cells_of(seed).items()}
        for seed in plan.seeds
    ]
    return ReplyComparison(splits, plan.num_resamples), len(records)


def tabulate_differences(
    name: str, title: str, comparison: ReplyComparison, pairs: Sequence[tuple[str, str]], note: str
) -> Table:
    """Return a table of paired differences, with verdicts on mean A, V and V on findings."""
    verdicts = comparison.verdicts([(*pair, *key) for pair in pairs for _, key in JUDGED])
    rows: list[tuple[Entry, ...]] = []
    for index, pair in enumerate(pairs):
        of_pair = verdicts[index * len(JUDGED) : (index + 1) * len(JUDGED)]
        rows.append((*pair, *(comparison.difference(*pair, *key) for _, key in MEANS), *of_pair))
    heads = (
        *columns("text", "training", "less"),
        *columns("points", *(heading for heading, _ in MEANS)),
        *columns("text", *(f"{heading}: verdict" for heading, _ in JUDGED)),
    )
    return Table(name, title, heads, tuple(rows), (note, INTERVALS, CORRECTED))


@functools.lru_cache(1)
def load_training_records(settings: Settings) -> tuple[Record, ...]:
    """Return the records of the training split; they do not depend on the run's seed."""
    return load_vqa_dataset(settings, splits=("train",)).records
