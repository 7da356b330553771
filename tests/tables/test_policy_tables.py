"""Tables of policies from finished cells: figures by hand, published columns, rows, cells and notes."""

import json
import math
import statistics

import numpy as np
import pytest
from tables.policy_tables import columns_of, finish_policy, make_policy_plan, published_columns, read_tests

from stepcot_jax.evaluation.comparison import ReplyComparison
from stepcot_jax.evaluation.interventions import perturb_records
from stepcot_jax.evaluation.replies import BASELINE, ScoringSettings, as_columns, score_text
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Interval
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.record import KINDS
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.scored_baseline import score_baseline
from stepcot_jax.tools.tables import (
    curriculum_table,
    policy_cells,
    robustness_table,
    self_check_table,
    stages_table,
    vqa_table,
)
from stepcot_jax.tools.tables.robustness_table import PerturbedReplies

RATES = {"rollouts/self_check_rate": (0.9, 0.5, 0.25), "rollouts/self_check_success": (0.1, None, 0.75)}


def every(number, seed):
    """Right but for each `number`-th question."""
    return lambda place: (place + seed) % number > 0


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Rows of known quality: SFT wrong in every second question, answer and both rewards in every fifth."""
    plan = make_policy_plan(tmp_path_factory.mktemp("policies"))
    wrong = {"+ GRPO, answer reward alone": 5, vqa_table.BOTH: 5, "GRPO on stages": 4, "curriculum: epochs": 7}
    metrics = [
        {"kind": "train", "step": step, "epoch": epoch, **{key: values[step] for key, values in RATES.items()}}
        for step, epoch in ((0, 0), (1, 1), (2, 1))
    ]
    done = set()
    for table in (vqa_table, curriculum_table, self_check_table, stages_table):
        for cell in table.list_cells(plan):
            if plan.cells.digest(cell) not in done:
                done.add(plan.cells.digest(cell))
                right = every(wrong.get(cell.name, 2), cell.settings.seed)
                finish_policy(plan, cell, right, metrics=metrics if cell.settings.self_check.enabled else ())
    return plan


def right_share(plan, number, kind):
    """Mean over the seeds of the share of right questions of a kind."""
    kinds = [record.kind for record in read_tests(plan)]
    rows = [[every(number, seed)(place) for place, own in enumerate(kinds) if own == kind] for seed in plan.seeds]
    return [float(np.mean(row)) for row in rows]


def test_every_cell_is_a_run_with_its_rows_changes(plan):
    cells = {cell.name: cell.settings for cell in vqa_table.list_cells(plan)[:6]}
    sft = cells["SFT with thinking"]
    start = str(plan.cells.folder(vqa_table.sft_of(plan, 0, vqa_table.THINKING)))
    assert {settings.policy.start for name, settings in cells.items() if "GRPO" in name} == {start}
    assert {(settings.job, settings.sft.epochs) for name, settings in cells.items() if "GRPO" in name} == {("grpo", 0)}
    assert (sft.job, sft.sft.epochs, sft.vqa.with_thinking, sft.policy.start) == ("sft", 1, True, "")
    assert not cells["SFT without thinking"].vqa.with_thinking
    rewards = {
        name: (one.rewards.answer_weight, one.rewards.grounding_weight, one.grpo.shuffle_rewards)
        for name, one in cells.items()
        if "GRPO" in name
    }
    assert rewards == {
        "+ GRPO, answer reward alone": (1.0, 0.0, False),
        "+ GRPO, grounding reward alone": (0.0, 1.0, False),
        "+ GRPO, both rewards": (1.0, 1.0, False),
        "+ GRPO, both rewards shuffled": (1.0, 1.0, True),
    }
    assert len(vqa_table.list_cells(plan)) == 12


def test_cells_of_other_tables(plan):
    cells = {cell.name: cell.settings for cell in curriculum_table.list_cells(plan)[:6]}
    found = {name: (each.curriculum.schedule, each.curriculum.shares) for name, each in cells.items()}
    shares = plan.settings.curriculum.shares
    assert found == {
        "curriculum: mixed": ("mixed", shares),
        "curriculum: epochs": ("epochs", shares),
        "curriculum: adaptive": ("adaptive", shares),
        "curriculum: easy only": ("mixed", (1.0, 0.0, 0.0)),
        "curriculum: medium only": ("mixed", (0.0, 1.0, 0.0)),
        "curriculum: hard only": ("mixed", (0.0, 0.0, 1.0)),
    }
    assert {(each.vqa.dialect, each.job, each.sft.pack_length) for each in cells.values()} == {("medclm", "sft", 0)}
    checks = [cell.settings for cell in self_check_table.list_cells(plan)[:6]]
    assert {each.vqa.dialect for each in checks} == {"lvkc"}
    enabled = [(each.job, each.self_check.enabled, each.self_check.alpha) for each in checks]
    assert enabled[1:] == [("grpo", False, 0.2), *(("grpo", True, alpha) for alpha in (0.0, 0.15, 0.2, 0.25))]
    assert enabled[0][:2] == ("sft", True)  # its vocabulary has the marks of a check
    own = {plan.cells.digest(cell) for cell in self_check_table.list_cells(plan)}
    assert {plan.cells.digest(cell) for cell in stages_table.list_cells(plan)} < own


def test_figures_are_the_shares_of_right_replies(plan):
    table, _, _ = vqa_table.make_tables(plan)
    found = columns_of(table)
    rows = dict(zip(found["training"], range(len(table.rows)), strict=True))
    for name, number in ((vqa_table.THINKING, 2), (vqa_table.BOTH, 5), (vqa_table.SHUFFLED, 2)):
        place = rows[name]
        by_kind = [right_share(plan, number, kind) for kind in KINDS]
        for kind, shares in zip(KINDS, by_kind, strict=True):
            figure = found[f"{kind} A"][place]
            assert (figure.value, figure.deviation) == pytest.approx((np.mean(shares), statistics.stdev(shares)))
            assert found[f"{kind} V"][place].value == pytest.approx(np.mean(shares))
            assert figure.low <= figure.value <= figure.high
        assert found["mean A"][place].value == pytest.approx(np.mean(by_kind))


def test_the_baseline_is_that_of_the_training_split(plan):
    dataset = load_vqa_dataset(plan.settings)
    records = [record for record in dataset.records if record.split == "test"]
    scores, _ = score_baseline(dataset.records, records, ScoringSettings())
    by_kind = [
        np.mean([score.a_score for score, record in zip(scores, records, strict=True) if record.kind == kind])
        for kind in KINDS
    ]
    found = columns_of(vqa_table.make_tables(plan)[0])
    assert found["training"][0] == BASELINE
    assert found["mean A"][0].value == pytest.approx(np.mean(by_kind))
    assert found["V"][0].value == pytest.approx(np.mean([score.v_score for score in scores]))
    assert (found["mean A"][0].deviation, math.isnan(found["well formed"][0].value)) == (0.0, True)


def test_differences_are_paired_and_judged_together(plan):
    _, table, _ = vqa_table.make_tables(plan)
    found = columns_of(table)
    assert list(zip(found["training"], found["less"], strict=True)) == list(vqa_table.PAIRS)
    place = found["training"].index(vqa_table.BOTH)
    expected = np.mean([np.subtract(right_share(plan, 5, kind), right_share(plan, 2, kind)) for kind in KINDS])
    difference = found["mean A"][place]
    assert difference.value == pytest.approx(expected)
    assert 0 < difference.low < difference.value < difference.high
    assert found["mean A: verdict"][place] == "higher in both runs"
    same = found["training"].index(vqa_table.SHUFFLED)
    assert (found["mean A"][same].value, found["mean A: verdict"][same]) == (0.0, "no difference shown")


def test_published_columns_do_not_depend_on_our_figures(plan):
    for module in (vqa_table, self_check_table, stages_table):
        alone, beside = (published_columns(module.make_tables(which)) for which in (None, plan))
        assert alone == beside
        assert sum(map(len, alone.values())) > 20
    found = columns_of(vqa_table.make_tables(plan)[0])
    place = found["training"].index(vqa_table.BOTH)
    assert found["published: training in the paper"][place] == "GEMeX-RMCoT-200K, SFT and RFT"
    assert found["published: closed A"][place] == 0.9024
    assert found["published: closed A"][found["training"].index(vqa_table.SHUFFLED)] is None
    unpaired = [place for place, name in enumerate(found["training"]) if name is None]
    assert [found["published: training in the paper"][place] for place in unpaired] == ["zero-shot", "GEMeX-Full, SFT"]


def test_self_check_rates_are_those_of_the_last_epoch(plan):
    weights, parts, differences = self_check_table.make_tables(plan)
    found = columns_of(weights)
    assert found["method"] == [BASELINE, "SFT + RL", "alpha 0.00", "alpha 0.15", "alpha 0.20", "alpha 0.25"]
    assert found["self-check rate"] == [None, None, *[Interval(0.375, deviation=0.0)] * 4]
    assert found["success rate"] == [
        None,
        None,
        *[Interval(0.75, deviation=0.0)] * 4,
    ]  # an update without a check has none
    assert found["published: SLAKE"] == [None, None, 0.783, 0.788, 0.791, 0.785]
    expected = [np.mean([right_share(plan, number, kind) for kind in KINDS]) for number in (2, 4, 2)]
    assert [each.value for each in columns_of(parts)["mean A"][1:]] == pytest.approx(expected)
    assert columns_of(parts)["published: SLAKE"] == [None, 0.774, 0.788, 0.798]
    constant = columns_of(vqa_table.make_tables(plan)[0])
    for heading in ("mean A", "V", "V on findings", "V on regions"):
        assert found[heading][0].value == pytest.approx(constant[heading][0].value)
    assert [row[1] for row in differences.rows] == ["SFT + RL"] * 4


def test_the_baseline_answers_perturbed_questions_too(plan, monkeypatch):
    def answer_rounds(folder, records, *, num_rounds):
        asked = [perturb_records(records, seed=0, round_number=number + 1) for number in range(num_rounds)]
        replies = [{record.id: write_reply(record, "gemex") for record in own} for own in asked]
        return PerturbedReplies(list(zip(asked, replies, strict=True)), [])

    monkeypatch.setattr(robustness_table, "answer_rounds", answer_rounds)
    (table,) = robustness_table.make_tables(plan)
    found = columns_of(table)
    assert found["training"] == [BASELINE, *robustness_table.TRAININGS] * 2
    train = [record for record in load_vqa_dataset(plan.settings).records if record.split == "train"]
    first_round = perturb_records(read_tests(plan), seed=0, round_number=1)
    for place, kind in ((0, "closed"), (3, "single")):
        for name, records in (("original", read_tests(plan)), ("round 1", first_round)):
            own = [record for record in records if record.kind == kind]
            scores, _ = score_baseline([*train, *own], own, ScoringSettings())
            expected = np.mean([score.a_score for score in scores])
            assert found[name][place].value == pytest.approx(expected)
            assert found[f"published: {name}"][place] is None
        assert found["std"][place].value >= 0


def test_a_run_without_the_numbers_of_a_self_check_is_named(plan):
    cell = self_check_table.lvkc_grpo(plan, 0)
    path = plan.cells.folder(cell) / "metrics.jsonl"
    path.write_text(json.dumps({"kind": "train", "step": 1, "epoch": 0, "loss": 1.0}) + "\n")
    with pytest.raises(BadInput, match=r"metrics\.jsonl: 'rollouts/self_check_rate' is not logged"):
        self_check_table.read_rates(plan, cell)


def test_stages_are_worth_what_their_replies_say(plan):
    table = stages_table.make_tables(plan)[0]
    found = columns_of(table)
    assert found["data"][:2] == ["our test split"] * 2
    scoring, records = ScoringSettings(dialect="lvkc"), read_tests(plan)
    for place, number in enumerate((2, 4)):
        expected = []
        for seed in plan.seeds:
            texts = [
                write_reply(record, "lvkc") if every(number, seed)(at) else "none" for at, record in enumerate(records)
            ]
            values = [score_text(text, record, scoring).stages[0] for text, record in zip(texts, records, strict=True)]
            expected.append(np.nanmean(values))
        assert found["localisation"][place].value == pytest.approx(np.mean(expected))
        assert found["published: knowledge"][place] is None
    assert found["localisation"][2:] == [None] * 9


def test_schedules_are_compared_with_constant_shares(plan):
    table, differences = curriculum_table.make_tables(plan)
    found = columns_of(table)
    assert found["schedule"] == [BASELINE, "mixed", "epochs", "adaptive", "easy only", "medium only", "hard only"]
    expected = [np.mean([right_share(plan, number, kind) for kind in KINDS]) for number in (2, 7, 2)]
    assert [each.value for each in found["mean A"][1:4]] == pytest.approx(expected)
    assert not any(column.published or column.recomputed for column in (*table.columns, *differences.columns))
    assert {row[1] for row in differences.rows} == {"mixed"}


def test_a_cell_with_other_test_records_is_refused(plan):
    cell = vqa_table.sft_of(plan, 0, vqa_table.PLAIN)
    with pytest.raises(BadInput, match=r"cell 'SFT without thinking' .* has other records"):
        policy_cells.score_cell(plan, cell, read_tests(plan)[1:])


def test_cells_keep_their_digest_where_the_workdir_is_moved(plan, tmp_path):
    moved = make_policy_plan(tmp_path / "moved")
    names = [[each.cells.digest(cell) for cell in vqa_table.list_cells(each)] for each in (plan, moved)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 12


def test_patients_of_a_figure_are_those_of_its_smallest_kind(tmp_path):
    settings = make_policy_plan(tmp_path).settings
    records = list(load_vqa_dataset(settings, splits=("test",)).records)
    kept = [record for record in records if record.kind != "open"] + [
        record for record in records if record.kind == "open"
    ][:3]
    scored = as_columns(kept, [score_text("none", record, ScoringSettings()) for record in kept])
    comparison = ReplyComparison([{"a": scored}])
    assert comparison.num_patients("a_score", "mean") == 3
    assert comparison.num_patients("v_score", "all") == len({record.patient for record in kept})
    assert comparison.num_patients("v_score", "nothing") == 0
