"""Table `self_check`: GRPO with and without MEDSAGE's self-check by its weight, beside the published figures."""

import math
import statistics

from stepcot_jax.evaluation import published
from stepcot_jax.evaluation.comparison import INTERVALS, ReplyComparison
from stepcot_jax.evaluation.replies import BASELINE, HEADED_FIGURES
from stepcot_jax.evaluation.statistics import mean_of_seeds
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Column, Row, Table, columns
from stepcot_jax.reading.finished import read_metrics
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_cells import compare_policies, grpo_cell, sft_cell, tabulate_differences
from stepcot_jax.training.log import METRICS_FILE

SFT, GRPO, SELF = published.PARTS
"""Fine-tuning, GRPO after it without self-check, and with one of weight 0.20, as MEDSAGE's Table 5 names them."""

ALPHAS: dict[str, float] = {f"alpha {alpha:.2f}": alpha for alpha in published.SELF_CHECK_WEIGHT}
RATES = {"self-check rate": "rollouts/self_check_rate", "success rate": "rollouts/self_check_success"}
"""Numbers of a GRPO update in the log: rollouts that were checked, and those of them whose second attempt is right."""

SHOWN = HEADED_FIGURES[:4]
"""Mean A, V, V on findings and V on regions."""

_NOTE = "Alpha 0.20 should be the full model of the parts' table and alpha 0 its SFT + RL; neither agrees."


def lvkc_sft(plan: Plan, seed: int) -> Cell:
    """Return fine-tuning in MEDSAGE's dialect; it shows some records with a wrong attempt and a check."""
    changes = {"vqa.dialect": "lvkc", "vqa.with_thinking": True, "self_check.enabled": True}
    return sft_cell(plan, seed, "SFT on stages", changes)


def lvkc_grpo(plan: Plan, seed: int, alpha: float | None = None) -> Cell:
    """Return GRPO from `lvkc_sft`, with a self-check of weight alpha; None for none."""
    if alpha is None:
        return grpo_cell(plan, lvkc_sft(plan, seed), "GRPO on stages", {"self_check.enabled": False})
    name = f"GRPO with self-check, alpha {alpha:.2f}"
    return grpo_cell(plan, lvkc_sft(plan, seed), name, {"self_check.alpha": alpha})


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    cells = {SFT: lvkc_sft(plan, seed), GRPO: lvkc_grpo(plan, seed)}
    return cells | {name: lvkc_grpo(plan, seed, alpha) for name, alpha in ALPHAS.items()}


def list_cells(plan: Plan) -> list[Cell]:
    """Return fine-tuning, GRPO without self-check, and with one of each weight, for each seed."""
    return [cell for seed in plan.seeds for cell in _cells(plan, seed).values()]


def make_tables(plan: Plan | None) -> list[Table]:
    """Return MEDSAGE's Tables 4 and 5 with the recomputed averages; with a plan, our figures beside them."""
    weights = {name: published.SELF_CHECK_WEIGHT[alpha] for name, alpha in ALPHAS.items()}
    titles = ("Weight of the self-check (MEDSAGE, Table 4)", "Parts of the method (MEDSAGE, Table 5)")
    if plan is None:
        return [
            tabulate_three_sets("self_check", titles[0], weights, _NOTE),
            tabulate_three_sets("self_check_parts", titles[1], published.PARTS, _NOTE),
        ]
    comparison, num_questions = compare_policies(plan, lambda seed: _cells(plan, seed))
    heads = (
        Column("method"),
        *columns("percent", *(heading for heading, _ in SHOWN), *RATES),
        *_THREE_COLUMNS,
    )
    measured = {name: _measure(plan, comparison, name) for name in (BASELINE, SFT, GRPO, *ALPHAS)}
    of_weights = [{**measured[name], **_three_row(name, weights.get(name))} for name in (BASELINE, GRPO, *ALPHAS)]
    parts = {BASELINE: BASELINE, SFT: SFT, GRPO: GRPO, SELF: "alpha 0.20"}
    of_parts = [{**measured[row], **_three_row(name, published.PARTS.get(name))} for name, row in parts.items()]
    notes = (
        f"GRPO in the dialect of MEDSAGE from one fine-tuning; test split, {num_questions} questions, seeds "
        f"{list(plan.seeds)}. That one shows a share {plan.settings.self_check.sft_share} of its records with a wrong "
        "attempt and a check, for all rows; test questions are answered once, without a check.",
        INTERVALS,
        "Self-check rate: first attempts in training that were wrong and checked; success rate: checks whose second "
        "attempt is right. Means over the updates of the last epoch.",
        "Published: accuracy on SLAKE, VQA-RAD and PathVQA, other data than ours. " + _NOTE,
    )
    pairs = [(name, GRPO) for name in ALPHAS]
    title = "GRPO with self-check less GRPO without"
    return [
        Table.of("self_check", "Weight of the self-check, beside MEDSAGE's Table 4", heads, of_weights, notes),
        Table.of("self_check_parts", "Parts of the method, beside MEDSAGE's Table 5", heads, of_parts, notes),
        tabulate_differences("self_check_differences", title, comparison, pairs, notes[0]),
    ]


def _measure(plan: Plan, comparison: ReplyComparison, name: str) -> Row:
    row: Row = {heading: comparison.figure(name, *key) for heading, key in SHOWN}
    if name in ALPHAS:
        of_seeds = [read_rates(plan, _cells(plan, seed)[name]) for seed in plan.seeds]
        row |= {rate: mean_of_seeds([of_seed[rate] for of_seed in of_seeds]) for rate in RATES}
    return row


def read_rates(plan: Plan, cell: Cell) -> dict[str, float]:
    """Return the rates of `RATES`, means over the logged updates of the last epoch of GRPO; NaN without a check."""
    path = plan.cells.folder(cell) / METRICS_FILE
    entries = [entry for entry in read_metrics(path) if entry["kind"] == "train"]
    last = [entry for entry in entries if entry["epoch"] == entries[-1]["epoch"]]
    rates = {}
    for name, key in RATES.items():
        if not any(key in entry for entry in last):
            raise BadInput(f"{path}: {key!r} is not logged in the last epoch; expected a run with a self-check")
        values = [entry[key] for entry in last if isinstance(entry.get(key), int | float)]
        rates[name] = statistics.fmean(values) if values else math.nan
    return rates


_THREE_COLUMNS = (
    *columns("percent", *published.THREE_SETS, "overall", published=True, digits=1),
    Column("overall", "percent", recomputed=True, digits=2),
)


def tabulate_three_sets(name: str, title: str, figures: dict[str, tuple[dict[str, float], float]], note: str) -> Table:
    """Return a table of published accuracies on SLAKE, VQA-RAD and PathVQA."""
    rows = [_three_row(method, accuracies) for method, accuracies in figures.items()]
    return Table.of(name, title, (Column("method"), *_THREE_COLUMNS), rows, (note,))


def _three_row(method: str, accuracies: tuple[dict[str, float], float] | None) -> Row:
    row: Row = {"method": method}
    if accuracies is not None:
        by_set, overall = accuracies
        row |= {f"published: {name}": share for name, share in by_set.items()} | {"published: overall": overall}
        row["recomputed: overall"] = published.round_half_up(published.recompute_mean(by_set), 4)
    return row
