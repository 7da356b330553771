"""Tables of policies, `vqa`, `curriculum`, `self_check` and `stages`, beside the figures of GEMeX-RMCoT and MEDSAGE."""

import dataclasses
import functools
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.evaluation import published
from stepcot_jax.evaluation.comparison import CORRECTED, DESCRIPTION, INTERVALS, JUDGED, MEANS, ReplyComparison, settle
from stepcot_jax.evaluation.replies import (
    BASELINE,
    CHECKED_STAGES,
    HEADED_FIGURES,
    Key,
    ReplyScore,
    ScoringSettings,
    as_columns,
    choose_dialect,
    score_all,
)
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.evaluation.stage_claims import stage_figures
from stepcot_jax.evaluation.statistics import bootstrap, mean_of_seeds, summarise
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Column, Row, Table, columns, heads, mark_published
from stepcot_jax.reading.finished import read_metrics
from stepcot_jax.reading.scored_file import score_file
from stepcot_jax.record import STAGE_NAMES, Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.stored import TEST_RECORDS
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import Plan, Recipe
from stepcot_jax.training.log import METRICS_FILE

# Cells that train policies, and their scored replies to the test questions.

_PLAIN: dict[str, Any] = {"policy.start": "", "curriculum.schedule": "none", "self_check.enabled": False}
_PLAIN |= {"grpo.shuffle_rewards": False, "grpo.stage_credit": "none"}
"""Settings of every cell whose row does not change them; they override the config."""


def sft_cell(plan: Plan, seed: int, name: str, changes: Mapping[str, Any]) -> Cell:
    """Return a run of fine-tuning alone, from random weights."""
    return Cell(name, vary(plan.settings, {**_PLAIN, "job": "sft", "seed": seed, **changes}))


def grpo_cell(plan: Plan, start: Cell, name: str, changes: Mapping[str, Any]) -> Cell:
    """Return a run of GRPO alone, from the best weights of a finished cell, with its seed and vocabulary."""
    job = {"job": "grpo", "policy.start": plan.cells.source(start), "sft.epochs": 0}
    return Cell(name, vary(start.settings, {**job, **changes}))


def make_scoring(settings: Settings) -> ScoringSettings:
    """Return the settings with which a run scores its replies."""
    return ScoringSettings(dialect=settings.vqa.dialect, with_thinking=settings.vqa.with_thinking)


def read_test_records(plan: Plan, cell: Cell) -> list[Record]:
    """Return the test records of a finished cell; boxes are in pixels of the picture that the policy sees."""
    return list(read_vqa_records(plan.cells.folder(cell) / TEST_RECORDS).records)


def read_all_replies(path: pathlib.Path, records: Sequence[Record], *, name: str) -> Mapping[str, str]:
    """Return the replies of a file by id; one to each record, and no others."""
    ids = {record.id: None for record in records}.keys()
    return read_replies(path, name=name, chosen=ids, known=ids, missing="stop").replies


def score_cell(plan: Plan, cell: Cell, records: Sequence[Record]) -> list[ReplyScore]:
    """Score the replies of a finished cell with its best weights."""
    folder = plan.cells.folder(cell)
    if read_test_records(plan, cell) != list(records):
        raise BadInput(f"cell {cell.name!r} in {folder}: {TEST_RECORDS} has other records than the cells beside it")
    replies = read_all_replies(folder / cell.settings.trains.replies, records, name=cell.name)
    return score_all(records, replies, make_scoring(cell.settings))


def score_constant(settings: Settings, records: Sequence[Record]) -> list[ReplyScore]:
    """Score the majority answer with the constant box of the training split."""
    scores, remark = score_baseline(load_training_records(settings), records, make_scoring(settings))
    if scores is None:
        raise BadInput(remark)
    return scores


@functools.lru_cache(1)
def load_training_records(settings: Settings) -> tuple[Record, ...]:
    """Return the records of the training split; they do not depend on the run's seed."""
    return load_vqa_dataset(settings, splits=("train",)).records


ZERO_SHOT, NOT_HAD = "zero-shot", "zero-shot (not had here)"
"""The row of a model without training, with its replies and without."""


