import json

import numpy as np
import pytest
from memory_store import put_files
from refusals import refuse
from tables import finished_cells as made

from stepcot_jax.chain import Chain
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.evaluation import comparison as comparing
from stepcot_jax.evaluation.statistics import draw_weights
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run import training_run
from stepcot_jax.run.places import Place
from stepcot_jax.tools.tables import command
from stepcot_jax.tools.tables.cells import Cell, digest_records, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.plan import ABLATIONS, Plan
from stepcot_jax.tools.tables.transfer_table import restrict

METRICS = ("accuracy", "mAUC", "sensitivity", "macro specificity")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    plan = made.make_plan(tmp_path_factory.mktemp("tables"))
    made.finish_all(plan)
    return plan


@pytest.fixture(scope="module")
def written(plan):
    names = command.make_tables(
        ["diagnosis", "steps", "components"], plan, command=["python", "-m", "x y"], folder=plan.workdir / "out"
    )
    return plan.workdir / "out", names


def accuracy(plan, cell, model, step):
    predictions = plan.cells.predictions(cell).predictions
    options = plan.cells.chain(cell).steps[step].num_answers
    return float((predictions.logits[model][:, step, :options].argmax(-1) == made.LABELS[:, step]).mean())


def test_diagnosis_has_both_baselines_of_each_encoder_and_the_published_rows(plan, written):
    constant, *found = made.read_rows(written[0], "diagnosis")
    assert constant["model"] == "most frequent answer"
    assert float(constant["accuracy"]) == pytest.approx(
        np.bincount(made.LABELS[:, -1]).max() / made.NUM_CASES, rel=1e-5
    )
    assert [row["intermediate steps"] for row in found] == ["without", "with"] * 3 + ["with"] * 2 + [""] * 3
    means = [np.mean([accuracy(plan, plan.baselines(seed)[i], "baseline", -1) for seed in (0, 1)]) for i in (0, 1)]
    assert [float(row["accuracy"]) for row in found[:2]] == pytest.approx(means, rel=1e-5)
    assert float(found[1]["difference in accuracy"]) == pytest.approx(means[1] - means[0], rel=1e-4)
    for metric in METRICS[:3]:
        assert found[1][f"gain in {metric}"] == "gain in both runs"
    assert (found[0]["gain in accuracy"], found[0]["difference in accuracy"]) == ("", "")
    teacher = next(row for row in found if row["model"] == "teacher")
    assert [teacher[f"published: {name}"] for name in METRICS] == ["0.783", "0.895", "0.46", "0.966"]
    assert (found[-1]["model"], found[-1]["accuracy"]) == ("LLaVA-Med", "")


def test_steps_have_every_model_and_the_constant_answer(plan, written):
    found = made.read_rows(written[0], "steps")
    assert len(found) == made.CHAIN.num_steps * (1 + 3 + 2)
    constant = [row for row in found if row["model"] == "most frequent answer"]
    patients = np.array([f"P{case // 2}" for case in range(made.NUM_CASES)])
    weights = np.concatenate(list(draw_weights(patients, num_resamples=40, seed=0)))
    for step, row in enumerate(constant):
        right = made.LABELS[:, step] == np.bincount(made.LABELS[:, step]).argmax()
        ends = np.quantile([np.repeat(right, counts).mean() for counts in weights.astype(int)], [0.025, 0.975])
        figures = [float(row[f"accuracy{end}"]) for end in ("", " low", " high")]
        assert figures == pytest.approx([right.mean(), *ends], rel=1e-5)
    student = next(row for row in found if (row["step"], row["model"]) == ("Diagnosis", "student"))
    shares = [accuracy(plan, plan.main(seed), "student", -1) for seed in (0, 1)]
    assert float(student["accuracy"]) == pytest.approx(np.mean(shares), rel=1e-5)
    assert float(student["accuracy deviation"]) == pytest.approx(np.std(shares, ddof=1), rel=1e-4)
    assert float(student["accuracy low"]) < np.mean(shares) < float(student["accuracy high"])


