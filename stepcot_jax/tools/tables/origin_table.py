"""Tables `origin` and `released`: what published objectives and rewards of GRPO add to fine-tuning.

Origin: at home, and on phantoms of a second drawing style. Each seed has phantoms, splits and a fine-tuning of its own.
Ours is the GRPO of the config; the published one has GEMeX-RMCoT's objective and rewards. The rate and the temperature
of both are chosen alike, on validation. Released: stage credit and DPO, which MEDSAGE's authors released beyond the
paper, beside SFT and GRPO.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.evaluation.comparison import CORRECTED, DESCRIPTION, INTERVALS, JUDGED, MEANS, ReplyComparison, settle
from stepcot_jax.evaluation.replies import BASELINE, as_columns, score_all
from stepcot_jax.evaluation.statistics import mean_of_seeds, t_interval
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.pages.sheets import Column, Row, Table, columns
from stepcot_jax.reading.policy_reader import load_policy
from stepcot_jax.record import Record
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.loading_questions import load_vqa_dataset
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.kept_replies import KeptReplies
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_tables import (
    compare_cells,
    grpo_cell,
    list_figures,
    list_replies,
    make_recipe,
    make_scoring,
    read_all_replies,
    read_rates,
    read_test_records,
    read_test_replies,
    score_constant,
    sft_cell,
    tabulate_differences,
)
from stepcot_jax.tools.tables.robustness_table import answer_records, is_answered, write_answered

SFT, OURS, PUBLISHED = "SFT", "GRPO, ours", "GRPO, published"
HOME, AWAY = "home", "second style"
_OBJECTIVE = (
    *("ratio", "clip_low", "clip_high", "dual_clip", "beta", "kl", "clamp_log_ratio", "clamp_kl", "num_updates"),
    *("length_norm", "kl_norm", "std_ddof", "std_epsilon", "scale"),
)
_AWAY_SEED = 1000  # added to the seed of a set's phantoms, so that none of its patients is among the others
_TRIALS: dict[str, tuple[float, ...]] = {"learning_rate": (0.4, 1.0, 2.5), "temperature": (2 / 3, 1.0, 5 / 3)}
"""Factors of the config's values that are tried, one setting at a time."""
_SHORT = {"grpo.epochs": 2, "grpo.updates_per_epoch": 40}
NO_SIGNAL = "groups without a signal"
_RATES = {NO_SIGNAL: "rollouts/equal_groups"}


def take_objective(name: str, *further: str) -> dict[str, Any]:
    """Return the settings of GRPO's objective and of the rewards of a config, and further ones of GRPO."""
    config = load_config(name)
    objective = {f"grpo.{key}": config.grpo[key] for key in (*_OBJECTIVE, *further)}
    return objective | {f"rewards.{key}": value for key, value in config.rewards.items()}


def _start(plan: Plan, seed: int) -> Cell:
    """Return the fine-tuning of a seed on its own phantoms; their seed also shifts that of the splits."""
    if plan.settings.vqa.source != "phantom":
        raise BadInput(f"config.vqa.source: {plan.settings.vqa.source!r}; the table origin needs 'phantom'")
    return sft_cell(plan, seed, SFT, {"vqa.with_thinking": True, "phantom.seed": seed, "phantom.style": "first"})


def _changes(method: str) -> dict[str, Any]:
    return take_objective("gemex") if method == PUBLISHED else {}


def list_trials(plan: Plan, method: str) -> dict[str, dict[float, Cell]]:
    """Return the short runs of a method with the first seed, by setting and its value."""
    start = _start(plan, plan.seeds[0])
    trials: dict[str, dict[float, Cell]] = {}
    for key, factors in _TRIALS.items():
        values = [float(f"{factor * getattr(plan.settings.grpo, key):.6g}") for factor in factors]
        changes = {**_changes(method), **_SHORT}
        trials[key] = {
            value: grpo_cell(plan, start, f"{method}, {key} {value:g}", {**changes, f"grpo.{key}": value})
            for value in values
        }
    return trials


