"""Tables of policies from finished cells: figures by hand, published columns, rows, cells and notes."""

import csv
import dataclasses
import json
import math
import statistics

import jax
import numpy as np
import pytest
from policies.policy_workdir import make_policy_workdir
from sections import section
from systems.small_policy import SIZES as POLICY

from benchmarks.keep_replies import keep_replies
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.evaluation.audits import perturb_records
from stepcot_jax.evaluation.comparison import ReplyComparison
from stepcot_jax.evaluation.replies import BASELINE, ScoringSettings, as_columns, score_text
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import Interval
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.record import KINDS
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.tools.evaluate_replies import command as evaluating
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import policy_tables, robustness_table
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.plan import Plan
from stepcot_jax.tools.tables.robustness_table import PerturbedReplies

SIZES = POLICY | {
    **section("grpo", group_size=2, updates_per_epoch=1),
    "job": "distill",
    "phantom.num_cases": 40,
    "data.split_fractions": (0.6, 0.1, 0.3),
    "policy.longest_reply": 16,
    "sft.epochs": 1,
    "sft.pack_length": 256,
    "training.checkpoint_minutes": 10,
    "evaluation.batch_size": 36,
}
RATES = {"rollouts/self_check_rate": (0.9, 0.5, 0.25), "rollouts/self_check_success": (0.1, None, 0.75)}


def make_policy_plan(workdir, *, seeds=(0, 1), **changes):
    settings = load_settings("base", **SIZES | {name.replace("__", "."): value for name, value in changes.items()})
    return Plan(settings, seeds, Cells(workdir, Terminal(silent=True)), num_resamples=60)


def read_tests(plan):
    return list(load_vqa_dataset(plan.settings, splits=("test",)).records)