def score_zero_shot(table: str, plan: Plan, cell: Cell) -> tuple[list[ReplyScore] | None, str]:
    """Score the replies of a model without training to the test questions, if they are given; with a note."""
    if table not in plan.zero_shot:
        flag = f"--zero_shot={table}=REPLIES of `stepcot answer`"
        return None, f"zero-shot: {flag} about the test questions has this row."
    records, scoring = read_test_records(plan, cell), make_scoring(cell.settings)
    ids = {record.id: None for record in records}.keys()
    file = read_replies(plan.zero_shot[table], name=ZERO_SHOT, chosen=ids, known=ids)
    if scoring.dialect not in CHECKED_STAGES:  # such a model may know no dialect
        scoring = dataclasses.replace(scoring, dialect=choose_dialect(file.replies.values(), scoring))
    absent = f", {len(ids) - len(file.replies)} missing replies count as wrong" if len(file.replies) < len(ids) else ""
    return score_file(records, file, scoring), f"{ZERO_SHOT}: {file.path.name}, dialect {scoring.dialect}{absent}."


CellsOf = Callable[[Plan, int], Mapping[str, Cell]]
"""From a plan and a seed to the cells by the name of their row."""


def compare_cells(
    plan: Plan, cells_of: CellsOf, *, zero_shot: Sequence[ReplyScore] | None = None
) -> tuple[ReplyComparison, str]:
    """Compare the cells of each seed by name, after the constant answer; return what they answered too."""
    first = next(iter(cells_of(plan, plan.seeds[0]).values()))
    records = read_test_records(plan, first)
    same = {BASELINE: as_columns(records, score_constant(first.settings, records))}
    same |= {} if zero_shot is None else {ZERO_SHOT: as_columns(records, zero_shot)}
    splits = []
    for seed in plan.seeds:
        scored = {name: score_cell(plan, cell, records) for name, cell in cells_of(plan, seed).items()}
        splits.append(same | {name: as_columns(records, scores) for name, scores in scored.items()})
    return ReplyComparison(splits, plan.num_resamples), f"{len(records)} questions"


def list_figures(comparison: ReplyComparison, name: str, figures: Sequence[tuple[str, Key]]) -> Row:
    """Return a row's figures by their headings."""
    return {heading: comparison.figure(name, *key) for heading, key in figures}


def tabulate_differences(
    name: str, title: str, comparison: ReplyComparison, pairs: Sequence[tuple[str, str]], note: str
) -> Table:
    """Return a table of paired differences, with verdicts on mean A, V and V on findings."""
    rows: list[dict[str, Any]] = [
        {"training": first, "less": second}
        | {heading: comparison.difference(first, second, *key) for heading, key in MEANS}
        | {f"{heading}: verdict": comparison.evidence(first, second, *key) for heading, key in JUDGED}
        for first, second in pairs
    ]
    verdicts = (f"{heading}: verdict" for heading, _ in JUDGED)
    head = heads("training", "less", *(f"+{heading}" for heading, _ in MEANS), *verdicts)
    return Table.of(name, title, head, settle(rows), (note, INTERVALS, CORRECTED))


def percents(figures: Sequence[tuple[str, Key]]) -> tuple[Column, ...]:
    """Return the columns of `list_figures`."""
    return columns("percent", *(heading for heading, _ in figures))


def recompute(row: Mapping[str, float]) -> float:
    """Return the mean of a printed row, rounded as the papers print it."""
    return published.round_half_up(published.recompute_mean(row), 4)


# Table `vqa`: answers and grounding by fine-tuning and rewards, beside GEMeX-RMCoT's rows.

PLAIN, THINKING = "SFT without thinking", "SFT with thinking"
BOTH, SHUFFLED = "+ GRPO, both rewards", "+ GRPO, both rewards shuffled"

_SFT: dict[str, dict[str, Any]] = {PLAIN: {"vqa.with_thinking": False}, THINKING: {"vqa.with_thinking": True}}
_GRPO: dict[str, dict[str, Any]] = {
    "+ GRPO, answer reward alone": {"rewards.functions": ("answer=1", "grounding=0", "well_formed=0")},
    "+ GRPO, grounding reward alone": {"rewards.functions": ("answer=0", "grounding=1", "well_formed=0")},
    BOTH: {},
    SHUFFLED: {"grpo.shuffle_rewards": True},
}
"""Settings of the runs of GRPO, which start from the policy that was fine-tuned with thinking."""

COUNTERPARTS = {ZERO_SHOT: ZERO_SHOT, NOT_HAD: ZERO_SHOT, PLAIN: published.PLAIN, THINKING: published.THINKING}
COUNTERPARTS |= {BOTH: published.THINKING_RFT}
"""Published row of each of ours that has one."""

