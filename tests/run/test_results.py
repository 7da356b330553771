import dataclasses
import json
import math
import pathlib

import msgspec
import numpy as np
import pytest
from oracles.operating_points import operating_points
from refusals import refuse
from run.small_run import Killed

from stepcot_jax.evaluation.calibration import fit_calibration, read_calibration
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.consistency import count_pairs, make_rules, read_pairs, share_inconsistent
from stepcot_jax.evaluation.counting import correction_curve, fit_joints
from stepcot_jax.evaluation.joint import add_joined, learn_tree, name_joined, read_joint
from stepcot_jax.evaluation.joint_fit import read_written_back
from stepcot_jax.evaluation.operating_points import Rule, read_points
from stepcot_jax.evaluation.predictions import ValidationPredictions, read_predictions
from stepcot_jax.host.own_folder import load
from stepcot_jax.reading.finished import Report
from stepcot_jax.run.inputs import Feed
from stepcot_jax.run.plain_network import name_plain_command
from stepcot_jax.run.results import Validated, choose, fit_gates, fit_heads, measure_given, read_features, write_results
from stepcot_jax.run.settings import load_settings
from stepcot_jax.run.stored import check_sealed, read_reading
from stepcot_jax.systems.networks import encode_in_parts
from stepcot_jax.training.checkpoints import Best, restore_params

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def splits(trained):
    folder, chain = trained.workdir / "predictions", trained.run.task.dataset.chain
    return {name: read_predictions(folder / f"{name}.npz", chain) for name in ("val", "test")}


@pytest.fixture(scope="module")
def joints(trained):
    path, chain = trained.workdir / "joint.json", trained.run.task.dataset.chain
    return {model: read_joint(path, chain, model=model) for model in ("teacher", "student", "plain")}


@pytest.fixture(scope="module")
def train_labels(trained):
    dataset = trained.run.task.dataset
    return np.array([dataset.cases[index].answers for index in dataset.splits.train])


def test_the_calibration_is_fitted_to_the_validation_split(trained, splits, joints):
    chain = trained.run.task.dataset.chain
    found = read_calibration(trained.workdir / "calibration.json", chain)
    fitted, on_test = (
        fit_calibration(
            add_joined(split, joints).predictions,
            chain,
            confidence=0.95,
            patients=split.facts["patient_id"],
            joined=[name_joined(model) for model in joints],
        )
        for split in (splits["val"], splits["test"])
    )
    assert dataclasses.replace(found, errors={}) == fitted
    assert sum(found.temperatures[model] != on_test.temperatures[model] for model in joints) >= 2
    for model in joints:
        assert found.temperatures[name_joined(model)] == (1.0,) * chain.num_steps


def test_operating_points_are_chosen_on_the_validation_split_and_measured_on_the_test_split(trained, splits, joints):
    chain, evaluation = trained.run.task.dataset.chain, trained.run.settings.evaluation
    found = read_points(trained.workdir / "points.json", chain)
    assert found.rule == Rule("youden", 0.9, 1.0)
    expected = operating_points(
        add_joined(splits["val"], joints),
        add_joined(splits["test"], joints),
        chain,
        calibration=read_calibration(trained.workdir / "calibration.json", chain),
        rule=found.rule,
        num_resamples=evaluation.num_resamples,
    )
    assert found.points.keys() == expected.keys()
    assert len(expected) > 6
    for finding, point in expected.items():
        for name in ("threshold", "sensitivity", "specificity"):
            own = getattr(found.points[finding], name).value
            assert own == pytest.approx(getattr(point, name).value, nan_ok=True)
        assert found.points[finding].test == point.test


def test_pairs_are_those_of_the_training_labels(trained, train_labels):
    chain = trained.run.task.dataset.chain
    for (earlier, later), counts in read_pairs(trained.workdir / "pairs.json", chain).items():
        expected = np.zeros_like(counts)
        np.add.at(expected, (train_labels[:, earlier], train_labels[:, later]), 1)
        np.testing.assert_array_equal(counts, expected)


