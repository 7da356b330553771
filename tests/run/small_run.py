"""A run that compiles in seconds: 60 phantom cases, a linear image encoder, narrow networks."""

import dataclasses
import json
import pathlib
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from configs import quickstart
from stepcot_jax.run import chain_task, inputs, training_run
from stepcot_jax.run.settings import make_settings
from stepcot_jax.training.state import flatten


class LinearEncoder(nn.Module):
    """Pixels -> 8 features."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(8)(images[:, ::4, ::4, 0].reshape(len(images), -1))


def small_settings(**changes):
    config = quickstart.get_config()
    config.phantom.num_cases = 60
    config.phantom.image_size = 32
    config.image_encoder.image_size = 32
    config.teacher.width = 8
    config.teacher.num_layers = 1
    config.teacher.num_heads = 2
    config.student.width = 8
    config.loss.projection_width = 4
    config.prompts.width = 8
    config.training.batch_size = 8
    config.training.teacher_epochs = 1
    config.training.joint_epochs = 3
    config.training.log_every = 2
    config.parallel.num_devices = 1  # the suite has eight virtual devices
    config.evaluation.num_resamples = 50
    for name, value in changes.items():
        config.update_from_flattened_dict({name.replace("__", "."): value})
    return make_settings(config)


def small_run(workdir: pathlib.Path, monkeypatch, **changes):
    """A run whose programs are traced and compiled once per process for equal settings and networks."""
    share_programs(monkeypatch)
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
    lengths = {"teacher_epochs": 0, "joint_epochs": 0, "checkpoint_minutes": 1.0, "log_every": 1}
    training = dataclasses.replace(run.settings.training, **lengths)
    settings = dataclasses.replace(run.settings, training=training, evaluation=None, resume=True)
    key = (name, repr(settings), repr(getattr(run.system, "networks", None)))
    if key not in PROGRAMS:
        PROGRAMS[key] = make()
    return PROGRAMS[key]


def _compile_once(run, phase, state, batch):
    shapes = {entry: array.shape for entry, array in batch.items()}
    return _first(run, f"{phase.name} {shapes}", lambda: _COMPILE(run, phase, state, batch))


def leaves(tree):
    """Arrays of a tree, with random keys as their data."""
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]


def final_state(run, monkeypatch):
    """Execute a run; return its report, its last state as NumPy arrays and its best checkpoints."""
    kept = {}
    run_loop = training_run.Loop.run

    def remember(loop, state, progress):
        state, best = run_loop(loop, state, progress)
        kept["state"], kept["best"] = [np.asarray(leaf) for leaf in leaves(state)], dict(best)
        return state, best

    with monkeypatch.context() as patch:
        patch.setattr(training_run.Loop, "run", remember)
        return run.execute(), kept["state"], kept["best"]


def entries(workdir, kind):
    """Entries of a kind of the metrics log, without their speed."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{key: v for key, v in line.items() if key != "cases_per_second"} for line in lines if line["kind"] == kind]


class Began(Exception):
    pass


def first_params(run, monkeypatch):
    """The parameters before the first update."""

    def remember(loop, state, progress):
        raise Began(jax.device_get(state.params))

    with monkeypatch.context() as patch:
        patch.setattr(training_run.Loop, "run", remember)
        with pytest.raises(Began) as found:
            run.execute()
    return {path: np.asarray(leaf) for path, leaf in flatten(found.value.args[0]).items()}
