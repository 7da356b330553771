"""A gate before reading: how far an image lies from the training images, in the space of its encoder.

Mahalanobis distance (Ledoit and Wolf's shrinkage) over a limit, a rank of the validation images' (docs/gate.md).
"""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float32

from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole

_PARTS = ("mean", "whitening", "limit", "false_alarms", "num_fitted")
_EXPECTED = "expected the gate.npz of a run (running main again with the same --config and --workdir writes it)"


@dataclasses.dataclass(frozen=True)
class Gate:
    """The distance to the training images and its limit."""

    mean: Float32[np.ndarray, "feature"]  # of the training images' features
    whitening: Float32[np.ndarray, "feature feature"]
    limit: float  # distance from which an image is outside
    false_alarms: float  # share of images like the validation images that the limit leaves outside
    num_fitted: tuple[int, int]  # number of training images and of validation images

    @functools.cached_property
    def _whitening(self) -> Float[np.ndarray, "feature feature"]:
        return self.whitening.astype(np.float64)  # once: for a batch of images it takes longer than the product

    def scores(self, features: Float[np.ndarray, "case feature"]) -> Float[np.ndarray, "case"]:
        """Return each image's distance over the limit: above 1 it is outside."""
        away = (features.astype(np.float64) - self.mean) @ self._whitening
        return np.sqrt((away**2).sum(axis=1)) / self.limit


def shrink_covariance(rows: Float[np.ndarray, "case feature"]) -> Float[np.ndarray, "feature feature"]:
    """Return Ledoit and Wolf's (2004) covariance: the empirical one, shrunk to a multiple of the identity."""
    (number, width), centred = rows.shape, rows - rows.mean(axis=0)
    empirical = centred.T @ centred / number
    scale, squares = np.trace(empirical) / width, (empirical**2).sum()
    noise = (((centred**2).sum(axis=1) ** 2).sum() / number - squares) / (width * number)
    noise = min(noise, spread := squares / width - scale**2)
    share = noise / spread if noise else 0.0
    return (1 - share) * empirical + share * scale * np.eye(width)


def fit_gate(
    training: Float[np.ndarray, "case feature"],
    validation: Float[np.ndarray, "case2 feature"],
    *,
    false_alarms: float,
) -> Gate | None:
    """Return the gate of a network; None with too few validation images for its limit, or if no feature varies."""
    rank = math.ceil((len(validation) + 1) * (1 - false_alarms) - 1e-9)
    if rank > len(validation) or len(training) < 2:
        return None
    training = training.astype(np.float64)
    spread = training.std(axis=0)
    spread[spread < 1e-6 * max(spread.max(), 1e-12)] = max(spread.max(), 1.0)  # a dead channel
    values, directions = np.linalg.eigh(shrink_covariance(training / spread))
    if not values.max() > 0:  # all training images are the same
        return None
    smallest = np.finfo(np.float32).eps * values.max()
    whitening = directions / np.sqrt(np.maximum(values, smallest)) / spread[:, None]
    gate = Gate(
        mean=training.mean(axis=0).astype(np.float32),
        whitening=whitening.astype(np.float32),
        limit=1.0,
        false_alarms=false_alarms,
        num_fitted=(len(training), len(validation)),
    )
    limit = float(np.sort(gate.scores(validation))[rank - 1])
    return dataclasses.replace(gate, limit=limit)


def write_gates(path: str | os.PathLike[str], gates: Mapping[str, Gate]) -> None:
    """Write the gates of a run's networks, by name, to one file without pickle, atomically."""
    arrays = {f"{name}/{part}": np.asarray(getattr(gate, part)) for name, gate in gates.items() for part in _PARTS}
    with writing_whole(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_gate(path: str | os.PathLike[str], model: str) -> Gate | None:
    """Read the gate of one network; None if there is no file, or it has none of this network."""
    path = pathlib.Path(path)
    if not path.exists():
        return None
    arrays = read_arrays(path, accepted="a gate", expected=_EXPECTED)
    if not any(name.startswith(f"{model}/") for name in arrays):
        return None
    missing = [part for part in _PARTS if f"{model}/{part}" not in arrays]
    if missing:
        raise BadInput(f"{path}: array '{model}/{missing[0]}' is missing; {_EXPECTED}")
    parts = [arrays[f"{model}/{part}"] for part in _PARTS]
    mean, whitening, limit, false_alarms, num_fitted = parts
    if (
        mean.ndim != 1
        or whitening.shape != (len(mean), len(mean))
        or (limit.shape, false_alarms.shape, num_fitted.shape) != ((), (), (2,))
        or any(part.dtype.kind not in "fi" or not np.isfinite(part).all() for part in parts)
        or not limit > 0
    ):
        raise BadInput(f"{path}, {model!r}: its arrays are not those of a gate; {_EXPECTED}")
    num_training, num_validation = map(int, num_fitted)
    return Gate(
        mean=mean.astype(np.float32),
        whitening=whitening.astype(np.float32),
        limit=float(limit),
        false_alarms=float(false_alarms),
        num_fitted=(num_training, num_validation),
    )