def test_the_joint_model_is_of_training_labels_and_validation_predictions(trained, splits, joints, train_labels):
    chain = trained.run.task.dataset.chain
    tree = learn_tree(train_labels, chain.answers_per_step)
    written = {
        model: read_written_back(*open_given_reader(trained, trained.run.task.feed, "val", model), tree.sizes)
        for model in joints
    }
    expected = fit_joints(tree, splits["val"].predictions, written, chain)
    for model, found in joints.items():
        assert len(found.exponents) == chain.num_steps
        assert dataclasses.replace(found, tree=expected[model].tree) == expected[model]
        for own, table in zip((tree.last, *tree.tables), (found.tree.last, *found.tree.tables), strict=True):
            np.testing.assert_array_equal(own, table)


def test_corrections_stand_beside_a_baseline_without_the_picture(trained, splits, joints):
    chain, test = trained.run.task.dataset.chain, splits["test"].predictions
    found = read_statistics(trained.workdir)["corrections"]["curves"]
    assert list(found)[-1] in ("naive Bayes without the picture", "joint model without the picture")
    assert len(found) == 3 * len(joints) + 1
    assert {len(curve) for curve in found.values()} == {chain.num_steps}
    for model, joint in joints.items():
        read, labels = open_given_reader(trained, trained.run.task.open_test(), "test", model)
        np.testing.assert_array_equal(labels, test.labels)
        expected = correction_curve(joint.join(test.logits[model], read), labels, chain)
        assert found[f"{model}, joint reading"] == pytest.approx(expected.tolist())


def open_given_reader(trained, feed, split, model):
    """Return a network's function from given answers to logits of a split, and the labels."""
    step = trained.report["best"][model]["step"]
    rows = feed.sample_rows(split, 1000)
    params = restore_params(trained.workdir / "checkpoints", step)
    return trained.run.task.system.given_reader(model, params, rows | trained.run.task.feed.shared), rows["labels"]


def read_statistics(workdir):
    return json.loads((workdir / "statistics.json").read_text())


def test_the_report_is_of_the_test_split(trained, splits):
    metrics = evaluate(splits["test"].predictions, trained.run.task.dataset.chain)
    for model, own in metrics.items():
        assert trained.report["test"][model]["mean_accuracy"] == own.mean_accuracy
    assert read_statistics(trained.workdir)["num_cases"] == len(splits["test"].predictions.labels)


def test_heads_on_the_teachers_encoder_stand_beside_the_networks(trained, splits):
    task, step = trained.run.task, trained.report["best"]["teacher"]["step"]
    params = {"image_encoder": restore_params(trained.workdir / "checkpoints", step)["image_encoder"]}
    opened, test = task.open_test(), splits["test"].predictions
    features, labels = map(np.concatenate, zip(*read_features(opened, task.system, params, "test", 1000), strict=True))
    np.testing.assert_array_equal(labels, test.labels)  # in the order of the networks' logits
    heads, num_cases = fit_heads(task.feed, task.system, params)
    own = evaluate(dataclasses.replace(test, logits={"heads": heads.read(features)}), task.dataset.chain)["heads"]
    found = load(trained.workdir / "report.json", Report).heads
    assert (found.num_cases, found.name) == (num_cases, "heads on the teacher's encoder")
    assert num_cases == len(task.dataset.splits.train)
    mean, last = found.figures[found.name]
    assert (mean.value, last.value) == (own.mean_accuracy, own.steps[-1].accuracy)
    for model in ("teacher", "student"):
        less = trained.report["test"][model]["mean_accuracy"] - mean.value
        assert found.figures[model][0].value == pytest.approx(less)
    assert "A verdict needs the plain network: python -m stepcot_jax.main --config=plain " in found.note


def test_heads_learn_the_networks_targets(trained):
    task, data = trained.run.task, trained.run.task.dataset
    step = trained.report["best"]["teacher"]["step"]
    params = {"image_encoder": restore_params(trained.workdir / "checkpoints", step)["image_encoder"]}
    hidden = np.zeros(data.labels.shape, bool)
    hidden[list(data.splits.train[::2])] = True
    cases = data.cases.with_labels(np.where(hidden, -1, data.labels), np.where(hidden, data.labels, -1))
    (own, _), *found = [fit_heads(task.feed, task.system, params)] + [
        fit_heads(
            Feed(task.settings, dataclasses.replace(task.inputs, dataset=dataset), task.devices), task.system, params
        )
        for dataset in (dataclasses.replace(data, cases=cases, uncertain=kind) for kind in ("positive", "ignore"))
    ]
    np.testing.assert_array_equal(found[0][0].bias, own.bias)  # an uncertain answer counts as a certain one
    assert np.abs(found[1][0].bias - own.bias).max() > 1e-3  # or not at all


