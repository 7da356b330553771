"""The whole run at a small size: resumed equals uninterrupted, failures leave the last good state."""

import json

import numpy as np
import pytest
from training.small_run import leaves, small_run

from stepcot_jax.errors import BadInput, RunStopped


class Killed(Exception):
    pass


def final_state(run, monkeypatch):
    """Execute a run and return its last state (params, optimizers, key), fetched."""
    kept = {}
    test = run._test

    def remember(state, best):
        kept["state"], kept["best"] = [np.asarray(leaf) for leaf in leaves(state)], dict(best)
        return test(state, best)

    monkeypatch.setattr(run, "_test", remember)
    return run.execute(), kept["state"], kept["best"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    workdir = tmp_path_factory.mktemp("uninterrupted")
    report, state, best = final_state(small_run(workdir, patch), patch)
    patch.undo()
    return workdir, report, state, best


def entries(workdir, kind):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: v for key, v in line.items() if key != "cases_per_second"} for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("killed_in_epoch", [2, 4])
def test_resumed_equals_uninterrupted(uninterrupted, tmp_path, monkeypatch, killed_in_epoch):
    workdir, report, state, best = uninterrupted
    first = small_run(tmp_path, monkeypatch)
    validate, calls = first._validate, []

    def validate_or_die(state):
        calls.append(1)
        if len(calls) == killed_in_epoch:
            raise Killed
        return validate(state)

    monkeypatch.setattr(first, "_validate", validate_or_die)
    with pytest.raises(Killed):
        first.execute()
    resumed_report, resumed_state, resumed_best = final_state(small_run(tmp_path, monkeypatch), monkeypatch)
    assert resumed_best == best
    for found, expected in zip(resumed_state, state, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert resumed_report["test"] == report["test"]
    for kind in ("train", "val", "test"):
        assert entries(tmp_path, kind) == entries(workdir, kind)


def test_report_and_files_are_as_documented(uninterrupted):
    workdir, report, _, best = uninterrupted
    assert json.loads((workdir / "report.json").read_text()) == report
    assert report["num_cases"] == {"train": 42, "val": 9, "test": 9}
    for network in ("teacher", "student"):
        figures = report["test"][network]
        assert len(figures["steps"]) == 7
        assert figures["mean_accuracy"] == pytest.approx(np.mean([step["accuracy"] for step in figures["steps"]]))
    assert {name: entry["step"] for name, entry in report["best"].items()} == {k: b.step for k, b in best.items()}
    assert {"settings.json", "splits.json", "metrics.jsonl", "report.json", "tensorboard", "checkpoints"} <= {
        path.name for path in workdir.iterdir()
    }


def test_latest_and_best_checkpoints_are_kept_and_no_others(uninterrupted):
    workdir, _, _, best = uninterrupted
    kept = {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()}
    assert kept == {20, *(entry.step for entry in best.values())}


def test_best_is_the_highest_validation_score(uninterrupted):
    workdir, _, _, best = uninterrupted
    for network, entry in best.items():
        scores = {line["step"]: line[f"{network}/mean_accuracy"] for line in entries(workdir, "val")}
        assert entry.score == max(scores.values()) == scores[entry.step]


def test_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch)
    original = run._make_phases

    def poisoned(objective, optimizers):
        phases = original(objective, optimizers)
        step, calls = phases[1].step, []

        def poison(state, batch, text_features):
            calls.append(1)
            if len(calls) == 3:
                batch = {**batch, "images": batch["images"] * np.float32("nan")}
            return step(state, batch, text_features)

        phases[1] = phases[1].__class__(phases[1].name, phases[1].num_epochs, poison)
        return phases

    monkeypatch.setattr(run, "_make_phases", poisoned)
    with pytest.raises(RunStopped, match=r"step 8: teacher/hard_label/Detection is nan; checkpoint 5 holds the last"):
        run.execute()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == ["5"]


def test_a_used_workdir_is_not_overwritten_without_resume(uninterrupted, monkeypatch):
    workdir, *_ = uninterrupted
    with pytest.raises(BadInput, match=r"found checkpoints of an earlier run, accepted are .* config.resume=True"):
        small_run(workdir, monkeypatch, resume=False)


def test_other_settings_are_refused_on_resume_by_name(uninterrupted, monkeypatch):
    workdir, *_ = uninterrupted
    with pytest.raises(BadInput, match=r"found other values than now for config.loss.temperature;"):
        small_run(workdir, monkeypatch, loss__temperature=3.0)


def test_teacher_job_stops_early_and_halves_its_rate(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch, job="teacher", training__teacher_epochs=10)
    scores = iter([0.5, 0.6, 0.6, 0.55, 0.59, 0.9])
    rates = []

    def validate(state):
        rates.append(float(state.optimizers["teacher"][1].hyperparams["learning_rate"]))
        return {"teacher": next(scores)}

    monkeypatch.setattr(run, "_validate", validate)
    report = run.execute()
    # Best in epoch 2; two epochs without a better one halve the rate, three end the run after epoch 5.
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 1e-3, 1e-3, 5e-4], rtol=1e-6)
    assert list(report["test"]) == ["teacher"]
    assert report["best"]["teacher"] == {"step": 10, "validation_score": 0.6}


def test_best_by_mean_takes_one_epoch_for_both(tmp_path, monkeypatch):
    run = small_run(tmp_path, monkeypatch, evaluation__best="mean", training__joint_epochs=2)
    scores = iter([(0.9, 0.1), (0.5, 0.6), (0.2, 0.7)])
    monkeypatch.setattr(run, "_validate", lambda state: dict(zip(("teacher", "student"), next(scores), strict=True)))
    best = run.execute()["best"]
    assert best["teacher"] == best["student"] == {"step": 10, "validation_score": pytest.approx(0.55)}
