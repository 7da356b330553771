import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stepcot_jax.host.errors import BadInput, Preempted, RunStopped
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.training.checkpoints import Checkpoints, saved_steps
from stepcot_jax.training.devices import Devices, GlobalBatch
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.loop import Loop, Plan
from stepcot_jax.training.state import TrainState, apply_gradients
from stepcot_jax.training.system import Phase, Stream, System

ROOT = str(pathlib.Path(__file__).parents[2])
WEIGHTS = np.array([[2.0], [-1.0], [0.5]], np.float32)


class LinearRegression(System):
    """y = x w with noise added on the host in the second phase."""

    names, score_name, shared = ("line",), "negative_error", frozenset({"noise_scale"})

    def __init__(self, streams=(None, None), epochs=9):
        self.optimizer, self.streams, self.epochs = optax.sgd(0.05), streams, epochs

    def init(self, key, example):
        params = {"line": jnp.zeros((example["x"].shape[1], 1))}
        optimizers = {"line": self.optimizer.init(params), "epoch": jnp.zeros((), jnp.int32)}
        return TrainState(jnp.zeros((), jnp.int32), params, optimizers, jax.random.key_data(key))

    def phases(self):
        warm, main = self.streams
        return [
            Phase("warm", 1, self.update, stream=warm),
            Phase("main", self.epochs, self.update, stream=main, collect=self.collect),
        ]

    def collect(self, state, batch):
        """On the host: add noise that depends on the update number only, and the current prediction."""
        noise = np.random.default_rng(int(state.step)).standard_normal(batch["y"].shape).astype(np.float32)
        return {**batch, "y": batch["y"] + 0.01 * noise, "before": np.asarray(batch["x"] @ state.params["line"])}

    def update(self, state, batch, whole: GlobalBatch):
        def loss(params):
            error = batch["x"] @ params["line"] - batch["y"]
            return jnp.sum(error**2) / 8 * batch["noise_scale"]

        value, gradients = whole.add_up(jax.value_and_grad(loss)(state.params))
        state = apply_gradients(state, "line", self.optimizer, gradients)
        return state.replace(step=state.step + 1), {"loss": value}

    def predict(self, params, batch):
        return {"line": batch["x"] @ params["line"]}

    def evaluate(self, predictions):
        return {"line": -float(np.mean((predictions["line"] - VALIDATION["y"]) ** 2))}

    def after_epoch(self, state, scores):
        assert set(scores) == {"line"}
        epoch = state.optimizers["epoch"] + 1
        return state.replace(optimizers={**state.optimizers, "epoch": epoch})

    def is_done(self, state):
        return int(state.optimizers["epoch"]) >= 3


class Drawn:
    """Endless batches; batch n depends on the seed and n only."""

    def __init__(self, seed=0):
        self.seed, self.position = seed, 0

    def __next__(self):
        draw = np.random.default_rng([self.seed, self.position])
        self.position += 1
        x = draw.standard_normal((8, 3)).astype(np.float32)
        return {"x": x, "y": x @ WEIGHTS}

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


VALIDATION = next(Drawn(seed=9))


def interrupt():
    raise KeyboardInterrupt


def train(workdir, *, system=None, stop_at=None, stop=interrupt, num_devices=1, transform="pmap", asked=bool):
    system = system or LinearRegression()
    devices = Devices(transform=transform, num_devices=num_devices, shared=system.shared)
    scale = {"noise_scale": devices.replicate(np.float32(1.0))}
    workdir.mkdir(exist_ok=True)
    checkpoints = Checkpoints(workdir / "checkpoints")
    shapes = jax.eval_shape(lambda: system.init(jax.random.key(0), VALIDATION))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=devices.replicated), shapes)
    progress = None
    if checkpoints.latest_step is None:
        state = devices.replicate(system.init(jax.random.key(0), VALIDATION))
    else:
        state, progress, _ = checkpoints.restore_latest(like)
    updates = itertools.count(1)

    def prepare(batch):
        if next(updates) == stop_at:
            stop()
        return devices.put_training_rows(batch | scale)

    metrics = MetricsLog(workdir, first_step=int(state.step))
    loop = Loop(
        system=system,
        plan=Plan(system.phases(), Stream(Drawn(), 5)),
        compile_update=lambda phase, state, batch: devices.compile_update(phase.update, state=state, batch=batch),
        prepare=prepare,
        validate=lambda state: system.evaluate(system.predict(state.params, VALIDATION)),
        checkpoints=checkpoints,
        metrics=metrics,
        terminal=Terminal(silent=True),
        batch_size=8,
        log_every=2,
        checkpoint_seconds=0.0,
        asked_to_end=asked,
    )
    try:
        state, best = loop.run(state, progress)
    finally:
        checkpoints.close()
        metrics.close()
    return jax.device_get((state.params, state.optimizers, state.step)), best


def assert_same(found, expected):
    assert found[1] == expected[1]
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(tmp_path_factory.mktemp("line"))


def test_the_system_learns_and_its_best_is_kept(uninterrupted):
    (params, optimizers, step), best = uninterrupted
    assert (int(step), int(optimizers["epoch"])) == (15, 3)  # `is_done`, before the last epoch
    assert np.abs(params["line"] - WEIGHTS).max() < 0.5
    assert best["line"].step == 15
    assert best["line"].score > -0.3