def test_no_answer_is_said_to_move_the_plain_network(trained, splits, joints):
    run = trained.run.task
    validated = Validated(ValidationPredictions(splits["val"].predictions, splits["val"].facts), {})
    chosen = choose(run.dataset, validated, run.settings.evaluation)
    chosen = dataclasses.replace(chosen, joints={"plain": joints["student"], "student": joints["student"]})
    readers = dict.fromkeys(("plain", "student"), (np.zeros_like, splits["test"].predictions.labels))
    found = measure_given(readers, chosen, run.dataset.chain)
    assert list(found.reliance) == ["student"]
    assert {name.partition(",")[0] for name in found.corrections["curves"]} >= {"plain", "student"}


def test_the_plain_network_gets_the_teachers_data_batches_rate_and_epochs():
    changes = {"phantom.num_cases": 800, "training.joint_epochs": 2, "training.teacher_learning_rate": 3e-3, "seed": 3}
    command = name_plain_command(load_settings("quickstart", **changes)).split()
    assert command[:4] == ["python", "-m", "stepcot_jax.main", "--config=plain"]
    assert sorted(command[5:]) == [
        *("--config.baseline.epochs=2", "--config.baseline.learning_rate=0.003", "--config.phantom.num_cases=800"),
        "--config.seed=3",
    ]
    of_folder = name_plain_command(load_settings("step_cot", **{"data.root": "/private/data"}))
    assert of_folder.endswith("--config=plain:step_cot --workdir=runs/plain --config.data.root=FOLDER")


def write_anew(folder, dataset, splits, evaluation):
    validated = Validated(ValidationPredictions(splits["val"].predictions, splits["val"].facts), {})
    chosen = choose(dataset, validated, evaluation)
    run = {"given": measure_given({}, chosen, dataset.chain), "best": {"teacher": Best(0.5, 3)}, "wall_seconds": 1.0}
    found = {"validated": validated, "chosen": chosen, "test": splits["test"]}
    write_results(folder, dataset, **found, **run, evaluation=evaluation)


def test_a_kill_after_any_write_of_the_results_is_mended_by_the_next_start(trained, splits, tmp_path, monkeypatch):
    dataset, evaluation = trained.run.task.dataset, trained.run.settings.evaluation
    before, after = (dataclasses.replace(evaluation, num_resamples=0, coverage=share) for share in (0.8, 0.9))
    replace, written = pathlib.Path.replace, list[str]()

    def replace_and_die(path, target, at):
        replace(path, target)
        written.append(target.name)
        if len(written) == at:
            raise Killed

    def write(folder, evaluation, at=0):
        folder.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(pathlib.Path, "replace", lambda path, target: replace_and_die(path, target, at))
            write_anew(folder, dataset, splits, evaluation)
        check_sealed(folder)
        return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    expected = write(tmp_path / "whole", after)
    names = tuple(written)
    assert {"statistics.json", "points.json", "digests.sha256", "report.json"} <= set(names)
    for number in range(1, len(names) + 1):
        folder = tmp_path / f"killed_{number}"
        write(folder, before)
        written.clear()
        with pytest.raises(Killed):
            write(folder, after, at=number)
        if names.index("calibration.json") < number <= names.index("digests.sha256"):
            refuse("calibration.json: changed since it was written", check_sealed, folder)
        assert write(folder, after) == expected


