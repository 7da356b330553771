"""Grain pipelines: cases -> batches. A training batch is a function of the seed and the step alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images import normalise

Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _ReadCase(grain.transforms.Map):
    """Position in a split -> pixels or features, labels and that position."""

    dataset: Dataset
    labels: np.ndarray
    indices: Sequence[int]

    def map(self, position: int) -> Batch:
        case = self.indices[position]
        features = self.dataset.features
        image = {"pixels": self.dataset.pixels[case]} if features is None else {"image_features": features[case]}
        return {**image, "labels": self.labels[case], "index": np.int32(position)}


@dataclasses.dataclass(frozen=True)
class _Finish(grain.transforms.Map):
    """Stacked pixels -> normalised images, features as they are; the rows of a short batch are filled up and marked."""

    dataset: Dataset
    batch_size: int

    def map(self, batch: Batch) -> Batch:
        num_cases = len(batch["labels"])
        num_missing = self.batch_size - num_cases
        present = np.arange(self.batch_size) < num_cases
        if num_missing:
            batch = {name: np.concatenate([rows, np.repeat(rows[-1:], num_missing, 0)]) for name, rows in batch.items()}
        batch = {**batch, "present": present}
        if "pixels" in batch:
            batch["images"] = normalise(batch.pop("pixels"), self.dataset.preprocessing)
        return batch


def _split_source(dataset: Dataset, split: str) -> tuple[grain.MapDataset, _ReadCase]:
    indices = getattr(dataset.splits, split)
    return grain.MapDataset.range(len(indices)), _ReadCase(dataset, dataset.labels, indices)


def batches_per_epoch(dataset: Dataset, batch_size: int) -> int:
    """Batches that make an epoch: as many as the training cases fill, at least one."""
    return max(1, len(dataset.splits.train) // batch_size)


def training_batches(dataset: Dataset, *, batch_size: int, seed: int) -> grain.MapDataset:
    """Endless training batches; item k is the batch of step k, whatever came before.

    Every case comes once before any comes again, in a new order each time; cases that do not fill a batch go
    into the next one, so none is left out.

    Args:
      dataset: the cases.
      batch_size: cases in a batch.
      seed: of the order.

    Returns:
      Batches with "images" float32 [case, height, width, 3] or "image_features" float32 [case, width], "labels" int32
      [case, step], "index" int32 [case] (position in the split) and "present" bool [case].
    """
    source, read = _split_source(dataset, "train")
    ordered = source.seed(seed).shuffle().repeat()
    return ordered.map(read).batch(batch_size, drop_remainder=True).map(_Finish(dataset, batch_size))


def evaluation_batches(dataset: Dataset, split: str, *, batch_size: int) -> grain.MapDataset:
    """The batches of a split in order; the last one is filled up with rows whose "present" is False.

    Args:
      dataset: the cases.
      split: "train", "val" or "test".
      batch_size: cases in a batch; a smaller split makes a smaller batch.

    Returns:
      Batches as from `training_batches`, every case exactly once.
    """
    source, read = _split_source(dataset, split)
    batch_size = min(batch_size, len(source))
    return source.map(read).batch(batch_size, drop_remainder=False).map(_Finish(dataset, batch_size))


def iterate(batches: grain.MapDataset, *, num_threads: int) -> grain.DatasetIterator:
    """An iterator that reads ahead in threads; `get_state` and `set_state` save and restore its position."""
    options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
    return iter(batches.to_iter_dataset(options))
