"""Grain pipelines from cases to batches. A training batch depends on the seed and the update number only."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import grain
import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache, augment_image
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, normalise_grey, repeat_grey
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.host.errors import BadInput

Batch = dict[str, Any]
Sampling = Literal["uniform", "inverse_frequency", "inverse_frequency_of_steps"]

# Separate streams of random numbers.
_SAMPLING, _AUGMENTATION = 1, 2
_ENDLESS = 2**50


@dataclasses.dataclass(frozen=True)
class _ReadBatch(grain.transforms.MapWithIndex):
    """Reads this process's rows of a global batch; every worker gets a copy, so it holds only what reading needs."""

    indices: Sequence[int]
    pixels: PixelCache
    features: Any
    rows: slice
    augment_seed: int | None

    def map_with_index(self, index: int, element: Int[np.ndarray, " row"]) -> Batch:
        positions = np.asarray(element, np.int32)
        local = positions[self.rows]
        # A process without rows in a short batch reads one for the shapes.
        read = local if len(local) else positions[-1:]
        cases = [self.indices[position] for position in read]
        shared = {"index": read, "num_cases": np.int32(len(local))}
        if self.features is not None:
            return {"image_features": np.stack([self.features[case] for case in cases]), **shared}
        images = [self.pixels.compact(case) for case in cases]
        if self.augment_seed is not None:
            images = [
                augment_image(image, np.random.default_rng((_AUGMENTATION, self.augment_seed, index, row)))
                for row, image in enumerate(images, self.rows.start)
            ]
        if any(image.ndim == 3 for image in images):
            images = [repeat_grey(image) if image.ndim == 2 else image for image in images]
        return {"pixels": np.stack(images), **shared}


@dataclasses.dataclass(frozen=True)
class _Finish:
    """Normalises pixels, adds labels, and pads a short batch with rows marked as not present."""

    preprocessing: Preprocessing
    labels: Int[np.ndarray, "position step"]
    num_rows: int

    def __call__(self, read: Batch) -> Batch:
        batch = dict(read)
        num_cases = int(batch.pop("num_cases"))
        batch["index"] = np.array(batch["index"])
        batch["labels"] = self.labels[batch["index"]]
        if (pixels := batch.pop("pixels", None)) is not None:
            batch["images"] = (normalise_grey if pixels.ndim == 3 else normalise)(pixels, self.preprocessing)
        num_missing = self.num_rows - len(batch["index"])
        if num_missing:
            batch = {name: np.concatenate([rows, np.repeat(rows[-1:], num_missing, 0)]) for name, rows in batch.items()}
        return {**batch, "present": np.arange(self.num_rows) < num_cases}