def test_components_say_what_helps_and_what_is_not_shown_to(written):
    folder, _ = written
    found = {row["model"]: row for row in made.read_rows(folder, "components")}
    teachers = ["teacher", "teacher without memory", "teacher without text", "teacher without write-back"]
    assert list(found)[:5] == ["most frequent answer", *teachers]
    assert found["teacher without memory"]["mean accuracy without it"] == "lower in both runs"
    assert found["teacher without text"]["mean accuracy without it"] == "no difference shown"
    assert found["teacher without memory"]["published: Detection"] == "0.737"
    assert found["student without memory"]["published: Detection"] == ""  # the paper takes it from the teacher


def test_differences_are_paired_and_have_p_values(plan, written):
    first, *others = made.read_rows(written[0], "components_differences")
    assert 1 + len(others) == 8 * made.CHAIN.num_steps
    assert (first["model"], first["less"], first["step"]) == ("teacher without memory", "teacher", "Detection")
    without, full = (
        np.mean([accuracy(plan, cell(seed), "teacher", 0) for seed in (0, 1)])
        for cell in (lambda seed: plan.ablation("without memory", seed), plan.main)
    )
    assert float(first["accuracy"]) == pytest.approx(without - full, rel=1e-4)
    assert 0 <= float(first["p"]) < 0.05
    assert first["accuracy is"] == "lower in both runs"


def test_cells_are_shared_and_none_is_run_again(plan, monkeypatch):
    monkeypatch.setattr(plan.cells, "_run", lambda cell: pytest.fail(cell.name))
    names = ("diagnosis", "steps", "components")
    everything = [cell for name in names for cell in find_recipe(name).list_cells(plan)]
    plan.cells.run(everything)
    assert len(everything) == 2 * (7 + 4 + 6)


