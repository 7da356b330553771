"""Table `curriculum`: schedules of MedCLM's easy, medium and hard views, measured on bare pictures."""

from typing import Any

from stepcot_jax.evaluation.comparison import DESCRIPTION, INTERVALS, MEANS
from stepcot_jax.evaluation.replies import BASELINE
from stepcot_jax.pages.sheets import Column, Entry, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_cells import compare_policies, sft_cell, tabulate_differences

_MEDCLM: dict[str, Any] = {"vqa.dialect": "medclm", "vqa.with_thinking": True, "sft.pack_length": 0}


def _only(easy: float, medium: float, hard: float) -> dict[str, Any]:
    return {"curriculum.schedule": "mixed", "curriculum.shares": (easy, medium, hard)}


CONTROL = "mixed"
SCHEDULES: dict[str, dict[str, Any]] = {
    CONTROL: {"curriculum.schedule": "mixed"},
    "epochs": {"curriculum.schedule": "epochs"},
    "adaptive": {"curriculum.schedule": "adaptive"},
    "easy only": _only(1.0, 0.0, 0.0),
    "medium only": _only(0.0, 1.0, 0.0),
    "hard only": _only(0.0, 0.0, 1.0),
}
"""Schedules with their changes of the settings; the first, constant shares, is the control without a curriculum."""


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    return {
        name: sft_cell(plan, seed, f"curriculum: {name}", {**_MEDCLM, **changes}) for name, changes in SCHEDULES.items()
    }


def list_cells(plan: Plan) -> list[Cell]:
    """Return a fine-tuning with each schedule for each seed."""
    return [cell for seed in plan.seeds for cell in _cells(plan, seed).values()]


def make_tables(plan: Plan) -> list[Table]:
    """Return the figures of each schedule, and differences from the control."""
    comparison, num_questions = compare_policies(plan, lambda seed: _cells(plan, seed))
    shares = ", ".join(f"{share:.0%}" for share in plan.settings.curriculum.shares)
    notes = (
        f"Fine-tuning in the dialect of MedCLM; test split, {num_questions} questions about bare pictures, seeds "
        f"{list(plan.seeds)}.",
        INTERVALS,
        DESCRIPTION,
        f"Easy: the boxes are drawn in the picture; medium: the bare picture; hard: another case. Mixed: {shares} of "
        "the rows in every epoch, a control without a curriculum. Epochs: these shares of the epochs, one stage after "
        "the other. Adaptive: the formulas of MedCLM's public code. Only: every row the same stage.",
        "No published figures: our copy of MedCLM's text lacks its tables.",
    )
    rows: list[tuple[Entry, ...]] = [
        (name, *(comparison.figure(name, *key) for _, key in MEANS)) for name in (BASELINE, *SCHEDULES)
    ]
    heads = (Column("schedule"), *columns("percent", *(heading for heading, _ in MEANS)))
    pairs = [(name, CONTROL) for name in SCHEDULES if name != CONTROL]
    return [
        Table("curriculum", "Schedules of easy, medium and hard views", heads, tuple(rows), notes),
        tabulate_differences("curriculum_differences", f"Schedules less {CONTROL!r}", comparison, pairs, notes[0]),
    ]
