"""Table `stages`: quality of the stages of policies beside MEDSAGE's, and its other tables as printed."""

import functools
from collections.abc import Sequence

import numpy as np

from stepcot_jax.evaluation import published
from stepcot_jax.evaluation.comparison import INTERVALS
from stepcot_jax.evaluation.replies import Key
from stepcot_jax.evaluation.stage_quality import stage_figures
from stepcot_jax.evaluation.statistics import Interval, bootstrap, summarise
from stepcot_jax.pages.sheets import Column, Row, Table, columns
from stepcot_jax.record import STAGE_NAMES, Record
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_cells import read_test_records, score_cell
from stepcot_jax.tools.tables.self_check_table import lvkc_grpo, lvkc_sft, tabulate_three_sets

MODELS = ("SFT", "SFT and RL")
"""Rows of ours, as MEDSAGE's Table 2 names them."""

_OURS: dict[str, Key] = {name: ("stage", name) for name in STAGE_NAMES} | {"step quality": ("step_quality", "together")}
_JUDGED_NOTE = "Judge and prompt are not published. None of the printed averages is the mean of its row."


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    """Return the cells of our rows, which are those of the table `self_check` without self-check."""
    return dict(zip(MODELS, (lvkc_sft(plan, seed), lvkc_grpo(plan, seed)), strict=True))


def list_cells(plan: Plan) -> list[Cell]:
    """Return fine-tuning and GRPO in the dialect of MEDSAGE for each seed."""
    return [cell for seed in plan.seeds for cell in _cells(plan, seed).values()]


def make_tables(plan: Plan | None) -> list[Table]:
    """Return MEDSAGE's Tables 2, 1 and 3 with the recomputed averages and gaps; with a plan, our stages too."""
    stages = _tabulate_published() if plan is None else _tabulate_ours(plan)
    note = "Baseline-sft lies far below the untrained model of the benchmarks' table."
    augmentation = tabulate_three_sets(
        "stages_augmentation", "Reasoning-path augmentation (MEDSAGE, Table 3)", published.PATH_AUGMENTATION, note
    )
    return [stages, _tabulate_benchmarks(), augmentation]


def _tabulate_published() -> Table:
    heads = (*columns("text", "model", "data"), *_PUBLISHED_COLUMNS)
    rows = [_published_row(*key) for key in published.STAGE_SCORES]
    return Table.of("stages", "Scores of each stage from 1 to 5 (MEDSAGE, Table 2)", heads, rows, (_JUDGED_NOTE,))


_PUBLISHED_COLUMNS = (
    *columns("number", *published.STAGES, "average", published=True, digits=3),
    Column("average", "number", recomputed=True, digits=4),
)


def _published_row(model: str, data: str) -> Row:
    scores = published.STAGE_SCORES[model, data]
    row: Row = {"model": model, "data": data}
    row |= {f"published: {stage}": score for stage, score in scores.items()}
    row["published: average"] = published.STAGE_AVERAGE[model, data]
    row["recomputed: average"] = published.round_half_up(published.recompute_mean(scores), 4)
    return row


def _tabulate_ours(plan: Plan) -> Table:
    records = read_test_records(plan, _cells(plan, plan.seeds[0])[MODELS[0]])
    rows: list[Row] = []
    for model in MODELS:
        of_seeds = [_score(plan, _cells(plan, seed)[model], records) for seed in plan.seeds]
        rows.append({"model": model, "data": "our test split"})
        rows[-1] |= {name: summarise([of_seed[key] for of_seed in of_seeds]) for name, key in _OURS.items()}
    rows += [_published_row(*key) for key in published.STAGE_SCORES]
    notes = (
        f"Ours: policies in the dialect of MEDSAGE, {len(records)} questions, seeds {list(plan.seeds)}; those of "
        "the table self_check without a self-check in GRPO.",
        INTERVALS,
        "Ours are checked against the records' facts: descriptions (localisation, visual) are worth 100, 50 or 0, "
        "reasoning (knowledge, conclusion) 100 or 0; stages of replies that are not well formed 0. Step quality is the "
        "geometric mean of both parts. This is our definition, after MiCEval: another scale than the published one.",
        "Published: scores of a judge from 1 to 5. " + _JUDGED_NOTE,
    )
    heads = (*columns("text", "model", "data"), *columns("percent", *_OURS), *_PUBLISHED_COLUMNS)
    return Table.of("stages", "Quality of each stage, beside MEDSAGE's Table 2", heads, rows, notes)


def _score(plan: Plan, cell: Cell, records: Sequence[Record]) -> dict[Key, Interval]:
    scores = score_cell(plan, cell, records)
    labels = np.array([score.stages for score in scores], np.float64)
    patients = np.array([record.patient for record in records])
    compute = functools.partial(stage_figures, labels=labels)
    return bootstrap(compute, patients, num_resamples=plan.num_resamples)


def _tabulate_benchmarks() -> Table:
    rows: list[Row] = []
    for method, shares in published.BENCHMARK_ACCURACY.items():
        row: Row = {"group": published.BENCHMARK_GROUPS[method], "method": method}
        row |= {f"published: {name}": share for name, share in shares.items()}
        row["published: average"], row["published: gap"] = published.BENCHMARK_AVERAGE[method]
        row["recomputed: average"] = published.round_half_up(published.recompute_mean(shares), 4)
        row["recomputed: gap"] = published.round_half_up(published.recompute_gap(method), 4)
        rows.append(row)
    heads = (
        *columns("text", "group", "method"),
        *columns("percent", *published.BENCHMARKS, "average", published=True, digits=1),
        Column("gap", "points", published=True, digits=1),
        Column("average", "percent", recomputed=True, digits=2),
        Column("gap", "points", recomputed=True, digits=2),
    )
    notes = (
        "Four printed averages are not the mean of their row: MEDSAGE, LLaVA-Next-7B, LLaVA-Next-13B, Med-R1. "
        "Gaps to MEDSAGE change with its mean.",
        "The mean of InternVL3-8B is over four sets.",
    )
    return Table.of("stages_benchmarks", "Accuracy on five benchmarks (MEDSAGE, Table 1)", heads, rows, notes)
