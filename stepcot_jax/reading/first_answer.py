"""Compile the programs of a first answer at the end of a run, so that readers do not wait for them."""

import pathlib

import numpy as np

from stepcot_jax.reading.image_reader import load
from stepcot_jax.run.given import read_given
from stepcot_jax.run.stored import read_stored


def prepare_first_answer(workdir: pathlib.Path) -> tuple[str, ...]:
    """Read an empty image with each network, so that the user's cache has the programs of `predict`."""
    run = read_stored(workdir)
    if run.problem or read_given(workdir).networks:
        return ()
    for name in run.names:
        load(workdir, model=name).read(np.zeros((8, 8), np.uint8))
    return run.names
