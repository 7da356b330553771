"""Share of a run's training time that checkpoints take, at the default intervals.

Two runs save once an epoch and every ten minutes: the quickstart's sizes with its own encoder, and the published sizes
on stored features of 7,048 training cases, with a state of 275 MB. The loop waits while a large state is written and
continues while a small one is. "waiting" is the time in which the loop stood still. A third run also waits for small
states; its share is an upper bound of their cost.
"""

import pathlib
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np

from configs import base, quickstart
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.features.importing import import_features
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import make_settings
from stepcot_jax.run.training_run import Run
from stepcot_jax.training import checkpoints
from stepcot_jax.training.checkpoints import Checkpoints
from stepcot_jax.training.loop import Loop

NUM_CASES = 10_068


def measure_checkpoints(rounds: int) -> dict[str, float]:  # noqa: ARG001 - a run has a dozen saves, its own rounds
    """Return the share of training time in % and the seconds per save, at two sizes."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        small, large = quickstart.get_config(), _published_sizes(folder)
        small.training.joint_epochs = 3
        found: dict[str, float] = {}
        for size, config in (("small", small), ("published", large)):
            found |= _measure(size, config, folder / size)
        with mock.patch.object(checkpoints, "SMALL_BYTES", 0):
            found |= _measure("small_waiting", small, folder / "waiting")
        return found


def _measure(size: str, config: Any, workdir: pathlib.Path) -> dict[str, float]:
    seconds = _time_saves(config, workdir)
    return {
        f"checkpoint_{size}_percent": 100 * seconds["save"] / seconds["train"],
        f"checkpoint_{size}_save_seconds": seconds["save"] / seconds["saves"],
    }


def _published_sizes(folder: pathlib.Path) -> Any:
    """Write random features of the published number of cases; return the config of two epochs on them."""
    config = base.get_config()
    config.phantom.num_cases = NUM_CASES
    config.phantom.image_size = 32
    config.image_encoder.image_size = 32
    config.image_encoder.name = "imported"
    config.image_encoder.weights = str(folder / "features")
    config.training.teacher_epochs, config.training.joint_epochs = 0, 2
    cases = load_dataset(make_settings(config), preprocessing=Preprocessing(size=32), require_images=False).cases
    features = np.random.default_rng(0).standard_normal((NUM_CASES, 512), dtype=np.float32)
    np.savez(folder / "features.npz", features=features, ids=np.array([case.image for case in cases]))
    import_features(folder / "features.npz", None, cases, folder / "features")
    return config


def _time_saves(config: Any, workdir: pathlib.Path) -> dict[str, float]:
    """Return seconds in the loop, in saves and in waiting for saves, and the number of saves."""
    seconds = {"save": 0.0, "train": 0.0, "saves": 0.0}
    save, wait, run_loop = Checkpoints.save, Checkpoints.wait, Loop.run
    inside: list[str] = []

    def timed(function: Any, name: str) -> Any:
        def run(*arguments: Any) -> Any:
            seconds["saves"] += function is save
            start = time.perf_counter()
            inside.append(name)
            try:
                return function(*arguments)
            finally:
                inside.pop()
                if name not in inside:  # a save waits for the previous one
                    seconds[name] += time.perf_counter() - start

        return run

    with (
        mock.patch.object(Checkpoints, "save", timed(save, "save")),
        mock.patch.object(Checkpoints, "wait", timed(wait, "save")),
        mock.patch.object(Loop, "run", timed(run_loop, "train")),
    ):
        Run(make_settings(config), workdir).execute()
    return seconds