def _draw_rows(number: int, *, cumulative: np.ndarray, batch_size: int, seed: int) -> Int[np.ndarray, " row"]:
    """Draw the positions of an update with the probabilities by which `cumulative` grows at each case."""
    drawn = np.random.default_rng((_SAMPLING, seed, number)).random(batch_size)
    return np.searchsorted(cumulative, drawn, side="right")


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches by number, made in two stages so that the first may run in another process."""

    read: grain.MapDataset  # number -> uint8 pixels or features, and positions
    finish: _Finish  # output of `read` -> the batch

    def __len__(self) -> int:
        return len(self.read)

    def __getitem__(self, number: int) -> Batch:
        return self.finish(self.read[number])


def batches_per_epoch(dataset: Dataset, batch_size: int) -> int:
    """Return the number of batches in an epoch: as many as the training cases fill, at least one."""
    return max(1, len(dataset.splits.train) // batch_size)


def training_batches(
    dataset: Dataset,
    *,
    batch_size: int,
    seed: int,
    sampling: Sampling = "uniform",
    augment: bool = False,
    process_index: int = 0,
    process_count: int = 1,
) -> Batches:
    """Return endless training batches; item k is the batch of update k, independent of any other item.

    Uniform: every case comes once before any repeats, in a new order each time; a remainder goes into the next batch,
    so no case is dropped. Inverse frequency: each row draws an answer of the last step ("not annotated" counts as one),
    then a case with that answer, each with equal chance. Inverse frequency of steps (authors' code): the probability of
    a case is proportional to the mean, over its annotated steps, of 1 / number of cases with its answer.
    """
    if augment and dataset.features is not None:
        raise BadInput("augment requires images; these features were encoded ahead")
    rows = _rows(batch_size, process_index, process_count)
    indices, labels = dataset.splits.train, dataset.training_targets
    if sampling == "uniform":
        order = grain.MapDataset.range(len(indices)).seed(seed).shuffle().repeat()
        positions = order.batch(batch_size, drop_remainder=True)
    else:
        of_steps = sampling == "inverse_frequency_of_steps"
        cumulative = np.cumsum(_mean_inverse_frequencies(labels) if of_steps else _inverse_frequencies(labels[:, -1]))
        cumulative[-1] = 1.0  # no draw may fall beyond it by rounding
        draw = functools.partial(_draw_rows, cumulative=cumulative, batch_size=batch_size, seed=seed)
        positions = grain.MapDataset.range(_ENDLESS).map(draw)
    return _make_batches(dataset, indices, positions, rows, labels, augment_seed=seed if augment else None)


def evaluation_batches(
    dataset: Dataset,
    split: str,
    *,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
    multiple_of: int = 1,
) -> Batches:
    """Return the batches of a split in order; the last one is padded with rows whose "present" is False."""
    indices = getattr(dataset.splits, split)
    multiple_of = math.lcm(multiple_of, process_count)
    batch_size = -(-min(batch_size, len(indices)) // multiple_of) * multiple_of
    rows = _rows(batch_size, process_index, process_count)
    positions = grain.MapDataset.range(len(indices)).batch(batch_size, drop_remainder=False)
    labels = dataset.labels[np.asarray(indices, int)]
    return _make_batches(dataset, indices, positions, rows, labels, augment_seed=None)


def _rows(batch_size: int, process_index: int, process_count: int) -> slice:
    num_rows, remainder = divmod(batch_size, process_count)
    if remainder:
        raise BadInput(f"batch size {batch_size} is not a multiple of {process_count} processes")
    return slice(process_index * num_rows, (process_index + 1) * num_rows)


def _inverse_frequencies(answers: Int[np.ndarray, " case"]) -> np.ndarray:
    """Return the probability of each case such that every answer is equally frequent."""
    _, answer_of, counts = np.unique(answers, return_inverse=True, return_counts=True)
    return 1.0 / (len(counts) * counts[answer_of])


def _mean_inverse_frequencies(labels: Int[np.ndarray, "case step"]) -> np.ndarray:
    """Return the probability of each case, proportional to its annotated steps' mean inverse frequency."""
    annotated = labels != NOT_ANNOTATED
    inverse = np.stack([_inverse_frequencies(answers) * len(np.unique(answers)) for answers in labels.T], axis=1)
    means = np.where(annotated, inverse, 0).sum(axis=1) / np.maximum(annotated.sum(axis=1), 1)
    return means / means.sum()


def _make_batches(
    dataset: Dataset,
    indices: Sequence[int],
    positions: grain.MapDataset,
    rows: slice,
    labels: Int[np.ndarray, "position step"],
    *,
    augment_seed: int | None,
) -> Batches:
    read = _ReadBatch(indices, dataset.pixels, dataset.features, rows, augment_seed)
    finish = _Finish(dataset.preprocessing, labels, rows.stop - rows.start)
    return Batches(positions.map_with_index(read), finish)


def iterate(batches: Batches, *, num_threads: int, num_workers: int = 0) -> ReadAhead:
    """Return a `ReadAhead` over the batches, which are the same with any number of threads and workers."""
    return ReadAhead(batches.read, batches.finish, num_threads=num_threads, num_workers=num_workers)
