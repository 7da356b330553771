"""The mean picture of normal training cases, which maps put in place of parts of a picture (`reading.explain`)."""

import dataclasses
import pathlib
from typing import Annotated

import msgspec
import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load_arrays, save_arrays

MIN_CASES, MAX_CASES = 30, 500
"""Fewer pictures could be recognised in their mean; of more, the first are taken."""

_NAME = "normal"


@dataclasses.dataclass(frozen=True)
class NormalPicture:
    """A mean of pictures at the encoder's size."""

    pixels: UInt8[np.ndarray, "size size 3"]
    num_cases: Annotated[int, msgspec.Meta(ge=MIN_CASES)]


def mean_normal_picture(dataset: Dataset) -> NormalPicture | None:
    """Return the mean of training cases whose last answer denies a finding; None for fewer than `MIN_CASES`."""
    last = dataset.chain.steps[-1]
    if last.normal is None:
        return None
    train = np.asarray(dataset.splits.train, int)
    chosen = train[dataset.labels[train, -1] == last.normal][:MAX_CASES]
    if len(chosen) < MIN_CASES:
        return None
    total = np.zeros(dataset.pixels[int(chosen[0])].shape)
    for index in chosen.tolist():
        total += dataset.pixels[index]
    return NormalPicture(np.rint(total / len(chosen)).astype(np.uint8), len(chosen))


def write_normal_picture(path: pathlib.Path, picture: NormalPicture) -> None:
    """Write a mean picture, atomically."""
    save_arrays(path, {_NAME: picture})


def read_normal_picture(path: pathlib.Path, *, size: int) -> NormalPicture | None:
    """Read the mean picture of a run whose encoder takes pictures of `size`; None if the run stored none."""
    picture = load_arrays(path, _NAME, NormalPicture)
    if picture is not None and picture.pixels.shape != (size, size, 3):
        raise BadInput(f"{path}: a picture of shape {picture.pixels.shape}; expected {(size, size, 3)}")
    return picture
