"""A run of a task defined outside the package: two phases, streams of their own, scores by phase, its own report."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from run.small_run import Killed, read_log, small_settings, stop_at

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import name_command
from stepcot_jax.run import chain_task, training_run
from stepcot_jax.run.task import Task
from stepcot_jax.training.state import TrainState, apply_gradients
from stepcot_jax.training.system import COLLECTED_NUMBERS, Phase, Stream, System

SCORES = {3: 0.7, 6: 0.2, 8: 0.5, 10: 0.4}
"""By step, after the epochs of "sft" (3 updates each) and "grpo" (2)."""


class Drawn:
    """Endless batches of 8 rows; batch n depends on the seed and n only. Counts those that are not closed."""

    num_open = 0

    def __init__(self, seed):
        self.seed, self.position = seed, 0

    def __next__(self):
        draw = np.random.default_rng([self.seed, self.position])
        self.position += 1
        x = draw.standard_normal((8, 3)).astype(np.float32)
        return {"x": x, "y": x @ np.array([[2.0], [-1.0], [0.5]], np.float32)}

    def get_state(self):
        return self.position

    def set_state(self, state):
        self.position = state

    def __enter__(self):
        Drawn.num_open += 1
        return self

    def __exit__(self, *_):
        Drawn.num_open -= 1


class LineSystem(System):
    """Linear regression; "grpo" begins with its start copied as the reference, which no update moves."""

    prompts = None

    def init(self, key, example):
        line = {"w": jax.random.normal(key, (example["x"].shape[1], 1))}
        params = {"policy": line, "reference": jax.tree.map(jnp.zeros_like, line)}
        optimizers = {"policy": optax.adam(0.1).init({"policy": line})}
        return TrainState(jnp.zeros((), jnp.int32), params, optimizers, jax.random.key_data(key))

    def phases(self):
        return [
            Phase("sft", 2, self.update),
            Phase("grpo", 2, self.update, stream=Stream(self.prompts, 2), collect=self.collect),
        ]

    def collect(self, state, batch):
        reply = np.asarray(batch["x"] @ state.params["policy"]["w"])
        return {**batch, "y": reply + 1, COLLECTED_NUMBERS: {"reward": float(state.step), "judged": np.nan}}

    def update(self, state, batch, whole):
        def loss(trained):
            return jnp.mean((batch["x"] @ trained["policy"]["w"] - batch["y"]) ** 2)

        value, gradients = whole.add_up(jax.value_and_grad(loss)({"policy": state.params["policy"]}))
        state = apply_gradients(state, "policy", optax.adam(0.1), gradients)
        return state.replace(step=state.step + 1), {"loss": value}

    def after_epoch(self, state, scores):
        if "grpo" in scores:
            return state
        # A copy: an update gives its state's buffers up, and cannot give up one of them twice.
        return state.replace(params={**state.params, "reference": jax.tree.map(jnp.copy, state.params["policy"])})


class LineTask(Task):
    """Keeps the parameters that it validated, and reports those of the best steps."""

    digest, batch_size = "of the line", 8

    def __init__(self, settings, *, workdir, devices, terminal):
        devices.check_batch_size(self.batch_size)
        self.workdir, self.devices, self.calls, self.validated = workdir, devices, [], {}
        self.system = LineSystem()

    @property
    def example(self):
        return {"x": np.zeros((1, 3), np.float32)}

    @property
    def batch_shapes(self):
        shape = jax.ShapeDtypeStruct
        return {"x": shape((8, 3), jnp.float32), "y": shape((8, 1), jnp.float32)}

    @contextlib.contextmanager
    def stream(self):
        with Drawn(1) as packs, Drawn(2) as self.system.prompts:
            yield Stream(packs, 3)

    def prepare(self, batch):
        return self.devices.put_training_rows(batch)

    def validate(self, state):
        step = int(state.step)
        self.validated[step] = jax.device_get(state.params)
        return {"sft" if step <= 6 else "grpo": SCORES[step]}

    next_commands = ("report {workdir}", "predict x.png --checkpoint={workdir}")

    def describe_data(self):
        return "lines: 1"

    def check_same_splits(self):
        self.calls.append("splits")

    def check_same_data(self, digest):
        self.calls.append(digest)

    def write_facts(self):
        (self.workdir / "policy.json").write_text("{}")

    def finish(self, outcome):
        assert outcome.seconds() > 0
        outcome.log({"grpo/score": outcome.best["grpo"].score})
        params = {name: jax.device_get(outcome.params_of(name)) for name in (*outcome.best, "of the last step")}
        report = {name: jax.tree.map(np.ndarray.tolist, tree) for name, tree in params.items()}
        (self.workdir / "report.json").write_text(json.dumps(report))
        return report


def make_run(workdir, monkeypatch, **changes):
    monkeypatch.setattr(training_run, "make_task", LineTask)
    return training_run.Run(small_settings(training__checkpoint_minutes=1e-9, **changes), workdir)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    patch, workdir = pytest.MonkeyPatch(), tmp_path_factory.mktemp("lines")
    run = make_run(workdir, patch)
    report = run.execute()
    patch.undo()
    return run, report


def test_a_finished_run_says_what_reads_it(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "a b", monkeypatch)
    run.say_next()
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith(("next", "longer"))] == [
        f"next: {name_command()} report '{tmp_path / 'a b'}'",
        f"next: {name_command()} predict x.png --checkpoint='{tmp_path / 'a b'}'",
        "longer: the same command with --config.training.joint_epochs=N goes on, N above 3",
    ]


def test_an_interrupted_run_says_where_it_goes_on(tmp_path, monkeypatch):
    run = make_run(tmp_path, monkeypatch)
    assert run.describe_resume() == "no checkpoint was saved yet: the same command starts over"
    for step in (5, 10):
        for name in ("_CHECKPOINT_METADATA", "state", "progress"):
            (tmp_path / "checkpoints" / str(step) / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "15").mkdir()  # not committed
    assert run.describe_resume() == "the same command goes on from checkpoint 10"


@pytest.mark.slow
def test_the_best_of_each_phase_is_reported(finished):
    run, report = finished
    for name, step in (("sft", 3), ("grpo", 8), ("of the last step", 10)):
        np.testing.assert_array_equal(report[name]["policy"]["w"], run.task.validated[step]["policy"]["w"])
    assert json.loads((run.workdir / "report.json").read_text()) == report
    assert (run.workdir / "policy.json").exists()
    assert (run.workdir / "settings.json").exists()
    assert run.task.calls == []
    assert Drawn.num_open == 0
    log = read_log(run.workdir)
    assert [line for line in log if line["kind"] == "test"] == [
        {"kind": "test", "step": 10, "epoch": 3, "grpo/score": 0.5}
    ]
    assert [line["reward"] for line in log if "reward" in line] == [6.5, 8.5]


@pytest.mark.slow
def test_the_reference_is_the_start_of_the_second_phase(finished):
    params = finished[0].task.validated
    for step in (8, 10):
        np.testing.assert_array_equal(params[step]["reference"]["w"], params[6]["policy"]["w"])
        assert np.abs(params[step]["policy"]["w"] - params[6]["policy"]["w"]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", [1, 7])
def test_a_run_resumes_within_either_phase(finished, tmp_path, monkeypatch, fail_at):
    first = make_run(tmp_path, monkeypatch, training__log_every=1)
    stop_at(first.task, "prepare", fail_at + 1, monkeypatch)
    with pytest.raises(Killed):
        first.execute()
    again = make_run(tmp_path, monkeypatch)
    assert again.execute() == finished[1]
    assert again.task.calls == ["splits", "of the line"]


@pytest.mark.slow
@pytest.mark.parametrize("transform", ["pmap", "shard_map"])
def test_the_copied_reference_stays_on_all_devices(finished, tmp_path, monkeypatch, transform):
    run = make_run(tmp_path, monkeypatch, parallel__num_devices=4, parallel__transform=transform)
    after_epoch, shardings = run.system.after_epoch, []

    def look(state, scores):
        state = after_epoch(state, scores)
        shardings.append((state.params["policy"]["w"].sharding, state.params["reference"]["w"].sharding))
        return state

    monkeypatch.setattr(run.system, "after_epoch", look)
    run.execute()
    for policy, reference in shardings:
        assert reference == policy
        assert len(reference.device_set) == 4
    for step, params in finished[0].task.validated.items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), run.task.validated[step], params)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [({"parallel__num_devices": 3}, "training"), ({"job": "chain_grpo", "grpo__batch_size": 9}, "grpo")],
)
def test_a_batch_that_devices_cannot_divide_is_refused_before_loading(tmp_path, monkeypatch, changes, setting):
    monkeypatch.setattr(chain_task, "load_inputs", None)
    with pytest.raises(BadInput, match=rf"config.{setting}.batch_size: [89] is not a multiple of [23]"):
        training_run.Run(small_settings(**{"parallel__num_devices": 2, **changes}), tmp_path)
