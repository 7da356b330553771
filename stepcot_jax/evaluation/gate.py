"""A gate before reading: how far an image lies from the training images, in the space of its encoder.

Mahalanobis distance (Ledoit and Wolf's shrinkage) over a limit, a rank of the validation images' (docs/gate.md).
"""

import dataclasses
import functools
import math

import numpy as np
from jaxtyping import Float, Float32

from stepcot_jax.host.ranges import Positive, Share


@dataclasses.dataclass(frozen=True)
class Gate:
    """The distance to the training images and its limit."""

    mean: Float32[np.ndarray, "feature"]  # of the training images' features
    whitening: Float32[np.ndarray, "feature feature"]
    limit: Positive  # distance from which an image is outside
    false_alarms: Share  # share of images like the validation images that the limit leaves outside
    num_fitted: tuple[int, int]  # number of training images and of validation images

    def __post_init__(self) -> None:
        if self.whitening.shape != 2 * self.mean.shape or not np.isfinite([*self.mean, *self.whitening.flat]).all():
            raise ValueError("mean and whitening do not fit each other, or are not finite")

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
