import contextlib
import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.random_params import apart
from refusals import refuse
from run import small_run
from run.small_run import Killed, Killer, LinearEncoder, assert_same, last_params, read_log

import stepcot_jax as sc
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run import fit as fit_module
from stepcot_jax.run import inputs, stored, training_run
from stepcot_jax.systems.baseline import BaselineSystem

pytestmark = pytest.mark.slow
PICTURES = {"phantom.num_cases": 60, "phantom.image_size": 32, "image_encoder.image_size": 32}
FURTHER = {
    "parallel.num_devices": 1,
    "training.log_every": 1,
    "training.checkpoint_minutes": 1e-9,
    "evaluation.num_resamples": 20,
}


def agree(*, teacher, student, labels, annotated):
    """Sum over annotated cases and steps of the disagreement, and their number."""
    distance = jnp.square(jax.nn.softmax(teacher) - jax.nn.softmax(student)).sum(-1)
    return (distance * annotated).sum(), annotated.sum()


@pytest.fixture(scope="module")
def data():
    return small_run.shorten(sc.load_dataset("base", **PICTURES))


def make_system(data, **changes):
    counts = data.chain.answers_per_step
    values = {
        "teacher": sc.Teacher(counts, width=8, num_layers=1, num_heads=2),
        "student": sc.Student(counts, width=8),
        "image_encoder": LinearEncoder(),
        "projection_width": 4,
        "teacher_epochs": 0,
        "joint_epochs": 1,
    }
    return sc.StepCoT(data.chain, **(values | changes))


def fit(system, data, workdir, **options):
    return sc.fit(system, data, workdir=workdir, batch_size=8, seed=3, **options, **FURTHER)


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    return fit(make_system(data), data, tmp_path_factory.mktemp("fit") / "plain")


PARTS, PROGRAMS = {"agree": (agree, 0.5)}, {}