def finish_policy(plan, cell, right, *, metrics=()):
    """Write what a run of the cell would leave behind; `right` says from a question's place if its reply is true."""
    folder, settings = plan.cells.folder(cell), cell.settings
    (folder / "records").mkdir(parents=True)
    (folder / "replies").mkdir()
    records = list(load_vqa_dataset(cell.settings, splits=("test",)).records)
    write_vqa_records(folder / "records" / "test.jsonl", records)
    lines = [
        {"id": record.id, "reply": write_reply(record, settings.vqa.dialect) if right(place) else "none"}
        for place, record in enumerate(records)
    ]
    (folder / "replies" / f"{settings.job}_test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    best = {name: {"step": 1, "validation_score": 0.5} for name in cell.settings.trains.names}
    (folder / "report.json").write_text(json.dumps({"best": best}))


def columns_of(table):
    return {column.marked_name: [row[place] for row in table.rows] for place, column in enumerate(table.columns)}


def published_columns(tables):
    """Entries of the published and the recomputed columns of all tables, those without an entry left out."""
    return {
        (table.name, column.marked_name): sorted(row[place] for row in table.rows if row[place] is not None)
        for table in tables
        for place, column in enumerate(table.columns)
        if column.keeps_digits and column.kind != "text"
    }


def every(number, seed):
    """Right but for each `number`-th question."""
    return lambda place: (place + seed) % number > 0


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Rows of known quality: SFT wrong in every second question, answer and both rewards in every fifth."""
    plan = make_policy_plan(tmp_path_factory.mktemp("policies"))
    wrong = {"+ GRPO, answer reward alone": 5, policy_tables.BOTH: 5, "GRPO on stages": 4, "curriculum: epochs": 7}
    metrics = [
        {"kind": "train", "step": step, "epoch": epoch, **{key: values[step] for key, values in RATES.items()}}
        for step, epoch in ((0, 0), (1, 1), (2, 1))
    ]
    done = set()
    for table in ("vqa", "curriculum", "self_check", "stages"):
        for cell in find_recipe(table).list_cells(plan):
            if plan.cells.digest(cell) not in done:
                done.add(plan.cells.digest(cell))
                right = every(wrong.get(cell.name, 2), cell.settings.seed)
                finish_policy(plan, cell, right, metrics=metrics if cell.settings.self_check.enabled else ())
    return plan


def right_share(plan, number, kind):
    indices = [index for index, record in enumerate(read_tests(plan)) if record.kind == kind]
    return [float(np.mean([every(number, seed)(index) for index in indices])) for seed in plan.seeds]


def test_cells_of_a_seed_start_from_one_fine_tuning_and_keep_their_digest_in_another_workdir(plan, tmp_path):
    cells = {cell.name: cell.settings for cell in find_recipe("vqa").list_cells(plan)[:6]}
    start = str(plan.cells.folder(policy_tables.sft_of(plan, 0, policy_tables.THINKING)))
    grpo = [own for name, own in cells.items() if "GRPO" in name]
    assert {(own.job, own.sft.epochs, own.policy.start) for own in grpo} == {("grpo", 0, start)}
    rewards = [(*map(own.rewards.weights.get, ("answer", "grounding")), own.grpo.shuffle_rewards) for own in grpo]
    assert rewards == [(1, 0, False), (0, 1, False), (1, 1, False), (1, 1, True)]
    own = {plan.cells.digest(cell) for cell in find_recipe("self_check").list_cells(plan)}
    assert {plan.cells.digest(cell) for cell in find_recipe("stages").list_cells(plan)} < own
    moved = make_policy_plan(tmp_path / "moved")
    names = [[own.cells.digest(cell) for cell in find_recipe("vqa").list_cells(own)] for own in (plan, moved)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 12


@pytest.fixture(scope="module")
def made(plan):
    return {name: find_recipe(name).tabulate(plan) for name in ("vqa", "self_check", "stages")}


def test_figures_are_the_shares_of_right_replies_and_differences_are_judged_together(plan, made):
    found = columns_of(made["vqa"][0])
    for name, number in ((policy_tables.THINKING, 2), (policy_tables.BOTH, 5), (policy_tables.SHUFFLED, 2)):
        row = found["training"].index(name)
        by_kind = [right_share(plan, number, kind) for kind in KINDS]
        for kind, shares in zip(KINDS, by_kind, strict=True):
            figure = found[f"{kind} A"][row]
            assert (figure.value, figure.deviation) == pytest.approx((np.mean(shares), statistics.stdev(shares)))
            assert found[f"{kind} V"][row].value == pytest.approx(np.mean(shares))
            assert figure.low <= figure.value <= figure.high
        assert found["mean A"][row].value == pytest.approx(np.mean(by_kind))
    found = columns_of(made["vqa"][1])
    assert list(zip(found["training"], found["less"], strict=True)) == list(policy_tables._PAIRS)
    row, same = (found["training"].index(name) for name in (policy_tables.BOTH, policy_tables.SHUFFLED))
    expected = np.mean([np.subtract(right_share(plan, 5, kind), right_share(plan, 2, kind)) for kind in KINDS])
    difference = found["mean A"][row]
    assert difference.value == pytest.approx(expected)
    assert 0 < difference.low < difference.value < difference.high
    assert found["mean A: verdict"][row] == "higher in both runs"
    assert (found["mean A"][same].value, found["mean A: verdict"][same]) == (0.0, "no difference shown")


def test_a_model_without_training_has_a_row_where_its_replies_are_given(plan, made, tmp_path):
    tests = read_tests(plan)
    for table, dialect, heading in (("vqa", "gemex", "mean A"), ("stages", "lvkc", "step quality")):
        found = columns_of(made[table][0])
        row = found[next(iter(found))].index("zero-shot (not had here)")
        assert found[heading][row] is None
        assert any(f"--zero_shot={table}=REPLIES" in note for note in made[table][0].notes)
        lines = [
            {"id": record.id, "reply": write_reply(scale_record(record, (500, 300)), dialect), "image_size": [500, 300]}
            for record in tests[1:]
        ]
        lines.append({"id": tests[0].id, "reply": None, "error": "picture: a.png does not exist"})
        (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, lines)))
        given = dataclasses.replace(plan, zero_shot={table: tmp_path / "replies.jsonl"})
        made_with, *_ = find_recipe(table).tabulate(given)
        own = columns_of(made_with)
        assert own[next(iter(own))].index("zero-shot") == row
        assert 0.95 < own[heading][row].value < 1
        assert any("1 missing replies count as wrong" in note for note in made_with.notes)
        assert own[heading][row + 1] == found[heading][row + 1]
        assert published_columns([made_with]) == published_columns(made[table][:1])


def test_a_cell_of_a_table_is_recomputed_from_the_kept_replies(plan, made, tmp_path):
    cells = [cell for cell in find_recipe("vqa").list_cells(plan) if cell.name == policy_tables.BOTH]
    runs, folder = list(map(plan.cells.folder, cells)), tmp_path / "kept"
    for cell, run in zip(cells, runs, strict=True):
        write_settings(run / "settings.json", cell.settings)
    written = keep_replies(folder, runs)
    index = [json.loads(line) for line in (folder / "files.jsonl").read_text().splitlines()]
    assert [own["seed"] for own in index] == list(plan.seeds)
    assert len(written) == len(set(written)) == 2 + 1 + 1  # replies, the records of both seeds once, and the index
    figures = []
    for own in index:
        out = tmp_path / str(own["seed"])
        flags = [f"--dialect={own['dialect']}", "--without-pictures", "--num-resamples=60", f"--out={out}"]
        evaluating.main([str(folder / own["records"]), str(folder / own["replies"]), *flags])
        (model,) = json.loads((out / "metrics.json").read_text())["models"].values()
        figures.append(model["figures"]["a_score"]["mean"])
    found = columns_of(made["vqa"][0])
    entry = found["mean A"][found["training"].index(policy_tables.BOTH)]
    for part in ("value", "low", "high"):
        assert np.mean([figure[part] for figure in figures]) == pytest.approx(getattr(entry, part)), part
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    keep_replies(folder, runs)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_baseline_is_that_of_the_training_split(plan, made):
    dataset = load_vqa_dataset(plan.settings)
    records = [record for record in dataset.records if record.split == "test"]
    scores, _ = score_baseline(dataset.records, records, ScoringSettings())
    of_kind = {kind: [] for kind in KINDS}
    for score, record in zip(scores, records, strict=True):
        of_kind[record.kind].append(score.a_score)
    found = columns_of(made["vqa"][0])
    assert found["training"][0] == BASELINE
    assert found["mean A"][0].value == pytest.approx(np.mean([np.mean(own) for own in of_kind.values()]))
    assert found["V"][0].value == pytest.approx(np.mean([score.v_score for score in scores]))
    assert (found["mean A"][0].deviation, math.isnan(found["well formed"][0].value)) == (0.0, True)


def test_published_columns_do_not_depend_on_our_figures(made):
    for name, tables in made.items():
        alone = published_columns(find_recipe(name).tabulate(None))
        assert alone == published_columns(tables)
        assert sum(map(len, alone.values())) > 20
    found = columns_of(made["vqa"][0])
    row = found["training"].index(policy_tables.BOTH)
    assert found["published: training in the paper"][row] == "GEMeX-RMCoT-200K, SFT and RFT"
    assert found["published: closed A"][row] == 0.9024
    assert found["published: closed A"][found["training"].index(policy_tables.SHUFFLED)] is None
    unpaired = [row for row, name in enumerate(found["training"]) if name is None]
    assert [found["published: training in the paper"][row] for row in unpaired] == ["GEMeX-Full, SFT"]


def test_self_check_rates_are_those_of_the_last_epoch(plan, made):
    weights, parts, differences = made["self_check"]
    found, constant = columns_of(weights), columns_of(made["vqa"][0])
    assert found["method"] == [BASELINE, "SFT + RL", "alpha 0.00", "alpha 0.15", "alpha 0.20", "alpha 0.25"]
    assert found["self-check rate"] == [None, None, *[Interval(0.375, deviation=0.0)] * 4]
    # An update without a check has no success rate.
    assert found["success rate"] == [None, None, *[Interval(0.75, deviation=0.0)] * 4]
    assert found["published: SLAKE"] == [None, None, 0.783, 0.788, 0.791, 0.785]
    expected = [np.mean([right_share(plan, number, kind) for kind in KINDS]) for number in (2, 4, 2)]
    assert [figure.value for figure in columns_of(parts)["mean A"][1:]] == pytest.approx(expected)
    assert columns_of(parts)["published: SLAKE"] == [None, 0.774, 0.788, 0.798]
    for heading in ("mean A", "V", "V on findings", "V on regions"):
        assert found[heading][0].value == pytest.approx(constant[heading][0].value)
    assert [row[1] for row in differences.rows] == ["SFT + RL"] * 4


def test_the_baseline_answers_perturbed_questions_too(plan, monkeypatch):
    rounds = [perturb_records(read_tests(plan), seed=0, round_number=number) for number in (1, 2, 3)]
    replies = [
        {record.id: write_reply(record, "gemex") if index % number else "none" for index, record in enumerate(own)}
        for number, own in enumerate(rounds, start=2)
    ]
    answered = PerturbedReplies(list(zip(rounds, replies, strict=True)), [])
    monkeypatch.setattr(robustness_table, "answer_rounds", lambda folder, records, *, num_rounds: answered)
    (table,) = find_recipe("robustness").tabulate(plan)
    found = columns_of(table)
    assert found["training"] == [BASELINE, *robustness_table.TRAININGS] * 2
    train = [record for record in load_vqa_dataset(plan.settings).records if record.split == "train"]
    for row, kind in ((0, "closed"), (3, "single")):
        for name, records in (("original", read_tests(plan)), ("round 1", rounds[0])):
            own = [record for record in records if record.kind == kind]
            scores, _ = score_baseline([*train, *own], own, ScoringSettings())
            assert found[name][row].value == pytest.approx(np.mean([score.a_score for score in scores]))
            assert found[f"published: {name}"][row] is None
        shares = [
            np.mean([bool(index % number) for index, record in enumerate(own) if record.kind == kind])
            for number, own in enumerate(rounds, start=2)
        ]
        assert [found[f"round {number}"][row + 1].value for number in (1, 2, 3)] == pytest.approx(shares)
        assert found["std"][row + 1].value == pytest.approx(np.std(shares))


def test_stages_are_worth_what_their_replies_say(plan, made):
    found = columns_of(made["stages"][0])
    assert found["data"][:3] == ["our test split"] * 3
    scoring, records = ScoringSettings(dialect="lvkc"), read_tests(plan)
    right, wrong = ([score_text(text(record), record, scoring).stages[0] for record in records]
                    for text in (lambda record: write_reply(record, "lvkc"), lambda record: "none"))  # fmt: skip
    for row, number in enumerate((2, 4), start=1):
        are_right = [[every(number, seed)(place) for place in range(len(records))] for seed in plan.seeds]
        of_seeds = [np.nanmean(np.where(own, right, wrong)) for own in are_right]
        assert found["localisation"][row].value == pytest.approx(np.mean(of_seeds))
        assert found["published: knowledge"][row] is None
    assert found["localisation"][3:] == [None] * 9


def test_patients_of_a_figure_are_those_of_its_smallest_kind(plan):
    records = sorted(read_tests(plan), key=lambda record: record.kind != "open")
    kept = records[:3] + [record for record in records if record.kind != "open"]
    scored = as_columns(kept, [score_text("none", record, ScoringSettings()) for record in kept])
    comparison = ReplyComparison([{"a": scored}])
    assert comparison.num_patients("a_score", "mean") == 3
    assert comparison.num_patients("v_score", "all") == len({record.patient for record in kept})
    assert comparison.num_patients("v_score", "nothing") == 0


@pytest.mark.slow
def test_fine_tuning_and_grpo_are_run_and_are_rows_with_figures_of_their_own_replies(tmp_path):
    plan = make_policy_plan(tmp_path, seeds=(0,), phantom__num_cases=30, policy__longest_reply=64)
    with jax.numpy_dtype_promotion("standard"):
        names = making.make_tables(["stages"], plan, command=["python"], folder=tmp_path / "tables")
    assert {"stages.csv", "stages_benchmarks.csv", "stages.tex"} <= set(names)
    with (tmp_path / "tables" / "stages.csv").open(newline="", encoding="utf-8") as file:
        assert [row["data"] for row in csv.DictReader(file)][:2] == ["our test split"] * 2
    for cell in find_recipe("stages").list_cells(plan):
        assert (plan.cells.folder(cell) / "replies" / f"{cell.settings.job}_test.jsonl").is_file()


def test_perturbed_questions_are_answered_once(tmp_path, monkeypatch):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    tests = [record for record in records if record.split == "test"]
    found = robustness_table.answer_rounds(tmp_path / "run", tests, num_rounds=2)
    for number, (asked, replies) in enumerate(found.rounds, start=1):
        assert asked == perturb_records(tests, seed=0, round_number=number)
        assert list(replies) == [record.id for record in asked]
    monkeypatch.setattr(robustness_table, "answer_records", lambda *_: pytest.fail("asked again"))
    assert robustness_table.answer_rounds(tmp_path / "run", tests, num_rounds=2) == found
    others = [record for record in tests if record.id != asked[0].id]
    with pytest.raises(BadInput, match="the test records of its data have changed"):
        robustness_table.answer_rounds(tmp_path / "run", others, num_rounds=1)
