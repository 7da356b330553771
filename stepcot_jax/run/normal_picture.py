"""The mean picture of normal training cases, which maps put in place of parts of a picture (`reading.explain`)."""

import dataclasses
import pathlib

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.chain import NOT_APPLICABLE, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole

MIN_CASES, MAX_CASES = 30, 500
"""Fewer pictures could be recognised in their mean; of more, the first are taken."""

_EXPECTED = (
    "expected the normal_picture.npz of a run (running main again with the same --config and --workdir writes it)"
)


@dataclasses.dataclass(frozen=True)
class NormalPicture:
    """A mean of pictures at the encoder's size."""

    pixels: UInt8[np.ndarray, "size size 3"]
    num_cases: int


def mean_normal_picture(dataset: Dataset) -> NormalPicture | None:
    """Return the mean of training cases whose last answer denies a finding; None for fewer than `MIN_CASES`."""
    last = dataset.chain.steps[-1]
    if last.negative is None or fold(last.options[last.negative]) == fold(NOT_APPLICABLE):
        return None
    train = np.asarray(dataset.splits.train, int)
    chosen = train[dataset.labels[train, -1] == last.negative][:MAX_CASES]
    if len(chosen) < MIN_CASES:
        return None
    total = np.zeros(dataset.pixels[int(chosen[0])].shape)
    for index in chosen.tolist():
        total += dataset.pixels[index]
    return NormalPicture(np.rint(total / len(chosen)).astype(np.uint8), len(chosen))


def write_normal_picture(path: pathlib.Path, picture: NormalPicture) -> None:
    """Write a mean picture without pickle, atomically."""
    with writing_whole(path) as file:
        np.savez(file, allow_pickle=False, pixels=picture.pixels, num_cases=np.int64(picture.num_cases))


def read_normal_picture(path: pathlib.Path, *, size: int) -> NormalPicture | None:
    """Read the mean picture of a run whose encoder takes pictures of `size`; None if the run stored none."""
    if not path.exists():
        return None
    arrays = read_arrays(path, accepted="a mean picture", expected=_EXPECTED)
    pixels, num_cases = arrays.get("pixels"), arrays.get("num_cases")
    if pixels is None or num_cases is None:
        missing = "pixels" if pixels is None else "num_cases"
        raise BadInput(f"{path}: array {missing!r} is missing; {_EXPECTED}")
    if pixels.dtype != np.uint8 or pixels.shape != (size, size, 3):
        raise BadInput(f"{path}, 'pixels': {pixels.dtype} {pixels.shape} is not uint8 {(size, size, 3)}; {_EXPECTED}")
    if num_cases.dtype.kind not in "iu" or num_cases.shape != () or num_cases < MIN_CASES:
        raise BadInput(f"{path}, 'num_cases': {str(num_cases)[:40]} is not a number from {MIN_CASES}; {_EXPECTED}")
    return NormalPicture(pixels, int(num_cases))
