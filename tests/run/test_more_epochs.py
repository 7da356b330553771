"""More epochs after the end of a run: equal to a longer run where schedules permit; other changes are refused."""

import dataclasses
import json

import numpy as np
import pytest
from run.small_run import Killed, assert_same, final_state, read_log, small_run, small_settings, stop_at, undot

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.run_checks import check_earlier_run, find_raised
from stepcot_jax.run.settings import load_settings, write_settings


def started(tmp_path, **changes):
    """A workdir with a checkpoint of a run with these settings, and the settings."""
    for name in ("_CHECKPOINT_METADATA", "state", "progress"):
        (tmp_path / "checkpoints" / "1" / name).mkdir(parents=True)
    write_settings(tmp_path / "settings.json", small_settings(**changes))
    return tmp_path


SHORTER, LONGER = ({"training__teacher_epochs": 0, "training__joint_epochs": number} for number in (1, 3))


@pytest.mark.slow
def test_more_epochs_equal_a_run_that_had_them_from_the_start_kills_included(tmp_path, monkeypatch, capsys):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    report, state, best = final_state(small_run(whole, monkeypatch, **LONGER), monkeypatch)
    small_run(longer, monkeypatch, **SHORTER).execute()
    first = json.loads((longer / "statistics.json").read_text())
    capsys.readouterr()
    run = small_run(longer, monkeypatch, **LONGER)
    with monkeypatch.context() as patch:
        stop_at(run.task, "validate", 2, patch)
        with pytest.raises(Killed):
            run.execute()
    left = {path.name for path in longer.iterdir()}  # what was fitted to the shorter run's weights is gone
    fitted = {"calibration.json", "gate.npz", "joint.json", "pairs.json"}
    assert not left & {*fitted, "statistics.json", "report.json", "predictions"}
    printed = capsys.readouterr().err
    assert "joint_epochs was raised from 1 to 3: the run goes on from its latest checkpoint\n" in printed
    assert "resuming from step 5" in printed
    again, found, found_best = final_state(small_run(longer, monkeypatch, **LONGER), monkeypatch)
    assert "was raised" not in capsys.readouterr().err
    assert found_best == best
    assert_same(found, state)
    assert again["test"] == report["test"]
    assert read_log(longer) == read_log(whole)
    statistics = [json.loads((folder / "statistics.json").read_text()) for folder in (longer, whole)]
    assert statistics[0] == statistics[1] != first
    with pytest.raises(BadInput, match=r"config.training.joint_epochs: lowered from 3 to 1; expected 3 or more"):
        small_run(longer, monkeypatch, **SHORTER)


@pytest.mark.slow
def test_a_plateau_halves_the_rate_and_ends_training_which_more_epochs_do_not_change(tmp_path, monkeypatch, capsys):
    run = small_run(tmp_path, monkeypatch, job="teacher", training__teacher_job_epochs=9)
    scores, rates = iter([0.5, 0.6, 0.6, 0.55, 0.59, 0.9]), []

    def validate(state):
        rates.append(float(state.optimizers["teacher"][1].hyperparams["learning_rate"]))
        return {"teacher": next(scores)}

    monkeypatch.setattr(run.task, "validate", validate)
    report = run.execute()
    # Best in epoch 2: two epochs without improvement halve the rate, three end the run after epoch 5.
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 1e-3, 1e-3, 5e-4], rtol=1e-6)
    assert list(report["test"]) == ["teacher"]
    assert report["best"]["teacher"] == {"step": 10, "validation_score": 0.6}
    small_run(tmp_path, monkeypatch, job="teacher", training__teacher_job_epochs=12).execute()
    printed = capsys.readouterr().err
    assert "teacher_job_epochs was raised from 9 to 12" in printed
    assert "the schedule has ended training before its last epoch: more epochs change nothing" in printed
    assert [entry["step"] for entry in read_log(tmp_path, "val")] == [5, 10, 15, 20, 25]


def test_a_schedule_over_the_whole_run_is_named():
    before = small_settings(training__given_answers="annealed", sft__schedule="cosine", grpo__schedule="constant")

    def raised(job, key, **changes):
        old = load_settings(dataclasses.asdict(before), job=job, **undot(changes))
        (found,) = find_raised(old, load_settings(dataclasses.asdict(old), **{key: 99}))
        return found

    assert (
        "config.training.given_answers='annealed' follows 99 epochs from now on"
        in raised("distill", "training.joint_epochs").describe()
    )
    assert raised("baseline", "baseline.epochs").schedules == ("config.baseline.schedule='cosine'",)
    assert raised("baseline", "baseline.epochs", **{"baseline.schedule": "constant"}).schedules == ()
    assert raised("grpo", "grpo.epochs").schedules == ()
    staged = {"curriculum.schedule": "epochs", "sft.pack_length": 0, "sft.warmup_epochs": 9.5}
    assert raised("sft", "sft.epochs", **staged).schedules == (
        "config.sft.schedule='cosine'",
        "config.sft.warmup_epochs=9.5",
        "config.curriculum.schedule='epochs'",
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"training__teacher_epochs": 2},
            r"teacher_epochs: raised from 1 to 2, but another phase follows; .* only config.training.joint_epochs may",
        ),
        ({"training__teacher_epochs": 0}, r"teacher_epochs: lowered from 1 to 0"),
        ({"training__joint_epochs": 2}, r"joint_epochs: lowered from 3 to 2; expected 3 or more"),
        ({"training__joint_epochs": 4, "loss__temperature": 3.0}, r"other values of config.loss.temperature; use"),
        ({"baseline__epochs": 60}, r"other values of config.baseline.epochs"),
        ({"resume": False}, r"checkpoints of an earlier run; .* config.resume=True"),
    ],
)
def test_other_changes_are_refused(tmp_path, changes, match):
    workdir = started(tmp_path)
    with pytest.raises(BadInput, match=match):
        check_earlier_run(small_settings(**changes), workdir)


def test_a_phase_may_be_longer_if_none_follows(tmp_path):
    workdir = started(tmp_path, training__joint_epochs=0)
    raised = check_earlier_run(small_settings(training__teacher_epochs=2, training__joint_epochs=5), workdir)
    assert [(each.key, each.before, each.after) for each in raised] == [
        ("config.training.teacher_epochs", 1, 2),
        ("config.training.joint_epochs", 0, 5),
    ]