_PAIRS = ((THINKING, PLAIN), (THINKING, BASELINE), *((name, THINKING) for name in _GRPO), (BOTH, SHUFFLED))
_A_NOTE = "A-scores of open questions are ratings by a judge relative to the reference, no shares of right answers."
_IN_PAPER = Column("training in the paper", published=True)
_SCORES = [(f"{kind} {score}", kind, score) for kind in published.QUESTION_KINDS for score in ("A", "V")]
_VQA_COLUMNS = (
    *columns("percent", *(heading for heading, _, _ in _SCORES), "A average", published=True, digits=2),
    Column("A average", "percent", recomputed=True, digits=2),
)


def sft_of(plan: Plan, seed: int, name: str) -> Cell:
    """Return the fine-tuning with or without thinking."""
    return sft_cell(plan, seed, name, _SFT[name])


def _vqa_cells(plan: Plan, seed: int) -> dict[str, Cell]:
    """Return the cell of each row; the policies of a seed that GRPO changes all start from one fine-tuning."""
    cells = {name: sft_of(plan, seed, name) for name in _SFT}
    return cells | {name: grpo_cell(plan, cells[THINKING], name, changes) for name, changes in _GRPO.items()}


def make_vqa(plan: Plan) -> list[Table]:
    """Return our rows beside GEMeX-RMCoT's Table 4, their differences, and its counts of questions (Table 2)."""
    zero_shot, note_zero_shot = score_zero_shot("vqa", plan, sft_of(plan, plan.seeds[0], THINKING))
    comparison, asked = compare_cells(plan, _vqa_cells, zero_shot=zero_shot)
    known, rows, (constant, *others) = _published_vqa(), list[Row](), comparison.splits[0]
    for name in (constant, *([] if zero_shot else [NOT_HAD]), *others):
        counterpart = COUNTERPARTS.get(name)
        row: Row = {"training": name, _IN_PAPER.marked_name: counterpart, **known.pop(counterpart, {})}
        rows.append(row | ({} if name == NOT_HAD else list_figures(comparison, name, HEADED_FIGURES)))
    rows += [{_IN_PAPER.marked_name: name, **row} for name, row in known.items()]
    notes = (
        f"Test split, {asked}, seeds {list(plan.seeds)}. GRPO starts from SFT with thinking.",
        INTERVALS,
        DESCRIPTION,
        f"{BASELINE}: of the training split, ignoring the picture; it writes no reply whose form could be read.",
        note_zero_shot,
        "Published: Qwen2.5-VL-7B on the GEMeX test set (GEMeX-RMCoT, Table 4), other data than ours. " + _A_NOTE,
    )
    head = (Column("training"), *percents(HEADED_FIGURES), _IN_PAPER, *_VQA_COLUMNS)
    note = f"Test split, seeds {list(plan.seeds)}; in the same resamples of patients."
    return [
        Table.of("vqa", "Answers and grounding of policies, beside GEMeX-RMCoT", head, rows, notes),
        tabulate_differences("vqa_differences", "What thinking and rewards change", comparison, _PAIRS, note),
        _tabulate_questions(),
    ]


def _published_vqa() -> dict[str | None, Row]:
    rows: dict[str | None, Row] = {}
    for name, answers in published.A_SCORES.items():
        of_score = {"A": answers, "V": published.V_SCORES[name]}
        printed = {heading: of_score[score][kind] for heading, kind, score in _SCORES}
        printed["A average"] = published.A_AVERAGE[name]
        rows[name] = mark_published(printed, **{"A average": recompute(answers)})
    return rows


def make_published_vqa() -> list[Table]:
    """Return GEMeX-RMCoT's Tables 4 and 2."""
    rows: list[Row] = [{"training": name, **row} for name, row in _published_vqa().items()]
    title = "Answers (A-score) and grounding (V-score) on the GEMeX test set (GEMeX-RMCoT, Table 4)"
    notes = ("Qwen2.5-VL-7B. The average is the unweighted mean of the four kinds.", _A_NOTE)
    return [Table.of("vqa", title, (Column("training"), *_VQA_COLUMNS), rows, notes), _tabulate_questions()]


def _tabulate_questions() -> Table:
    of_paper = columns("number", *published.QUESTION_KINDS, published=True)
    head = (Column("data"), *of_paper, Column("all", "number", recomputed=True))
    rows: list[Row] = [
        {"data": name, **mark_published(counts, all=sum(counts.values()))}
        for name, counts in published.NUM_QUESTIONS.items()
    ]
    return Table.of("vqa_questions", "Questions by kind (GEMeX-RMCoT, Table 2 and test set)", head, rows)