@contextlib.contextmanager
def shared_programs():
    """Of runs with `PARTS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_run, "PROGRAMS", PROGRAMS)
        small_run.share_programs(patch)
        yield


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    with shared_programs():
        return fit(make_system(data, parts=PARTS), data, tmp_path_factory.mktemp("fit") / "whole")


def test_a_callers_part_is_logged_and_changes_what_is_learnt(whole, plain):
    logged = [line["student/agree"] for line in read_log(whole.workdir, "train")]
    assert len(logged) == 5
    assert all(0 < value < 2 for value in logged)
    ours, theirs = (last_params(run.workdir)["student"] for run in (whole, plain))
    assert apart(ours, theirs) > 1e-5


def test_a_system_starts_from_the_weights_of_another_run(plain, data, tmp_path, monkeypatch):
    def keep(loop, state, progress):
        found.append(jax.device_get(state.params))
        raise Killed

    found = []
    monkeypatch.setattr(sc.Run, "_compile_ahead", lambda *_: {})
    monkeypatch.setattr(training_run.Loop, "run", keep)
    for start in (plain, plain.workdir):
        with pytest.raises(Killed):
            fit(make_system(data), data, tmp_path / str(len(found)), start=start)
        assert_same(found[-1], last_params(plain.workdir))


def test_killed_and_resumed_equals_uninterrupted(whole, data, tmp_path):
    def start(parts, **options):
        return fit(make_system(data, parts=parts), data, tmp_path / "run", **options)

    with shared_programs():
        with pytest.raises(Killed):
            start(PARTS, writers=[Killer(3)])
        refuse(r"parts\['agree'\]: the run started with weight 0.5, now no such", start, {})
        run = start(PARTS)
    assert_same(last_params(run.workdir), last_params(whole.workdir))
    assert run.report["test"] == whole.report["test"]


def test_a_run_with_a_network_of_its_caller_is_read_with_the_system_alone(whole, data):
    refuse(r"trained by sc.fit with its own image_encoder; sc.load\(workdir, system=...\)", sc.load, whole.workdir)
    reading = sc.load(whole.workdir, system=make_system(data)).read(np.zeros((32, 32), np.uint8))
    assert set(reading.answers) == {step.name for step in data.chain.steps}
    refuse(r"parts\['agree'\]: the run started with weight 0.5, now no such", sc.Run, whole.settings, whole.workdir)


def test_values_that_settings_can_name_are_those_of_the_config(plain, data, tmp_path, monkeypatch):
    small_run.shorten_runs(monkeypatch)
    for module in (fit_module, inputs, stored):
        monkeypatch.setattr(module, "make_resnet", lambda name: LinearEncoder())
    changes = {"teacher.width": 8, "teacher.num_layers": 1, "teacher.num_heads": 2, "student.width": 8, "seed": 3}
    changes |= {"training.teacher_epochs": 0, "training.joint_epochs": 1, "loss.projection_width": 4}
    changes["image_encoder.name"] = "resnet_small"
    settings = sc.load_settings("base", **PICTURES, **changes, **FURTHER, **{"training.batch_size": 8})
    by_config = sc.Run(settings, tmp_path)
    by_config.execute()
    assert_same(last_params(by_config.workdir), last_params(plain.workdir))
    described, given = fit_module.describe_values(make_system(data), data)
    assert not given
    same = dataclasses.asdict(sc.load_settings("base", **described, **FURTHER, **{"training.batch_size": 8}))
    for section in ("teacher", "student", "loss", "image_encoder", "training"):
        assert same[section] == dataclasses.asdict(settings)[section], section
    assert not (tmp_path / "given.json").exists()
    assert sc.load(tmp_path).read(np.zeros((32, 32), np.uint8)).answers


def test_a_system_of_the_caller_trains_is_resumed_and_reported(data, tmp_path):
    """`Mine` of docs/api.md."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    code = re.search(r"^### sc\.System\n\n```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)[1]
    namespace = {"__name__": "page", "sc": sc, "dataset": data}
    exec(code, namespace)  # noqa: S102
    Mine = namespace["Mine"]  # noqa: N806
    arguments = {"workdir": tmp_path / "mine", "batch_size": 8, **FURTHER}
    run = sc.fit(Mine(data.chain), data, **arguments)
    assert 0 <= run.report["test"]["mine"]["mean_accuracy"] <= 1
    assert json.loads((run.workdir / "given.json").read_text())["system"].endswith("Mine")
    longer = sc.fit(Mine(data.chain, epochs=3), data, **arguments)
    assert read_log(longer.workdir, "train")[-1]["step"] > read_log(run.workdir, "train")[0]["step"]
    refuse(r"the run started with .*Mine, now those of settings", sc.fit, make_system(data), data, **arguments)
    refuse(r"sc.load\(workdir, system=...\) reads it", sc.load, run.workdir)


def test_a_baseline_is_described_and_reads_no_prompts_of_a_caller(data, tmp_path):
    counts = data.chain.answers_per_step
    weights = jnp.ones((len(counts), max(counts)))

    class Mine(sc.Student):
        pass

    for network, custom in ((sc.Student, ()), (Mine, ("student",))):
        student = network(counts, width=8, dtype=jnp.bfloat16)
        system = BaselineSystem(data.chain, student, optimizer=optax.sgd(0.1), remat=True, answer_weights=weights)
        described, given = fit_module.describe_values(system, data)
        assert (described["training.compute_dtype"], described["parallel.remat"]) == ("bfloat16", True)
        assert (system.names, given.networks, given.features) == (("student",), custom, ("answer_weights",))
        prompts = {"workdir": tmp_path, "prompts": np.zeros((len(counts), 8))}
        refuse(r"prompts: none of the system's networks reads prompts", sc.fit, system, data, **prompts)


def test_what_fit_cannot_take_is_said(data, tmp_path):
    with pytest.raises(BadInput, match=r"config.data.source: 'given' is of a dataset that a caller passed to sc.fit"):
        sc.Run("base", tmp_path / "c", **{"data.source": "given"})
    with pytest.raises(BadInput, match=r"prompts: must have shape \[3, width\]; got \[4, 8\]"):
        sc.fit(make_system(data), data, workdir=tmp_path / "b", prompts=np.zeros((4, 8), np.float32), **FURTHER)
    assert isinstance(sc.make_resnet("resnet_small"), ResNet)
