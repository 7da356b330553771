"""Table `released`: stage credit and DPO, which MEDSAGE's authors released beyond the paper, beside SFT and GRPO."""

from typing import Any

from stepcot_jax.evaluation.comparison import DESCRIPTION, INTERVALS, MEANS
from stepcot_jax.evaluation.replies import BASELINE
from stepcot_jax.evaluation.statistics import mean_of_seeds
from stepcot_jax.pages.sheets import Column, Row, Table, columns
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.origin_table import take_objective
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_tables import (
    compare_cells,
    grpo_cell,
    list_figures,
    make_recipe,
    read_rates,
    sft_cell,
    tabulate_differences,
)

SFT, GRPO, CREDIT, DPO = "SFT", "+ GRPO, as released", "+ GRPO with stage credit", "+ DPO"
_SIGNALS = {
    GRPO: {"groups without a signal": "rollouts/equal_groups"},
    CREDIT: {"groups without a signal": "rollouts/equal_groups"},
    DPO: {"prompts with a pair": "rollouts/pairs"},
}


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    start = sft_cell(plan, seed, "SFT, released form", {"vqa.dialect": "lvkc_released", "vqa.with_thinking": True})
    released = take_objective("medsage_released", "group_size", "temperature")
    rewards = {key: value for key, value in released.items() if key.startswith("rewards.")}
    dpo: dict[str, Any] = {"job": "dpo", "policy.start": plan.cells.source(start), "sft.epochs": 0, **rewards}
    return {
        SFT: start,
        GRPO: grpo_cell(plan, start, "GRPO, as released", released),
        CREDIT: grpo_cell(plan, start, "GRPO with stage credit", {**released, "grpo.stage_credit": "released"}),
        DPO: Cell("DPO", vary(start.settings, dpo)),
    }


def make_released(plan: Plan) -> list[Table]:
    """Return the figures of each training, and their differences."""
    comparison, num_questions = compare_cells(plan, _cells)
    rows: list[Row] = []
    for name in (BASELINE, *_cells(plan, plan.seeds[0])):
        rows.append({"training": name, **list_figures(comparison, name, MEANS)})
        for heading in (signals := _SIGNALS.get(name, {})):
            of_seeds = [read_rates(plan, _cells(plan, seed)[name], signals, whole=True) for seed in plan.seeds]
            rows[-1][heading] = mean_of_seeds([of_seed[heading] for of_seed in of_seeds])
    dpo = plan.settings.dpo
    notes = (
        f"Test split, {num_questions} questions, seeds {list(plan.seeds)}; all from one fine-tuning in the form of "
        "MEDSAGE's public code (4c8030a), which is not the paper's method.",
        "GRPO: its objective, rewards, six replies and temperature (configs/medsage_released.py), at the rate and "
        f"number of updates of the config. DPO: the same rewards, rate {dpo.learning_rate:g}; its beta {dpo.beta:g} is "
        "ours.",
        INTERVALS,
        DESCRIPTION,
    )
    shares = dict.fromkeys(heading for own in _SIGNALS.values() for heading in own)
    heads = (Column("training"), *columns("percent", *(heading for heading, _ in MEANS), *shares))
    pairs = [(GRPO, SFT), (CREDIT, SFT), (DPO, SFT), (CREDIT, GRPO), (DPO, GRPO)]
    title = "What MEDSAGE's public code adds"
    return [
        Table.of("released", "Stage credit and DPO, as released", heads, rows, notes),
        tabulate_differences("released_differences", title, comparison, pairs, notes[0]),
    ]


RECIPES = {"released": make_recipe(_cells, make_released)}