# Table `curriculum`: schedules of MedCLM's easy, medium and hard views, measured on bare pictures.

_MEDCLM: dict[str, Any] = {"vqa.dialect": "medclm", "vqa.with_thinking": True, "sft.pack_length": 0}

CONTROL = "mixed"
SCHEDULES: dict[str, dict[str, Any]] = {
    CONTROL: {"curriculum.schedule": "mixed"},
    "epochs": {"curriculum.schedule": "epochs"},
    "adaptive": {"curriculum.schedule": "adaptive"},
    "easy only": {"curriculum.schedule": "mixed", "curriculum.shares": (1.0, 0.0, 0.0)},
    "medium only": {"curriculum.schedule": "mixed", "curriculum.shares": (0.0, 1.0, 0.0)},
    "hard only": {"curriculum.schedule": "mixed", "curriculum.shares": (0.0, 0.0, 1.0)},
}
"""Schedules with their changes of the settings; the first, constant shares, is the control without a curriculum."""


def _curriculum_cells(plan: Plan, seed: int) -> dict[str, Cell]:
    return {
        name: sft_cell(plan, seed, f"curriculum: {name}", {**_MEDCLM, **changes}) for name, changes in SCHEDULES.items()
    }


def make_curriculum(plan: Plan) -> list[Table]:
    """Return the figures of each schedule, and differences from the control."""
    comparison, asked = compare_cells(plan, _curriculum_cells)
    shares = ", ".join(f"{share:.0%}" for share in plan.settings.curriculum.shares)
    notes = (
        f"Fine-tuning in the dialect of MedCLM; test split, {asked} about bare pictures, seeds {list(plan.seeds)}.",
        INTERVALS,
        DESCRIPTION,
        f"Easy: the boxes are drawn in the picture; medium: the bare picture; hard: another case. Mixed: {shares} of "
        "the rows in every epoch, a control without a curriculum. Epochs: these shares of the epochs, one stage after "
        "the other. Adaptive: the formulas of MedCLM's public code. Only: every row the same stage.",
        "No published figures: our copy of MedCLM's text lacks its tables.",
    )
    rows: list[Row] = [{"schedule": name, **list_figures(comparison, name, MEANS)} for name in (BASELINE, *SCHEDULES)]
    pairs = [(name, CONTROL) for name in SCHEDULES if name != CONTROL]
    head = (Column("schedule"), *percents(MEANS))
    return [
        Table.of("curriculum", "Schedules of easy, medium and hard views", head, rows, notes),
        tabulate_differences("curriculum_differences", f"Schedules less {CONTROL!r}", comparison, pairs, notes[0]),
    ]


# Table `self_check`: GRPO with and without MEDSAGE's self-check by its weight.

SFT, GRPO, SELF = published.PARTS
"""Fine-tuning, GRPO after it without self-check, and with one of weight 0.20, as MEDSAGE's Table 5 names them."""

ALPHAS: dict[str, float] = {f"alpha {alpha:.2f}": alpha for alpha in published.SELF_CHECK_WEIGHT}
RATES = {"self-check rate": "rollouts/self_check_rate", "success rate": "rollouts/self_check_success"}
"""Numbers of a GRPO update in the log: rollouts that were checked, and those of them whose second attempt is right."""

SHOWN = HEADED_FIGURES[:4]
"""Mean A, V, V on findings and V on regions."""

_ALPHA_NOTE = "Alpha 0.20 should be the full model of the parts' table and alpha 0 its SFT + RL; neither agrees."
_WEIGHTS = {name: published.SELF_CHECK_WEIGHT[alpha] for name, alpha in ALPHAS.items()}


def _stage_cells(plan: Plan, seed: int) -> tuple[Cell, Cell]:
    """Return fine-tuning in MEDSAGE's dialect, some records with a wrong attempt and a check, and GRPO without."""
    changes = {"vqa.dialect": "lvkc", "vqa.with_thinking": True, "self_check.enabled": True}
    sft = sft_cell(plan, seed, "SFT on stages", changes)
    return sft, grpo_cell(plan, sft, "GRPO on stages", {"self_check.enabled": False})


def _self_check_cells(plan: Plan, seed: int) -> dict[str, Cell]:
    sft, grpo = _stage_cells(plan, seed)
    return {SFT: sft, GRPO: grpo} | {
        name: grpo_cell(plan, sft, f"GRPO with self-check, {name}", {"self_check.alpha": alpha})
        for name, alpha in ALPHAS.items()
    }


