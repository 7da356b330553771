import dataclasses
import functools
import json
import shutil
import signal

import jax
import msgspec
import numpy as np
import pytest
from refusals import refuse
from run import small_run as small_run_module
from run.small_run import Killed, assert_same, final_state, kill_at_entry, read_log, small_settings, stop_at, train

from stepcot_jax import __version__
from stepcot_jax.data.dataset import HeldOut
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.host.errors import Preempted, RunStopped
from stepcot_jax.run import training_run
from stepcot_jax.systems import step_cot
from stepcot_jax.training.checkpoints import Best, saved_steps

pytestmark = pytest.mark.slow
small_run = functools.partial(small_run_module.small_run, training__joint_epochs=2, seed=2)
"""15 updates: an epoch of the teacher, two of both."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    workdir = tmp_path_factory.mktemp("uninterrupted")
    report, state, best = final_state(small_run(workdir, patch), patch)
    patch.undo()
    return workdir, report, state, best


def stop(run, monkeypatch, *call, **options):
    with monkeypatch.context() as patch:
        stop_at(run.task, *call, patch, **options)
        with pytest.raises((Killed, Preempted)) as stopped:
            run.execute()
    return str(stopped.value)


def damage(workdir, step, part="state"):
    """Truncate every file of a part of a checkpoint to zero bytes, as after a full disk."""
    for path in (workdir / "checkpoints" / str(step) / part).rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def test_a_run_goes_on_to_the_same_bits_whatever_stopped_it(uninterrupted, tmp_path, monkeypatch, capsys):
    """Killed at an epoch, ended early, killed and sent SIGTERM within an epoch, its last checkpoint damaged."""
    workdir = tmp_path / "run"

    def start(**changes):
        return small_run(workdir, monkeypatch, **changes)

    stop(start(training__joint_epochs=1), monkeypatch, "validate", 2)
    assert saved_steps(workdir / "checkpoints") == [5]
    start(training__joint_epochs=1).execute()
    assert "resuming from step 5" in capsys.readouterr().err
    shorter = (workdir / "statistics.json").read_text()

    # Killed at the fourth of five updates of the third epoch, after a checkpoint at the second.
    assert kill_at_entry(start(training__checkpoint_minutes=1e-9), 14, monkeypatch) == 12
    assert "resuming from step 10" in capsys.readouterr().err
    left = {path.name for path in workdir.iterdir()}  # what was fitted to the shorter run's weights is gone
    assert not left & {"calibration.json", "gate.npz", "pairs.json", "statistics.json", "report.json", "predictions"}

    before = signal.getsignal(signal.SIGTERM)
    said = stop(start(), monkeypatch, "prepare", 1, stop=lambda: signal.raise_signal(signal.SIGTERM))
    assert said.startswith("step 13: saved after SIGTERM")
    assert signal.getsignal(signal.SIGTERM) is before
    assert saved_steps(workdir / "checkpoints")[-1] == 13

    damage(workdir, 13, "progress")
    whole, *expected = uninterrupted
    report, *found = final_state(start(), monkeypatch)
    assert "renamed to damaged-13, and the run resumes from checkpoint 12" in capsys.readouterr().err
    assert (workdir / "checkpoints" / "damaged-13").is_dir()
    assert_same(found[0], expected[1])
    assert (found[1], report["test"]) == (expected[2], expected[0]["test"])
    assert read_log(workdir) == read_log(whole)
    assert (workdir / "statistics.json").read_text() == (whole / "statistics.json").read_text() != shorter
    refuse(r"config.training.joint_epochs: lowered from 2 to 1; expected 2 or more", start, training__joint_epochs=1)


def test_report_and_files_are_as_documented(uninterrupted):
    workdir, report, _, best = uninterrupted
    written = json.loads((workdir / "report.json").read_text())
    assert written == {"stepcot_jax": __version__, **json.loads(json.dumps(report))}
    assert report["num_cases"] == {"train": 42, "val": 9, "test": 9}
    for network in ("teacher", "student"):
        figures = report["test"][network]
        assert len(figures["steps"]) == 3
        counted = [step for step in figures["steps"] if len(step["answers"]) - len(step["left_out"]) > 1]
        assert figures["mean_accuracy"] == pytest.approx(np.mean([step["accuracy"] for step in counted]))
        scores = {line["step"]: line[f"{network}/mean_accuracy_own_and_given"] for line in read_log(workdir, "val")}
        assert best[network].score == max(scores.values()) == scores[best[network].step]
    assert {name: entry["step"] for name, entry in report["best"].items()} == {k: b.step for k, b in best.items()}
    names = [f"{name}.json" for name in ("settings", "splits", "pairs", "joint", "calibration", "reading/chain")]
    names += ["tensorboard", "predictions/val.npz", "predictions/test.npz"]
    assert [name for name in names if not (workdir / name).exists()] == []
    statistics = json.loads((workdir / "statistics.json").read_text())
    assert statistics["num_cases"] == 9
    for model in ("teacher", "student"):
        mean = statistics["models"][model]["intervals"]["mean_accuracy"]
        assert mean["value"] == pytest.approx(report["test"][model]["mean_accuracy"])
        assert mean["low"] <= mean["value"] <= mean["high"] != mean["low"]
        assert 0 < statistics["reliance"][model]["mean_movement"] < 1
    assert sum(group["num_cases"] for group in statistics["subgroups"] if group["grouping"] == "origin") == 9
    kept = {10, 15, *(entry.step for entry in best.values())}  # the latest two and the best
    assert set(saved_steps(workdir / "checkpoints")) == kept


def test_the_best_is_chosen_on_the_validation_split(trained):
    """The score that it was chosen by, in the log and in the report, is that of its validation predictions."""
    chain = trained.run.task.dataset.chain
    scores = {
        split: evaluate(read_predictions(trained.workdir / "predictions" / f"{split}.npz", chain).predictions, chain)
        for split in ("val", "test")
    }
    logged = {line["step"]: line for line in read_log(trained.workdir, "val")}
    for network, best in trained.report["best"].items():
        score = scores["val"][network].mean_accuracy
        assert best["validation_score"] == score != scores["test"][network].mean_accuracy
        assert logged[best["step"]][f"{network}/mean_accuracy"] == score
        assert score == max(line[f"{network}/mean_accuracy"] for line in logged.values())


def test_results_are_those_of_the_best_weights_and_not_of_the_last(trained):
    run, last = trained.run, max(trained.states)
    opened = run.task.open_test()
    for network, best in trained.report["best"].items():
        assert best["step"] < last
        for split in ("val", "test"):
            path = trained.workdir / "predictions" / f"{split}.npz"
            found = read_predictions(path, run.task.dataset.chain).predictions.logits[network]
            of_best, of_last = (
                run.task.predictions(trained.states[step], split, opened) for step in (best["step"], last)
            )
            np.testing.assert_array_equal(found, of_best.logits[network])
            assert np.abs(found - of_last.logits[network]).max() > 1e-3


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch)
    prepare, num_batches = run.task.inputs.prepare, iter(range(1, 100))

    def poison(batch):
        prepared = prepare(batch)
        is_training = len(batch["labels"]) == run.settings.training.batch_size
        if is_training and next(num_batches) == 8:
            return {**prepared, "images": prepared["images"] * np.float32("nan")}
        return prepared

    run.task.inputs = dataclasses.replace(run.task.inputs, prepare=poison)
    refuse(r"step 8: teacher/hard_label/Detection is nan; checkpoint 5 holds the last", run.execute, error=RunStopped)
    assert saved_steps(tmp_path / "checkpoints") == [5]


def test_a_gradient_that_explodes_stops_the_run(tmp_path, monkeypatch):
    """Classifiers that are large enough for an infinite gradient and a finite loss."""

    def enlarge(path, leaf):
        return leaf * np.float32(1e25) if "classifier" in jax.tree_util.keystr(path) else leaf

    run = small_run(tmp_path, monkeypatch, training__log_every=1)
    monkeypatch.setattr(
        run.task, "begin", lambda state: state.replace(params=jax.tree.map_with_path(enlarge, state.params))
    )
    refuse(r"step 1: teacher/gradient_norm is (nan|inf); no checkpoint .* may help", run.execute, error=RunStopped)
    assert not saved_steps(tmp_path / "checkpoints")


def test_settings_made_before_may_be_overridden(tmp_path, monkeypatch):
    monkeypatch.setattr(training_run.Run, "_load", lambda run: None)
    run = training_run.Run(small_settings(), tmp_path, **{"training.joint_epochs": 7})
    assert run.settings == small_settings(training__joint_epochs=7)
    refuse("joint_epoch is not a setting", training_run.Run, small_settings(), tmp_path, **{"training.joint_epoch": 7})


def test_best_by_mean_takes_one_epoch_for_both(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch, evaluation__best="mean")
    scores, names = iter([(0.9, 0.1, 1.0), (0.5, 0.6, 0.0), (0.2, 0.7, 1.0)]), ("teacher", "student", "plain")
    monkeypatch.setattr(run.task, "validate", lambda state: dict(zip(names, next(scores), strict=True)))
    best = train(run, monkeypatch)
    assert best["teacher"] == best["student"] == Best(pytest.approx(0.55), 10)  # plain does not count


def test_other_labels_are_refused_on_resume(uninterrupted, tmp_path, monkeypatch):
    workdir = shutil.copytree(uninterrupted[0], tmp_path / "copy")
    run = small_run(workdir, monkeypatch)
    inputs = run.task._test.open_test()
    first, *others = inputs.dataset.cases
    labels = ((first.answers[0] + 1) % 4, *first.answers[1:])
    cases = (msgspec.structs.replace(first, answers=labels), *others)
    run.task._test = HeldOut(dataclasses.replace(inputs, dataset=dataclasses.replace(inputs.dataset, cases=cases)))
    refuse(r"splits\.json: .* 1 images have another patient or other labels", run.execute)


def test_with_no_checkpoint_to_restore_the_run_stops_and_changes_nothing(uninterrupted, tmp_path, monkeypatch):
    workdir = shutil.copytree(uninterrupted[0], tmp_path / "copy")
    steps = saved_steps(workdir / "checkpoints")
    for step in steps:
        damage(workdir, step)
    refuse(r"no checkpoint can be restored \(15: .*nothing was changed here", small_run(workdir, monkeypatch).execute)
    assert saved_steps(workdir / "checkpoints") == steps


def test_a_checkpoint_of_other_sizes_is_refused_and_not_put_aside(uninterrupted, tmp_path, monkeypatch):
    workdir = shutil.copytree(uninterrupted[0], tmp_path / "copy")
    run = small_run(workdir, monkeypatch)
    networks = run.system.networks
    run.system.networks = networks.replace(student=networks.student.clone(width=7))
    refuse(r"checkpoints/15: params/student/.* has shape .*, expected \(7", run.execute)
    assert saved_steps(workdir / "checkpoints")[-1] == 15


def test_another_number_of_devices_goes_on_where_one_stopped(uninterrupted, tmp_path, monkeypatch):
    """And compiles no update of a phase that is over."""
    workdir = shutil.copytree(uninterrupted[0], tmp_path / "copy")
    shutil.rmtree(workdir / "checkpoints" / "15")
    assert saved_steps(workdir / "checkpoints")[-1] == 10
    traced = []

    def watch(make_step, name):
        def make(*arguments):
            step = make_step(*arguments)
            return lambda *inputs: traced.append(name) or step(*inputs)

        return make

    for name in ("make_teacher_update", "make_joint_update"):
        monkeypatch.setattr(step_cot, name, watch(getattr(step_cot, name), name))
    run = small_run(workdir, monkeypatch, parallel__num_devices=2)
    monkeypatch.setattr(run.task, "finish", lambda outcome: {})
    _, resumed, _ = final_state(run, monkeypatch)
    assert traced == ["make_joint_update"]
    close = lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)  # noqa: E731
    jax.tree.map(close, resumed, uninterrupted[2])
