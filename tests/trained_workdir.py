"""A workdir with the files of a run but without training: random weights, two checkpoints, three networks."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import pytest
from run.small_run import SIZES, undot

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.encoders.prompts import hash_prompts, write_prompts
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.evaluation.calibration import Calibration, read_calibration
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.evaluation.joint import JointModel, learn_tree, name_joined, write_joints
from stepcot_jax.evaluation.operating_points import OperatingPoint, OperatingPoints, Rule
from stepcot_jax.host.own_folder import save, save_arrays
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reading import trained_model
from stepcot_jax.run import stored
from stepcot_jax.run.networks import make_networks
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.run.stored import describe_source, write_reading
from stepcot_jax.systems.networks import init_params, read_moments
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.state import TrainState

SIDE = 32
TINY = ResNet(widths=(8,), blocks_per_stage=1, stem_kernel=3, grid=2)
"""An encoder that compiles fast; tests use it instead of the published ones."""

BEST = {"teacher": 3, "student": 5, "plain": 5}


@contextlib.contextmanager
def tiny_encoder():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "make_resnet", lambda name: TINY)
        yield


def small_settings(**changes):
    """The quickstart settings with small images and narrow networks."""
    return load_settings("quickstart", **{**SIZES, **undot(changes)})


def random_params(settings, *, seed):
    networks = make_networks(settings, DEFAULT_CHAIN, TINY)
    text = jax.numpy.asarray(make_text(settings)) if settings.reads_prompts else None
    batch = {"images": jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), np.float32)}
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda batch: init_params(networks, key=key, batch=batch, text_features=text), batch)
    generator = np.random.default_rng(seed)

    def draw(leaf):
        """Kernels large enough for every answer to affect later steps; NumPy because the real init compiles slowly."""
        spread = 1.0 if leaf.ndim == 1 else (leaf.size / leaf.shape[-1]) ** -0.5
        return (generator.standard_normal(leaf.shape) * spread).astype(np.float32)

    return jax.tree.map(draw, shapes)


def make_text(settings):
    return hash_prompts(write_prompts(DEFAULT_CHAIN, settings.prompts.template), settings.prompts.width)


def write_gate(folder: pathlib.Path):
    """Give the run of `make_trained_workdir` a gate of its student, fitted on noise."""
    trained = trained_model.load_trained(folder, names=("student",))
    images = np.random.default_rng(0).normal(size=(60, SIDE, SIDE, 3)).astype(np.float32)
    params = {"image_encoder": trained.params["student"]["image_encoder"]}
    features = np.asarray(read_moments(params, {"images": images}, networks=trained.networks))
    save_arrays(folder / "gate.npz", {"student": fit_gate(features[:40], features[40:], false_alarms=0.1)})


def write_joint(folder: pathlib.Path):
    """Give the calibrated run of `make_trained_workdir` a joint model of its student: the third step decides the last.

    Returns the model.
    """
    labels = np.random.default_rng(0).integers(0, np.array(DEFAULT_CHAIN.answers_per_step), (2000, 7))
    labels[:, 6] = labels[:, 2]
    found = read_calibration(folder / "calibration.json", DEFAULT_CHAIN)
    tree = learn_tree(labels, DEFAULT_CHAIN.answers_per_step)
    model = JointModel(tree, found.temperatures["student"], (0.5,) * 7)
    write_joints(folder / "joint.json", {"student": model})
    joined = name_joined("student")
    temperatures = {**found.temperatures, joined: (1.0,) * 7}
    thresholds = {**found.thresholds, joined: found.thresholds["student"]}
    found = dataclasses.replace(found, temperatures=temperatures, thresholds=thresholds)
    save(folder / "calibration.json", found)
    return model


_BUILT = tempfile.TemporaryDirectory(prefix="stepcot-jax-workdir-")


def make_trained_workdir(folder: pathlib.Path, *, calibrated: bool = False):
    """Return the settings and the parameters by update; each process builds the workdir once and copies it."""
    settings, params = _build()
    shutil.copytree(_BUILT.name, folder)
    if calibrated:
        names, num_steps = ("teacher", "student"), DEFAULT_CHAIN.num_steps
        of_each = [dict.fromkeys(names, (number,) * num_steps) for number in (2.0, 0.7)]
        save(folder / "calibration.json", Calibration(0.9, *of_each))
    return settings, params


@functools.cache
def _build():
    settings, folder = small_settings(), pathlib.Path(_BUILT.name)
    write_settings(folder / "settings.json", settings)
    text = make_text(settings) if settings.teacher.text else None
    write_reading(folder, DEFAULT_CHAIN, text, trained_on=describe_source(settings))
    checkpoints = Checkpoints(folder / "checkpoints")
    best = {name: Best(0.5, step) for name, step in BEST.items()}
    params = {}
    for step in sorted(set(BEST.values())):
        params[step] = random_params(settings, seed=step)
        moments = {"teacher": jax.tree.map(np.zeros_like, params[step]["teacher"])}
        state = TrainState(np.int32(step), params[step], moments, jax.random.key(0))
        kept = {name: entry for name, entry in best.items() if entry.step <= step}
        checkpoints.save(state, {"batches": {}, "plateau": {}, "seconds": 0.0, "data": ""}, kept)
    checkpoints.wait()
    checkpoints.close()
    return settings, params


def write_operating_points(folder: pathlib.Path, *, chain=DEFAULT_CHAIN, threshold: float = 0.3):
    """Write a points.json with a point for every answer but the first of each step, and return the points."""
    points = {}
    for model in ("teacher", "student"):
        for place, step in enumerate(chain.steps):
            for answer, option in enumerate(step.options[1:], start=1):
                shares = [Interval(share, share - 0.05, share + 0.05) for share in (0.8, 0.7, 0.4, 0.9)]
                at = Interval(threshold + 0.01 * place + 0.001 * answer, 0.2, 0.5)
                points[model, step.name, option] = OperatingPoint(at, (9, 41), (8, 42), *shares)
    found = OperatingPoints.of_findings(Rule("sensitivity", target=0.8), points)
    save(folder / "points.json", found)
    return found