@pytest.mark.parametrize("stop_at", [3, 8])
def test_a_run_that_was_interrupted_resumes_to_the_same_bits(uninterrupted, tmp_path, stop_at):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, stop_at=stop_at)
    assert_same(train(tmp_path), uninterrupted)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(uninterrupted, tmp_path):
    script = [sys.executable, __file__, str(tmp_path)]
    assert subprocess.run(script, env={**os.environ, "PYTHONPATH": ROOT}, timeout=120).returncode == -signal.SIGKILL
    assert saved_steps(tmp_path / "checkpoints")
    assert_same(train(tmp_path), uninterrupted)


def test_a_run_that_is_asked_to_end_saves_first(uninterrupted, tmp_path):
    looks = itertools.count()
    with pytest.raises(Preempted, match="saved after SIGTERM"):
        train(tmp_path, asked=lambda: next(looks) == 9)
    assert_same(train(tmp_path), uninterrupted)


def test_a_loss_that_is_not_finite_stops_by_its_name(tmp_path):
    system = LinearRegression()
    system.collect = lambda state, batch: {**batch, "y": batch["y"] * np.nan, "before": batch["y"]}
    with pytest.raises(RunStopped, match="step 6: loss is nan; checkpoint 5 holds the last good state"):
        train(tmp_path, system=system)


class Rewarded(LinearRegression):
    """Gives rewards of the host to the log: the third update of the phase has none."""

    seen = None

    def collect(self, state, batch):
        self.seen = step = int(state.step)
        reward = np.nan if step == 7 else float(step)
        numbers = {"reward": reward, "never_scored": np.nan}
        return {**super().collect(state, batch), "numbers": numbers}


def train_entries(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: v for key, v in line.items() if key != "cases_per_second"} for line in lines if line["kind"] == "train"
    ]


def test_numbers_that_a_phase_collects_are_logged_as_means_between_entries_and_nan_stops_nothing(tmp_path):
    found = train(tmp_path / "with", system=Rewarded())
    assert_same(found, train(tmp_path / "without"))
    entries = train_entries(tmp_path / "with")
    bare = [{key: entry[key] for key in entry if key not in ("reward", "never_scored")} for entry in entries]
    assert bare == train_entries(tmp_path / "without")
    rewards = {entry["step"]: entry["reward"] for entry in entries if "reward" in entry}
    # Updates 6 to 10 see steps 5 to 9, logged after two, four and five; the one of step 7 has no reward.
    assert rewards == {7: 5.5, 9: 8.0, 10: 9.0, 12: 10.5, 14: 12.5, 15: 14.0}
    assert all(entry["never_scored"] is None for entry in entries if "reward" in entry)


def test_phases_with_batches_of_their_own_resume_and_log_what_was_collected_before_a_save(tmp_path):
    def system():
        return Rewarded(streams=(Stream(Drawn(seed=1), 3), Stream(Drawn(seed=2), 4)))

    expected = train(tmp_path / "whole", system=system())
    assert int(expected[0][2]) == 3 + 2 * 4
    own = system()
    with pytest.raises(Preempted, match="step 6: saved"):
        train(tmp_path / "stopped", system=own, asked=lambda: own.seen == 5)  # between two entries of the log
    with pytest.raises(BadInput, match="has the positions of 2 streams of batches, expected 1"):
        train(tmp_path / "stopped")
    assert_same(train(tmp_path / "stopped", system=system()), expected)
    assert train_entries(tmp_path / "stopped") == train_entries(tmp_path / "whole")


def test_a_stream_that_was_added_for_a_later_phase_starts_with_its_first_batch():
    first, second = Stream(Drawn(seed=1), 3), Stream(Drawn(seed=2), 4)
    warm, main = Phase("warm", 1, None, stream=first), Phase("main", 2, None, stream=second)
    longer = Plan([warm, main], first)
    longer.restore_positions({"position": 3}, step=3)
    assert (first.batches.position, second.batches.position) == (3, 0)
    with pytest.raises(BadInput, match="has the positions of 1 streams of batches, expected 2"):
        longer.restore_positions({"position": 3}, step=4)
    with pytest.raises(ValueError, match=r"names of phases must differ; got \['warm', 'warm'\]"):
        Plan([warm, warm], first)


@pytest.mark.parametrize(("num_devices", "transform"), [(1, "pmap"), (4, "pmap"), (4, "shard_map")])
def test_a_shared_entry_may_be_collected_on_the_host(num_devices, transform):
    devices = Devices(transform=transform, num_devices=num_devices, shared=frozenset({"target"}))
    target = devices.put_training_rows({**VALIDATION, "target": WEIGHTS})["target"]
    assert isinstance(target, jax.Array)  # the transfer guard refuses host arrays
    assert target.sharding == devices.replicated
    np.testing.assert_array_equal(target, WEIGHTS)


@pytest.mark.parametrize("transform", ["pmap", "shard_map"])
def test_several_devices_agree_with_one(uninterrupted, tmp_path, transform):
    found, _ = train(tmp_path, num_devices=4, transform=transform)
    np.testing.assert_allclose(found[0]["line"], uninterrupted[0][0]["line"], rtol=1e-5, atol=1e-6)


if __name__ == "__main__":  # started by a test; kills itself in the middle of an epoch
    train(pathlib.Path(sys.argv[1]), stop_at=8, stop=lambda: os.kill(os.getpid(), signal.SIGKILL))
