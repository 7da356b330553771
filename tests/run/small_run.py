"""A run that compiles in seconds: 60 phantom cases, three steps, a linear image encoder, narrow networks."""

import dataclasses
import json
import pathlib
from typing import Any

import flax.linen as nn
import jax
import msgspec
import numpy as np
import pytest
from sections import section

from stepcot_jax.chain import Chain
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.run import chain_task, inputs, training_run
from stepcot_jax.run.settings import load_settings
from stepcot_jax.training.checkpoints import restore_params, saved_steps
from stepcot_jax.training.state import flatten


class LinearEncoder(nn.Module):
    @nn.compact
    def __call__(self, images):
        return nn.Dense(8)(images[:, ::4, ::4, 0].reshape(len(images), -1))


SIZES = {
    **section("phantom", num_cases=60, image_size=32),
    **section(
        "teacher", width=8, num_layers=1, num_heads=2, attention_dropout=0.1, context_dropout=0.1, head_dropout=0.1
    ),
    **section("student", width=8, dropout=0.1),
    "data.split_fractions": (0.7, 0.15, 0.15),
    "image_encoder.image_size": 32,
    "loss.projection_width": 4,
    "prompts.width": 8,
}
SHORT = {
    **section(
        "training",
        batch_size=8,
        teacher_epochs=1,
        joint_epochs=3,
        schedule="constant",
        log_every=2,
        teacher_learning_rate=1e-3,
    ),
    "parallel.num_devices": 1,
    "evaluation.num_resamples": 50,  # the suite has eight virtual devices
}


def small_settings(**changes):
    """Settings of the run; changes by full name, with `__` for dots."""
    return load_settings("quickstart", **{**SIZES, **SHORT, **undot(changes)})


def undot(changes):
    return {name.replace("__", "."): value for name, value in changes.items()}


_LOAD = inputs.load_dataset


def shorten(dataset):
    """The same cases with the first and the last two of the seven steps, whose programs compile sooner."""

    def keep(values):
        return (values[0], *values[-2:]) if values else ()

    cases = [
        msgspec.structs.replace(case, answers=keep(case.answers), reasoning=keep(case.reasoning))
        for case in dataset.cases
    ]
    return dataclasses.replace(dataset, chain=Chain(keep(dataset.chain.steps)), cases=RecordTable(cases))


def shorten_runs(monkeypatch) -> None:
    def load(settings, **options):
        dataset = _LOAD(settings, **options)
        return shorten(dataset) if settings.data.source == "phantom" else dataset

    monkeypatch.setattr(inputs, "load_dataset", load)


def small_run(workdir: pathlib.Path, monkeypatch, **changes):
    """A run of three steps, whose programs are traced and compiled once per process for equal settings and networks."""
    share_programs(monkeypatch)
    shorten_runs(monkeypatch)
    return training_run.Run(small_settings(**changes), workdir)


def share_programs(monkeypatch) -> None:
    """Let runs have the linear encoder, and programs that are traced and compiled once for all of them."""
    monkeypatch.setattr(inputs, "make_resnet", lambda name: LinearEncoder())
    monkeypatch.setattr(training_run.Run, "_compile", _compile_once)
    monkeypatch.setattr(
        training_run.Run, "_init", property(lambda run: _first(run, "init", lambda: lambda: _INIT(run)))
    )
    monkeypatch.setattr(
        chain_task.ChainTask, "predict", property(lambda task: _first(task, "predict", lambda: _PREDICT(task)))
    )


# Tracing takes most of a small run's time, and tests repeat runs; kill_harness.py and test_two_process_run.py do not.
_INIT, _COMPILE, _PREDICT = training_run.Run._init, training_run.Run._compile, chain_task.ChainTask.predict.func
PROGRAMS: dict[tuple, Any] = {}


def _first(run, name, make):
    """What `make` returned for the first run with these networks and with settings that make the same programs."""
    task, sections = getattr(run, "task", run), dict(vars(run.settings))
    lengths = {"teacher_epochs": 0, "joint_epochs": 0, "checkpoint_minutes": 1.0, "log_every": 1}
    sections["training"] = dataclasses.replace(sections["training"], **lengths)
    left_out = {"evaluation", "resume"}
    if run.settings.loss.class_weights == "none":  # else an update holds numbers of the data's labels
        left_out |= {"data", "phantom", "start", "features", "loggers"}
    kept = {section: values for section, values in sections.items() if section not in left_out}
    key = (name, repr(kept), repr(getattr(run.system, "networks", None)), task.batches_per_epoch)
    if key not in PROGRAMS:
        PROGRAMS[key] = make()
    return PROGRAMS[key]


def _compile_once(run, phase, state, batch):
    shapes = {entry: array.shape for entry, array in batch.items()}
    return _first(run, f"{phase.name} {shapes}", lambda: _COMPILE(run, phase, state, batch))


def final_state(run, monkeypatch):
    """Execute a run; return its report, its last state on the host and its best checkpoints."""
    kept = {}
    run_loop = training_run.Loop.run

    def remember(loop, state, progress):
        state, best = run_loop(loop, state, progress)
        kept["state"], kept["best"] = jax.device_get(state), dict(best)
        return state, best

    with monkeypatch.context() as patch:
        patch.setattr(training_run.Loop, "run", remember)
        return run.execute(), kept["state"], kept["best"]


def train(run, monkeypatch):
    """Execute a run without its evaluation; return its best checkpoints."""
    with monkeypatch.context() as patch:
        patch.setattr(run.task, "finish", lambda outcome: {"best": dict(outcome.best)})
        return run.execute()["best"]


def read_log(workdir, *kinds):
    """Entries of the metrics log, of all or some kinds, without their speed."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    entries = [{name: number for name, number in line.items() if name != "cases_per_second"} for line in lines]
    return [entry for entry in entries if not kinds or entry["kind"] in kinds]


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def last_params(workdir):
    folder = workdir / "checkpoints"
    return restore_params(folder, saved_steps(folder)[-1])


class Killed(BaseException):
    """Ends a run without any clean-up of the loop."""


class Killer:
    """A logger that kills its run from an update on."""

    def __init__(self, update):
        self.update = update

    def write(self, numbers, *, step):
        if step >= self.update:
            raise Killed

    def close(self):
        pass


def kill_at_entry(run, update, monkeypatch):
    """Execute a run that is killed before its log entry of an update; return its latest checkpoint by then."""
    write, saved = training_run.MetricsLog.write, []

    def write_or_die(log, kind, *, step, **rest):
        if step == update:
            saved.append(run.checkpoints.latest_step)
            raise Killed
        write(log, kind, step=step, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(training_run.MetricsLog, "write", write_or_die)
        with pytest.raises(Killed):
            run.execute()
    return saved[0]


def stop_at(task, name, number, monkeypatch, stop=None):
    """Kill a run at the n-th call of a method of its task, or call `stop` there."""
    method, calls = getattr(task, name), []

    def stop_or_go_on(*arguments):
        calls.append(1)
        if len(calls) == number:
            if stop is None:
                raise Killed
            stop()
        return method(*arguments)

    monkeypatch.setattr(task, name, stop_or_go_on)


def first_params(run, monkeypatch):
    """The parameters before the first update, which is not compiled."""
    found = []

    def remember(loop, state, progress):
        found.append(jax.device_get(state.params))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(training_run.Run, "_compile_ahead", lambda *_: {})
        patch.setattr(training_run.Loop, "run", remember)
        with pytest.raises(Killed):
            run.execute()
    return {path: np.asarray(leaf) for path, leaf in flatten(found[0]).items()}