def test_a_finished_cell_is_known_by_what_changes_its_results_and_its_workdir_may_be_moved(tmp_path):
    plan, moved = made.make_plan(tmp_path / "here"), made.make_plan(tmp_path / "there")
    main = plan.main(0)
    same = vary(main.settings, {"data.num_threads": 7, "features.folder": "elsewhere", "training.log_every": 3,
                                 "evaluation.num_resamples": 17, "evaluation.coverage": 0.5})  # fmt: skip
    assert plan.cells.digest(Cell("another name", same)) == plan.cells.digest(main)
    other = [{"seed": 1}, {"training.joint_epochs": 4}, {"data.origins": ("Phantom A",)}, {"teacher.write_back": False}]
    digests = {plan.cells.digest(Cell("x", vary(main.settings, change))) for change in other}
    assert len(digests | {plan.cells.digest(main)}) == 5
    digests = [[own.cells.digest(cell) for cell in own.baselines(0)] for own in (plan, moved)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 6


def test_a_finished_cell_is_not_used_with_other_records(tmp_path, monkeypatch):
    root = tmp_path / "data"
    export_phantom(root, num_cases=12, seed=3, size=16)
    plan = made.make_plan(tmp_path / "tables", seeds=(0,))
    cell = Cell("x", vary(plan.main(0).settings, {"data.source": "folder", "data.root": str(root)}))

    class Finishing:
        place = Place(plan.cells.folder(cell), say=print)

        def execute(self):
            made.finish(plan.cells, cell, {"teacher": 0.5, "student": 0.5})

    monkeypatch.setattr(training_run, "Run", lambda settings, folder: Finishing())
    plan.cells.run([cell])
    plan.cells.run([cell])
    records = json.loads((root / "data.json").read_text())
    (root / "data.json").write_text(json.dumps(records[1:]))
    refuse(r"cell 'x' in .*: the records in .*data have changed", plan.cells.run, [cell])


@pytest.mark.parametrize("name", ["cases.csv", "cases.xlsx", "cases.parquet", "records.jsonl.gz"])
def test_the_digest_of_records_is_of_a_table_too_and_of_a_root_that_is_one_or_on_a_store(tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder := tmp_path / "data").mkdir()
    path, digests, settings = folder / name, set(), made.make_plan(tmp_path / "tables", seeds=(0,)).settings
    for content in (b"one", b"other"):
        path.write_bytes(content)
        roots = (folder, path, put_files(folder, monkeypatch))
        settings_of = [vary(settings, {"data.source": "folder", "data.root": str(root)}) for root in roots]
        of_folder, of_file, of_store = map(digest_records, settings_of)
        (folder / f"~${name}").write_bytes(b"Excel's lock")
        assert of_folder == of_file == of_store == digest_records(settings_of[0])
        digests.add(of_folder)
    assert len(digests) == 2


def test_waiting_cells_are_run_once_in_order_and_an_error_names_the_cell(tmp_path, monkeypatch):
    plan, ran = made.make_plan(tmp_path, seeds=(0,)), []
    made.finish(plan.cells, plan.main(0), {"teacher": 0.5, "student": 0.5})

    def run(cell):
        if cell.name == "without text":
            raise BadInput("config.x: found y")
        ran.append(cell.name)
        made.finish(plan.cells, cell, {"teacher": 0.5, "student": 0.5})

    monkeypatch.setattr(plan.cells, "_run", run)
    with pytest.raises(BadInput, match=r"cell 'without text' in .*: config.x: found y"):
        plan.cells.run([*find_recipe("components").list_cells(plan), *find_recipe("components").list_cells(plan)])
    assert ran == ["without memory"]


def test_ablations_change_what_they_say(tmp_path):
    plan = made.make_plan(tmp_path)
    settings = {name: plan.ablation(name, 0).settings for name in ABLATIONS}
    assert not settings["without memory"].teacher.memory
    assert not settings["without text"].teacher.text
    assert not settings["without write-back"].teacher.write_back
    assert settings["without distillation"].loss.soft_label_scale == 0
    assert settings["without channel alignment"].loss.channel_alignment_scale == 0
    last, with_steps = plan.baselines(0)[:2]
    assert (last.settings.baseline.steps, with_steps.settings.baseline.steps) == ("last", "all")
    assert last.settings.training.batch_size == last.settings.baseline.batch_size == 8
    weights = [plan.encoders(seed)[1].changes["image_encoder.weights"] for seed in (0, 1)]
    assert weights[0] != weights[1]  # the encoder from the teacher is that of the seed
    alone = made.make_plan(tmp_path, seeds=(1,))
    digests = [[own.cells.digest(cell) for cell in own.baselines(1)] for own in (plan, alone)]
    assert digests[0] == digests[1]
    refuse(r"config\.job='teacher' is not 'distill'", Plan, vary(plan.settings, {"job": "teacher"}), (0,), plan.cells)
    with pytest.raises(BadInput, match=r"config\.teacher\.memory, write_back and text must be True"):
        Plan(vary(plan.settings, {"teacher.memory": False}), (0,), plan.cells)


def test_restricted_predictions_choose_among_what_is_there():
    chain, split = Chain(made.CHAIN.steps[-1:]), made.make_split({"teacher": 0.5})
    kept = np.where(np.isin(made.LABELS, (0, 2)), made.LABELS, -100)
    last = comparing.last_step_alone(made.make_split({"teacher": 0.5}, labels=kept))
    answers = restrict(last, chain).predictions.logits["teacher"].argmax(-1)
    assert set(np.unique(answers)) == {0, 2}
    unrestricted = split.predictions.logits["teacher"][:, -1].argmax(-1)
    agree = np.isin(unrestricted, (0, 2))
    np.testing.assert_array_equal(answers[agree, 0], unrestricted[agree])
    nothing = comparing.last_step_alone(made.make_split({"teacher": 0.5}, labels=np.full_like(made.LABELS, -100)))
    refuse("no case has an answer to 'Diagnosis'", restrict, nothing, chain)