class _Best(msgspec.Struct):
    validation_score: float


class _Report(msgspec.Struct):
    best: dict[str, _Best]


def choose_settings(plan: Plan, method: str) -> dict[str, float]:
    """Return the rate and the temperature of the trials with the highest validation score."""

    def score(cell: Cell) -> float:
        path = plan.cells.folder(cell) / "report.json"
        best = read_json(path, _Report, accepted="expected the report of a finished run of GRPO").best
        return best["grpo"].validation_score if "grpo" in best else -math.inf

    trials = list_trials(plan, method)
    return {key: max(cells, key=lambda value: score(cells[value])) for key, cells in trials.items()}


def _first_cells(plan: Plan) -> list[Cell]:
    """Return what must be finished before rate and temperature can be chosen."""
    of_methods = [list_trials(plan, method).values() for method in (OURS, PUBLISHED)]
    return [_start(plan, plan.seeds[0]), *(cell for trials in of_methods for own in trials for cell in own.values())]


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    start = _start(plan, seed)
    return {SFT: start} | {
        method: grpo_cell(
            plan,
            start,
            method,
            _changes(method) | {f"grpo.{key}": value for key, value in choose_settings(plan, method).items()},
        )
        for method in (OURS, PUBLISHED)
    }


@functools.lru_cache(1)
def _load_away(settings: Settings) -> VqaDataset:
    away = {"phantom.style": "second", "phantom.seed": settings.phantom.seed + _AWAY_SEED}
    return load_vqa_dataset(vary(settings, away), splits=("test",))


def answer_away(plan: Plan, cell: Cell, seed: int) -> tuple[Sequence[Record], Mapping[str, str]]:
    """Return questions about phantoms of the second style and a cell's replies to them, kept in its folder."""
    folder, dataset = plan.cells.folder(cell), _load_away(_start(plan, seed).settings)
    path, records = folder / "second_style" / "replies.jsonl", dataset.records
    if not is_answered(path, records):
        write_answered(path, records, answer_records(load_policy(folder), records, dataset))
    return records, read_all_replies(path, records, name=cell.name)


def _compare(plan: Plan, where: str) -> ReplyComparison:
    splits = []
    for seed in plan.seeds:
        cells = _cells(plan, seed)
        scoring, split = make_scoring(cells[SFT].settings), {}
        for name, cell in cells.items():
            if where == HOME:
                records: Sequence[Record] = read_test_records(plan, cell)
                replies = read_test_replies(plan, cell, records)
            else:
                records, replies = answer_away(plan, cell, seed)
            split[name] = as_columns(records, score_all(records, replies, scoring))
        baseline = score_constant(cells[SFT].settings, records)
        splits.append({BASELINE: as_columns(records, baseline), **split})
    return ReplyComparison(splits, plan.num_resamples)


def make_origin(plan: Plan) -> list[Table]:
    """Return the figures at home and on the second style, and what GRPO adds at both."""
    compared = {where: _compare(plan, where) for where in (HOME, AWAY)}
    silent = {
        method: mean_of_seeds(
            [read_rates(plan, _cells(plan, seed)[method], _RATES, whole=True)[NO_SIGNAL] for seed in plan.seeds]
        )
        for method in (OURS, PUBLISHED)
    }
    rows: list[Row] = [
        {"phantoms": where, "training": name, **list_figures(own, name, MEANS), NO_SIGNAL: silent.get(name)}
        for where, own in compared.items()
        for name in (BASELINE, SFT, OURS, PUBLISHED)
    ]
    chosen = {method: choose_settings(plan, method) for method in (OURS, PUBLISHED)}
    notes = (
        f"Seeds {list(plan.seeds)}, each with its own phantoms, splits and fine-tuning; the test questions of each "
        f"set, and as many phantoms of a second drawing style, which no training sees (seeds + {_AWAY_SEED}).",
        "Ours: the objective and rewards of the config. Published: those of GEMeX-RMCoT (configs/gemex.py).",
        *(
            f"{method}: "
            + ", ".join(f"{key} {value:g}" for key, value in values.items())
            + f", of {len(_TRIALS['learning_rate'])} values each, by the validation score of 80 updates with seed "
            f"{plan.seeds[0]}."
            for method, values in chosen.items()
        ),
        f"{NO_SIGNAL}: share of the prompts, over all updates, whose replies all earned the same.",
        INTERVALS,
        DESCRIPTION,
    )
    heads = (*columns("text", "phantoms", "training"), *columns("percent", *(name for name, _ in MEANS), NO_SIGNAL))
    return [
        Table.of("origin", "GRPO at home and on another origin", heads, rows, notes),
        _tabulate_gains(plan, compared, notes[0]),
    ]