def make_self_check(plan: Plan) -> list[Table]:
    """Return our figures beside MEDSAGE's Tables 4 and 5 with the recomputed averages, and their differences."""
    comparison, asked = compare_cells(plan, _self_check_cells)
    measured = {name: list_figures(comparison, name, SHOWN) for name in (BASELINE, SFT, GRPO, *ALPHAS)}
    for name in ALPHAS:
        of_seeds = [read_rates(plan, _self_check_cells(plan, seed)[name]) for seed in plan.seeds]
        measured[name] |= {rate: mean_of_seeds([of_seed[rate] for of_seed in of_seeds]) for rate in RATES}
    notes = (
        f"GRPO in the dialect of MEDSAGE from one fine-tuning; test split, {asked}, seeds "
        f"{list(plan.seeds)}. That one shows a share {plan.settings.self_check.sft_share} of its records with a wrong "
        "attempt and a check, for all rows; test questions are answered once, without a check.",
        INTERVALS,
        "Self-check rate: first attempts in training that were wrong and checked; success rate: checks whose second "
        "attempt is right. Means over the updates of the last epoch.",
        "Published: accuracy on SLAKE, VQA-RAD and PathVQA, other data than ours. " + _ALPHA_NOTE,
    )
    rows_of = {  # row -> whose figures it has, of each table
        "self_check": {name: name for name in (BASELINE, GRPO, *ALPHAS)},
        "self_check_parts": {BASELINE: BASELINE, SFT: SFT, GRPO: GRPO, SELF: "alpha 0.20"},
    }
    head = (Column("method"), *percents(SHOWN), *columns("percent", *RATES), *_THREE_COLUMNS)
    tables = []
    for name, (what, number, figures) in _THREE_SETS.items():
        rows = [{**measured[ours], **_three_row(row, figures.get(row))} for row, ours in rows_of[name].items()]
        tables.append(Table.of(name, f"{what}, beside MEDSAGE's Table {number}", head, rows, notes))
    title = "GRPO with self-check less GRPO without"
    pairs = [(name, GRPO) for name in ALPHAS]
    return [*tables, tabulate_differences("self_check_differences", title, comparison, pairs, notes[0])]


def make_published_self_check() -> list[Table]:
    """Return MEDSAGE's Tables 4 and 5."""
    return [
        _tabulate_three_sets(name, f"{what} (MEDSAGE, Table {number})", figures, _ALPHA_NOTE)
        for name, (what, number, figures) in _THREE_SETS.items()
    ]


def read_rates(plan: Plan, cell: Cell) -> dict[str, float]:
    """Return `RATES` by name, means over the logged updates of the last epoch.

    NaN where no update has the number, such as the success of checks without a check.
    """
    entries = [entry for entry in read_metrics(plan.cells.folder(cell) / METRICS_FILE) if entry["kind"] == "train"]
    last = [entry for entry in entries if entry["epoch"] == entries[-1]["epoch"]]
    values = {name: [entry[key] for entry in last if entry[key] is not None] for name, key in RATES.items()}
    return {name: statistics.fmean(of_rate) if of_rate else math.nan for name, of_rate in values.items()}


ThreeSets = Mapping[str, tuple[dict[str, float], float]]

_THREE_SETS: dict[str, tuple[str, int, ThreeSets]] = {  # what, the table of the paper, its figures
    "self_check": ("Weight of the self-check", 4, _WEIGHTS),
    "self_check_parts": ("Parts of the method", 5, published.PARTS),
}
_THREE_COLUMNS = (
    *columns("percent", *published.THREE_SETS, "overall", published=True, digits=1),
    Column("overall", "percent", recomputed=True, digits=2),
)


def _tabulate_three_sets(name: str, title: str, figures: ThreeSets, note: str) -> Table:
    rows = [_three_row(method, accuracies) for method, accuracies in figures.items()]
    return Table.of(name, title, (Column("method"), *_THREE_COLUMNS), rows, (note,))


def _three_row(method: str, accuracies: tuple[dict[str, float], float] | None) -> Row:
    if accuracies is None:
        return {"method": method}
    by_set, overall = accuracies
    return {"method": method, **mark_published({**by_set, "overall": overall}, overall=recompute(by_set))}


# Table `stages`: quality of the stages beside MEDSAGE's, and its other tables as printed.

MODELS = ("SFT", "SFT and RL")
"""Rows of ours, as MEDSAGE's Table 2 names them: the cells of `self_check` without a self-check."""

