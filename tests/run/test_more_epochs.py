import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuse
from run.small_run import read_log, small_run, small_settings, train, undot

from stepcot_jax.host.terminal import name_command
from stepcot_jax.run import chain_task, training_run
from stepcot_jax.run.run_checks import check_earlier_run, find_raised
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.training.checkpoints import Best


def started(tmp_path, **changes):
    for name in ("_CHECKPOINT_METADATA", "state", "progress"):
        (tmp_path / "checkpoints" / "1" / name).mkdir(parents=True)
    write_settings(tmp_path / "settings.json", small_settings(**changes))
    return tmp_path


@pytest.mark.slow
def test_a_plateau_halves_the_rate_and_ends_training_which_more_epochs_do_not_change(tmp_path, monkeypatch, capsys):
    run = small_run(tmp_path, monkeypatch, job="teacher", training__teacher_job_epochs=9)
    scores, rates = iter([0.5, 0.6, 0.6, 0.55, 0.59, 0.9]), []

    def validate(state):
        rates.append(float(state.optimizers["teacher"][1].hyperparams["learning_rate"]))
        return {"teacher": next(scores)}

    monkeypatch.setattr(run.task, "validate", validate)
    best = train(run, monkeypatch)
    # Best in epoch 2: two epochs without improvement halve the rate, three end the run after epoch 5.
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 1e-3, 1e-3, 5e-4], rtol=1e-6)
    assert best == {"teacher": Best(0.6, 10)}
    train(small_run(tmp_path, monkeypatch, job="teacher", training__teacher_job_epochs=12), monkeypatch)
    printed = capsys.readouterr().err
    assert "teacher_job_epochs was raised from 9 to 12" in printed
    assert "the schedule has ended training before its last epoch: more epochs change nothing" in printed
    assert [entry["step"] for entry in read_log(tmp_path, "val")] == [5, 10, 15, 20, 25]


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_rate_of_each_network_falls_over_its_epochs_or_stays(tmp_path, monkeypatch, schedule):
    chosen = {f"{section}__{name}": value for section in ("training", "baseline")
              for name, value in (("schedule", schedule), ("weight_decay", 0.0))}  # fmt: skip
    task = small_run(tmp_path / "both", monkeypatch, **chosen).task
    baseline = small_run(tmp_path / "baseline", monkeypatch, job="baseline", baseline__epochs=2, **chosen).task.system
    params, per_epoch = {"weight": jnp.zeros(2)}, task.batches_per_epoch
    optimizers = {**task.system.optimizers, "baseline": baseline.optimizer}
    for name, num_epochs in {"teacher": 4, "student": 3, "baseline": 2}.items():
        optimizer, rates = optimizers[name], []
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for _ in range(num_epochs * per_epoch + 1):
            updates, state = update({"weight": jnp.full(2, 0.1)}, state, params)
            rates.append(-float(updates["weight"][0]))  # a constant gradient makes Adam's step the rate itself
        updates_done = np.arange(len(rates)) / (num_epochs * per_epoch)
        expected = (1 + np.cos(np.pi * updates_done)) / 2 if schedule == "cosine" else np.ones(len(rates))
        np.testing.assert_allclose(rates, rates[0] * expected, rtol=1e-3, atol=rates[0] * 1e-4)


def test_a_schedule_over_the_whole_run_is_named():
    before = small_settings(sft__schedule="cosine", grpo__schedule="constant")

    def raised(job, key, **changes):
        old = load_settings(dataclasses.asdict(before), job=job, **undot(changes))
        (found,) = find_raised(old, load_settings(dataclasses.asdict(old), **{key: 99}))
        return found

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
    refuse(match, check_earlier_run, small_settings(**changes), workdir)


def test_a_batch_that_devices_cannot_divide_is_refused_before_loading(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_task, "load_inputs", None)
    words = r"config.training.batch_size: 8 is not a multiple of 3"
    refuse(words, training_run.Run, small_settings(parallel__num_devices=3), tmp_path)


@pytest.mark.slow
def test_a_run_says_what_reads_it_and_where_it_goes_on(tmp_path, monkeypatch, capsys):
    small_run(tmp_path / "a b", monkeypatch).say_next()
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(("next", "longer"))] == [
        f"next: {name_command()} report '{tmp_path / 'a b'}'",
        f"next: {name_command()} predict IMAGE --checkpoint='{tmp_path / 'a b'}'",
        "longer: the same command with --config.training.joint_epochs=N goes on, N above 3",
    ]


def test_a_phase_may_be_longer_if_none_follows(tmp_path):
    workdir = started(tmp_path, training__joint_epochs=0)
    raised = check_earlier_run(small_settings(training__teacher_epochs=2, training__joint_epochs=5), workdir)
    assert [(each.key, each.before, each.after) for each in raised] == [
        ("config.training.teacher_epochs", 1, 2),
        ("config.training.joint_epochs", 0, 5),
    ]
