"""What checkpoints cost at the default interval: the share of a run's training time that is spent in saving.

Two runs of the default settings' intervals, one checkpoint an epoch and one every ten minutes: the quickstart's sizes
with its own encoder, and the published sizes on stored features of 7,048 training cases, whose state takes 275 MB.
"""

import pathlib
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np

from configs import base, quickstart
from stepcot_jax.data.images import Preprocessing
from stepcot_jax.data.loading import load_dataset
from stepcot_jax.features.importing import import_features
from stepcot_jax.jobs import Run
from stepcot_jax.settings import make_settings
from stepcot_jax.training.checkpoints import Checkpoints
from stepcot_jax.training.loop import Loop

NUM_CASES = 10_068


def measure_checkpoints(rounds: int) -> dict[str, float]:  # noqa: ARG001 - a run has a dozen saves, its own rounds
    """Share of training time, %, and seconds of a save, at two sizes."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        small, large = quickstart.get_config(), _published_sizes(folder)
        small.training.joint_epochs = 3
        found: dict[str, float] = {}
        for size, config in (("small", small), ("published", large)):
            seconds = _time_saves(config, folder / size)
            found[f"checkpoint_{size}_percent"] = 100 * seconds["save"] / seconds["train"]
            found[f"checkpoint_{size}_save_seconds"] = seconds["save"] / seconds["saves"]
        return found


def _published_sizes(folder: pathlib.Path) -> Any:
    """Random features of as many cases as published, two epochs."""
    config = base.get_config()
    config.phantom.num_cases = NUM_CASES
    config.phantom.image_size = 32
    config.image_encoder.image_size = 32
    config.image_encoder.name = "imported"
    config.image_encoder.weights = str(folder / "features")
    config.training.teacher_epochs, config.training.joint_epochs = 0, 2
    cases = load_dataset(make_settings(config), preprocessing=Preprocessing(size=32), require_images=False).cases
    features = np.random.default_rng(0).standard_normal((NUM_CASES, 512), dtype=np.float32)
    np.savez(folder / "features.npz", features=features, ids=np.array([case.image_path for case in cases]))
    import_features(folder / "features.npz", None, cases, folder / "features")
    return config


def _time_saves(config: Any, workdir: pathlib.Path) -> dict[str, float]:
    """Seconds in the loop, of them in saves, and the number of saves."""
    seconds = {"save": 0.0, "train": 0.0, "saves": 0.0}

    def timed(function: Any, name: str) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[name] += time.perf_counter() - start
                seconds["saves"] += name == "save"

        return run

    with (
        mock.patch.object(Checkpoints, "save", timed(Checkpoints.save, "save")),
        mock.patch.object(Loop, "run", timed(Loop.run, "train")),
    ):
        Run(make_settings(config), workdir).execute()
    return seconds
