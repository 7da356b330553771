"""Table `vqa`: answers and grounding of policies by fine-tuning and rewards, beside GEMeX-RMCoT's rows."""

from typing import Any

from stepcot_jax.evaluation import published
from stepcot_jax.evaluation.comparison import DESCRIPTION, INTERVALS, ReplyComparison
from stepcot_jax.evaluation.replies import BASELINE, HEADED_FIGURES
from stepcot_jax.pages.sheets import Column, Row, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.policy_cells import compare_policies, grpo_cell, sft_cell, tabulate_differences

PLAIN, THINKING = "SFT without thinking", "SFT with thinking"
BOTH, SHUFFLED = "+ GRPO, both rewards", "+ GRPO, both rewards shuffled"

_SFT: dict[str, dict[str, Any]] = {PLAIN: {"vqa.with_thinking": False}, THINKING: {"vqa.with_thinking": True}}
_GRPO: dict[str, dict[str, Any]] = {
    "+ GRPO, answer reward alone": {"rewards.grounding_weight": 0.0},
    "+ GRPO, grounding reward alone": {"rewards.answer_weight": 0.0},
    BOTH: {},
    SHUFFLED: {"grpo.shuffle_rewards": True},
}
"""Settings of the runs of GRPO, which start from the policy that was fine-tuned with thinking."""

COUNTERPARTS = {PLAIN: published.PLAIN, THINKING: published.THINKING, BOTH: published.THINKING_RFT}
"""Published row of each of ours that has one."""

PAIRS = ((THINKING, PLAIN), (THINKING, BASELINE), *((name, THINKING) for name in _GRPO), (BOTH, SHUFFLED))

_A_NOTE = "A-scores of open questions are ratings by a judge relative to the reference, no shares of right answers."


def sft_of(plan: Plan, seed: int, name: str) -> Cell:
    """Return the fine-tuning with or without thinking."""
    return sft_cell(plan, seed, name, _SFT[name])


def _cells(plan: Plan, seed: int) -> dict[str, Cell]:
    """Return the cell of each row; the policies of a seed that GRPO changes all start from one fine-tuning."""
    cells = {name: sft_of(plan, seed, name) for name in _SFT}
    return cells | {name: grpo_cell(plan, cells[THINKING], name, changes) for name, changes in _GRPO.items()}


def list_cells(plan: Plan) -> list[Cell]:
    """Return for each seed both fine-tunings, and GRPO with each reward."""
    return [cell for seed in plan.seeds for cell in _cells(plan, seed).values()]


def make_tables(plan: Plan | None) -> list[Table]:
    """Return GEMeX-RMCoT's Table 4 and its counts of questions (Table 2); with a plan, our rows and differences too."""
    if plan is None:
        return [_tabulate_published(), _tabulate_questions()]
    comparison, num_questions = compare_policies(plan, lambda seed: _cells(plan, seed))
    note = f"Test split, seeds {list(plan.seeds)}; in the same resamples of patients."
    differences = tabulate_differences("vqa_differences", "What thinking and rewards change", comparison, PAIRS, note)
    return [_tabulate_ours(plan, comparison, num_questions), differences, _tabulate_questions()]


def _tabulate_ours(plan: Plan, comparison: ReplyComparison, num_questions: int) -> Table:
    known, rows = _published_rows(), list[Row]()
    for name in comparison.splits[0]:
        counterpart = COUNTERPARTS.get(name)
        row: Row = {"training": name, _IN_PAPER.marked_name: counterpart, **known.pop(counterpart, {})}
        rows.append(row | {heading: comparison.figure(name, *key) for heading, key in HEADED_FIGURES})
    rows += [{_IN_PAPER.marked_name: name, **published_row} for name, published_row in known.items()]
    notes = (
        f"Test split, {num_questions} questions, seeds {list(plan.seeds)}. GRPO starts from SFT with thinking.",
        INTERVALS,
        DESCRIPTION,
        f"{BASELINE}: of the training split, ignoring the picture; it writes no reply whose form could be read.",
        "Published: Qwen2.5-VL-7B on the GEMeX test set (GEMeX-RMCoT, Table 4), other data than ours. " + _A_NOTE,
    )
    ours = columns("percent", *(heading for heading, _ in HEADED_FIGURES))
    heads = (Column("training"), *ours, _IN_PAPER, *_PUBLISHED_COLUMNS)
    return Table.of("vqa", "Answers and grounding of policies, beside GEMeX-RMCoT", heads, rows, notes)


_IN_PAPER = Column("training in the paper", published=True)
_SCORES = [(f"{kind} {score}", kind, score) for kind in published.QUESTION_KINDS for score in ("A", "V")]
_PUBLISHED_COLUMNS = (
    *columns("percent", *(heading for heading, _, _ in _SCORES), "A average", published=True, digits=2),
    Column("A average", "percent", recomputed=True, digits=2),
)


def _published_rows() -> dict[str | None, Row]:
    rows: dict[str | None, Row] = {}
    for name, answers in published.A_SCORES.items():
        of_score = {"A": answers, "V": published.V_SCORES[name]}
        rows[name] = {f"published: {heading}": of_score[score][kind] for heading, kind, score in _SCORES}
        rows[name]["published: A average"] = published.A_AVERAGE[name]
        rows[name]["recomputed: A average"] = published.round_half_up(published.recompute_mean(answers), 4)
    return rows


def _tabulate_published() -> Table:
    rows: list[Row] = [{"training": name, **row} for name, row in _published_rows().items()]
    title = "Answers (A-score) and grounding (V-score) on the GEMeX test set (GEMeX-RMCoT, Table 4)"
    notes = ("Qwen2.5-VL-7B. The average is the unweighted mean of the four kinds.", _A_NOTE)
    return Table.of("vqa", title, (Column("training"), *_PUBLISHED_COLUMNS), rows, notes)


def _tabulate_questions() -> Table:
    kinds = published.QUESTION_KINDS
    return Table(
        "vqa_questions",
        "Questions by kind (GEMeX-RMCoT, Table 2 and test set)",
        (Column("data"), *columns("number", *kinds, published=True), Column("all", "number", recomputed=True)),
        tuple((name, *counts.values(), sum(counts.values())) for name, counts in published.NUM_QUESTIONS.items()),
    )