def _tabulate_gains(plan: Plan, compared: Mapping[str, ReplyComparison], note: str) -> Table:
    rows: list[dict[str, Any]] = []
    for where, comparison in compared.items():
        for method, less in ((SFT, BASELINE), (OURS, SFT), (PUBLISHED, SFT)):
            about = {"phantoms": where, "training": method, "less": less}
            alone = [ReplyComparison([split], plan.num_resamples) for split in comparison.splits]
            by_seed = [{name: own.difference(method, less, *key) for name, key in MEANS} for own in alone]
            rows.append(
                {**about, "seed": "all"}
                | {name: comparison.difference(method, less, *key) for name, key in MEANS}
                | {f"{name}: over the sets": t_interval([own[name].value for own in by_seed]) for name, _ in JUDGED}
                | {f"{name}: verdict": comparison.evidence(method, less, *key) for name, key in JUDGED}
            )
            rows += [{**about, "seed": str(seed), **own} for seed, own in zip(plan.seeds, by_seed, strict=True)]
    heads = (
        *columns("text", "phantoms", "training", "less", "seed"),
        *columns("points", *(name for name, _ in MEANS), *(f"{name}: over the sets" for name, _ in JUDGED)),
        *columns("text", *(f"{name}: verdict" for name, _ in JUDGED)),
    )
    over = "Over the sets: the mean of one difference a seed with its t interval."
    title = "What fine-tuning and GRPO add"
    return Table.of("origin_gains", title, heads, settle(rows), (note, INTERVALS, over, CORRECTED))


def _list_replies(plan: Plan) -> Iterator[KeptReplies]:
    yield from list_replies(plan, _cells)
    for seed in plan.seeds:
        for cell in _cells(plan, seed).values():
            yield KeptReplies(seed, cell.name, AWAY, cell.settings, *answer_away(plan, cell, seed))


# Table `released`: stage credit and DPO of MEDSAGE's public code, beside SFT and GRPO.

GRPO, CREDIT, DPO = "+ GRPO, as released", "+ GRPO with stage credit", "+ DPO"
_SIGNALS = {GRPO: _RATES, CREDIT: _RATES, DPO: {"prompts with a pair": "rollouts/pairs"}}


def _released_cells(plan: Plan, seed: int) -> dict[str, Cell]:
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
    comparison, num_questions = compare_cells(plan, _released_cells)
    rows: list[Row] = []
    for name in (BASELINE, *_released_cells(plan, plan.seeds[0])):
        rows.append({"training": name, **list_figures(comparison, name, MEANS)})
        for heading in (signals := _SIGNALS.get(name, {})):
            of_seeds = [read_rates(plan, _released_cells(plan, seed)[name], signals, whole=True) for seed in plan.seeds]
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
    pairs = [(SFT, BASELINE), (GRPO, SFT), (CREDIT, SFT), (DPO, SFT), (CREDIT, GRPO), (DPO, GRPO)]
    title = "What fine-tuning and MEDSAGE's public code add"
    return [
        Table.of("released", "Stage credit and DPO, as released", heads, rows, notes),
        tabulate_differences("released_differences", title, comparison, pairs, notes[0]),
    ]


RECIPES = {
    "origin": make_recipe(_cells, make_origin, first=_first_cells, replies=_list_replies),
    "released": make_recipe(_released_cells, make_released),
}