_OURS: dict[str, Key] = {name: ("stage", name) for name in STAGE_NAMES} | {"step quality": ("step_quality", "together")}
_JUDGED_NOTE = "Judge and prompt are not published. None of the printed averages is the mean of its row."
_STAGE_COLUMNS = (
    *columns("number", *published.STAGES, "average", published=True, digits=3),
    Column("average", "number", recomputed=True, digits=4),
)


def make_stages(plan: Plan) -> list[Table]:
    """Return our stages beside MEDSAGE's Table 2, and its Tables 1 and 3."""
    first = _stage_cells(plan, plan.seeds[0])[0]
    records = read_test_records(plan, first)
    patients = np.array([record.patient for record in records])
    zero_shot, note_zero_shot = score_zero_shot("stages", plan, first)
    scores = {ZERO_SHOT if zero_shot else NOT_HAD: [zero_shot] if zero_shot else []}
    for index, model in enumerate(MODELS):
        scores[model] = [score_cell(plan, _stage_cells(plan, seed)[index], records) for seed in plan.seeds]
    rows: list[Row] = []
    for model, of_seeds in scores.items():
        labels = [np.array([score.stages for score in scored], np.float64) for scored in of_seeds]
        measures = [functools.partial(stage_figures, labels=of_seed) for of_seed in labels]
        figures = [bootstrap(measure, patients, num_resamples=plan.num_resamples) for measure in measures]
        rows.append({"model": model, "data": "our test split"})
        rows[-1] |= {name: summarise([each[key] for each in figures]) for name, key in _OURS.items() if figures}
    notes = (
        f"Ours: policies in the dialect of MEDSAGE, {len(records)} questions, seeds {list(plan.seeds)}; those of "
        "the table self_check without a self-check in GRPO.",
        note_zero_shot,
        INTERVALS,
        "Ours are checked against the records' facts: descriptions (localisation, visual) are worth 100, 50 or 0, "
        "reasoning (knowledge, conclusion) 100 or 0; stages of replies that are not well formed 0. Step quality is the "
        "geometric mean of both parts. This is our definition, after MiCEval: another scale than the published one.",
        "Published: scores of a judge from 1 to 5. " + _JUDGED_NOTE,
    )
    head = (*heads("model", "data"), *columns("percent", *_OURS), *_STAGE_COLUMNS)
    title = "Quality of each stage, beside MEDSAGE's Table 2"
    return [Table.of("stages", title, head, rows + _published_stages(), notes), *_tabulate_benchmarks()]


def make_published_stages() -> list[Table]:
    """Return MEDSAGE's Tables 2, 1 and 3."""
    title = "Scores of each stage from 1 to 5 (MEDSAGE, Table 2)"
    head = (*heads("model", "data"), *_STAGE_COLUMNS)
    return [Table.of("stages", title, head, _published_stages(), (_JUDGED_NOTE,)), *_tabulate_benchmarks()]


def _published_stages() -> list[Row]:
    rows: list[Row] = []
    for (model, data), scores in published.STAGE_SCORES.items():
        printed = {**scores, "average": published.STAGE_AVERAGE[model, data]}
        rows.append({"model": model, "data": data, **mark_published(printed, average=recompute(scores))})
    return rows


def _tabulate_benchmarks() -> list[Table]:
    rows: list[Row] = []
    for method, shares in published.BENCHMARK_ACCURACY.items():
        printed = shares | dict(zip(("average", "gap"), published.BENCHMARK_AVERAGE[method], strict=True))
        ours = {"average": recompute(shares), "gap": published.round_half_up(published.recompute_gap(method), 4)}
        rows.append({"group": published.BENCHMARK_GROUPS[method], "method": method, **mark_published(printed, **ours)})
    head = (
        *heads("group", "method"),
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
    note = "Baseline-sft lies far below the untrained model of the benchmarks' table."
    title = "Reasoning-path augmentation (MEDSAGE, Table 3)"
    return [
        Table.of("stages_benchmarks", "Accuracy on five benchmarks (MEDSAGE, Table 1)", head, rows, notes),
        _tabulate_three_sets("stages_augmentation", title, published.PATH_AUGMENTATION, note),
    ]


RECIPES = {
    "curriculum": Recipe(_curriculum_cells, make_curriculum),
    "vqa": Recipe(_vqa_cells, make_vqa, make_published_vqa),
    "self_check": Recipe(_self_check_cells, make_self_check, make_published_self_check),
    "stages": Recipe(_stage_cells, make_stages, make_published_stages),
}