def test_rules_are_those_of_the_training_labels_and_settings_reach_the_fit(trained, splits, tmp_path, capsys):
    """Written again with training chains that all have a nodule in a clear chest; other splits stay as they are."""
    run = trained.run
    train = set(run.task.dataset.splits.train)
    cases = [
        msgspec.structs.replace(case, answers=(0, case.answers[1], 1)) if index in train else case
        for index, case in enumerate(run.task.dataset.cases)
    ]
    dataset = dataclasses.replace(run.task.dataset, cases=cases)
    changes = {"coverage": 0.8, "coverage_confidence": 0.0, "operating_point": "cost", "miss_cost": 4.0}
    evaluation = dataclasses.replace(run.settings.evaluation, num_resamples=0, **changes)
    write_anew(tmp_path, dataset, splits, evaluation)
    chain = run.task.dataset.chain
    counts = read_pairs(tmp_path / "pairs.json", chain)
    of_test = count_pairs(splits["test"].predictions.labels, chain)
    rules, of_test = (make_rules(chain, counts=each) for each in (counts, of_test))
    statistics, differs = read_statistics(tmp_path), []
    for model, logits in splits["test"].predictions.logits.items():
        share = statistics["models"][model]["consistency"]["share_inconsistent"]
        answers = logits.argmax(axis=2)
        assert share == share_inconsistent(answers, rules)
        differs.append(share != share_inconsistent(answers, of_test))
    assert sum(differs) >= 2
    found = read_calibration(tmp_path / "calibration.json", chain)
    assert dataclasses.replace(found, errors={}) == fit_calibration(splits["val"].predictions, chain, coverage=0.8)
    for model, (error, exact) in found.errors.items():
        assert error == pytest.approx(statistics["models"][model]["steps"]["Diagnosis"]["ece_calibrated"])
        assert 0 < exact < 1
    assert read_points(tmp_path / "points.json", chain).rule == Rule("cost", 0.9, 4.0)
    told = f"does not settle Diagnosis as 'Normal': {len(train)} of {len(train)} training chains have another answer"
    assert told in capsys.readouterr().out


def test_cases_read_with_answers_given_are_spread_over_the_split(trained):
    feed, labels = trained.run.task.feed, trained.run.task.dataset.labels
    members = trained.run.task.dataset.splits.val
    every, some = feed.sample_rows("val", 10_000), feed.sample_rows("val", 5)
    np.testing.assert_array_equal(every["labels"], labels[list(members)])
    places = [round(place) for place in np.linspace(0, len(members) - 1, 5)]
    np.testing.assert_array_equal(some["labels"], labels[[members[place] for place in places]])


def test_each_network_gets_the_gate_of_its_own_encoder(trained):
    task, steps = trained.run.task, {name: best["step"] for name, best in trained.report["best"].items()}

    def params_of(name):
        return restore_params(trained.workdir / "checkpoints", steps[name])

    gates = fit_gates(task.feed, task.system, params_of, false_alarms=0.5, say=print)
    assert gates.keys() == {"teacher", "student", "plain"}
    for name, gate in gates.items():
        params = params_of(name)
        features = {
            split: encode_in_parts(task.system.networks, params, task.feed.sample_rows(split, 1000))
            for split in ("train", "val")
        }
        np.testing.assert_allclose(gate.mean, features["train"].mean(axis=0), rtol=1e-4, atol=1e-5)
        num_val = len(features["val"])
        # Half of the images like these may be outside: the limit is the distance of the one in the middle.
        assert np.sort(gate.scores(features["val"]))[math.ceil((num_val + 1) / 2) - 1] == pytest.approx(1, rel=1e-4)
        assert gate.num_fitted == (len(features["train"]), num_val)


@pytest.mark.parametrize(("share", "has_gate"), [(1.001, True), (0.999, False)])
def test_too_few_validation_images_for_the_false_alarms_give_no_gate(trained, share, has_gate):
    task, step = trained.run.task, trained.report["best"]["student"]["step"]
    params = restore_params(trained.workdir / "checkpoints", step)
    share /= len(task.dataset.splits.val) + 1
    gates = fit_gates(task.feed, task.system, lambda _: params, false_alarms=share, say=print)
    assert bool(gates) == has_gate


def test_a_run_says_what_it_was_trained_on(trained):
    found, num_train = read_reading(trained.workdir).trained_on, len(trained.run.task.dataset.splits.train)
    num_cases = trained.run.settings.phantom.num_cases
    assert found == f"phantoms (drawn images), {num_train} training cases of {num_cases}"
