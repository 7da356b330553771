"""The teacher before and after GRPO: diagnosis, steps and contradictions, with true and with shuffled rewards."""

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.comparison import INTERVALS
from stepcot_jax.evaluation.consistency import Rules, inconsistent, make_rules, read_pairs
from stepcot_jax.evaluation.predictions import logits_by_step
from stepcot_jax.host.files import read_json
from stepcot_jax.pages.sheets import Column, Entry, Kind, Table
from stepcot_jax.run.stored_reading import PAIRS_FILE
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.following import share_figures
from stepcot_jax.tools.tables.plan import Plan

REWARDS = ("true", "shuffled")

NETWORKS = ("start", "teacher")
"""Before and after."""


def list_cells(plan: Plan) -> list[Cell]:
    """Return a run with true and one with shuffled rewards for each seed."""
    return [_cell(plan, rewards, seed) for seed in plan.seeds for rewards in REWARDS]


def _cell(plan: Plan, rewards: str, seed: int) -> Cell:
    changes = {"job": "chain_grpo", "grpo.shuffle_rewards": rewards == "shuffled"}
    return Cell(f"GRPO on chains, {rewards} rewards", vary(plan.main(seed).settings, changes))


def make_tables(plan: Plan) -> list[Table]:
    """Make the table of before and after, with paired differences."""
    chain = plan.cells.chain(_cell(plan, "true", plan.seeds[0]))
    rows: list[tuple[Entry, ...]] = []
    notes = [
        f"Test split, seeds {list(plan.seeds)}; a network's own most probable answers.",
        INTERVALS,
        "Before: the best epoch on labels; after: the best epoch of all by the mean reward on validation, the start "
        "among them, so that no gain there means no change here.",
        "A contradiction is a pair of answers that the rules of the training chains forbid.",
        "Shuffled: rewards are exchanged among all chains of a batch, a control that must not learn.",
    ]
    for rewards in REWARDS:
        cells = [_cell(plan, rewards, seed) for seed in plan.seeds]
        measured = [_measure(plan, cell, chain) for cell in cells]
        patients = plan.cells.predictions(cells[0]).facts["patient_id"]
        rows.append((rewards, *share_figures(measured, patients, plan.num_resamples)))
        best = ", ".join(_best(plan.cells.folder(cell)) for cell in cells)
        notes.append(f"Updates of the best weights with {rewards} rewards, before and after: {best}.")
    figures = (f"accuracy of {chain.steps[-1].name}", "mean step accuracy", "chains without a contradiction")
    kinds: dict[str, Kind] = {"before": "percent", "after": "percent", "difference": "points"}
    columns = tuple(Column(f"{figure}, {when}", kind) for figure in figures for when, kind in kinds.items())
    title = "The teacher refined by rewards of its chains"
    return [Table("chain_grpo", title, (Column("rewards"), *columns), tuple(rows), tuple(notes))]


def _measure(plan: Plan, cell: Cell, chain: Chain) -> npt.NDArray[np.float64]:
    """Return figures [figure, case]: before, after, and their difference; NaN where a case has no such figure."""
    split = plan.cells.predictions(cell)
    rules = make_rules(chain, counts=read_pairs(plan.cells.folder(cell) / PAIRS_FILE, chain))
    scores = []
    for name in NETWORKS:
        of_steps = logits_by_step(split.predictions.logits[name], chain=chain, model=name)
        answers = np.stack([logits.argmax(axis=1) for logits in of_steps], axis=1)
        scores.append(score_cases(answers, split.predictions.labels, rules))
    return np.stack([row for one, other in zip(*scores, strict=True) for row in (one, other, other - one)])


def score_cases(
    answers: npt.NDArray[np.integer], labels: npt.NDArray[np.integer], rules: Rules
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each case: last step right, share of annotated steps right, no contradiction; NaN if not annotated."""
    known, right = labels >= 0, answers == labels
    last = np.where(known[:, -1], right[:, -1].astype(float), np.nan)
    number = known.sum(axis=1)
    steps = np.where(number > 0, (right & known).sum(axis=1) / np.maximum(number, 1), np.nan)
    return last, steps, (~inconsistent(answers, rules)).astype(float)


def _best(folder: pathlib.Path) -> str:
    """Return the updates of the best weights before and after, such as "390 and 715"."""
    report = read_json(folder / "report.json", dict[str, Any], accepted="expected the report.json of a run")
    return " and ".join(str(report["best"][name]["step"]) for name in NETWORKS)
