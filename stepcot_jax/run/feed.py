"""The batches of a run: the rows that this process loads, and their transfer to the devices."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from stepcot_jax.data.batches import Batches, evaluation_batches, iterate, training_batches
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.predictions import Predictions, collect
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.run.settings import Settings
from stepcot_jax.training.devices import Devices

_READ = frozenset({"images", "image_features", "labels", "targets", "index", "present"})
"""Batch entries of the data; a phase's `collect` may add others."""


class Feed:
    """The batches of a run, of which every process loads its own rows."""

    def __init__(self, settings: Settings, inputs: Inputs, devices: Devices) -> None:
        self.settings, self.inputs, self.devices = settings, inputs, devices

    @functools.cached_property
    def shared(self) -> dict[str, jax.Array]:
        """The prompts' vectors [step, width] on every device; empty without text."""
        features = self.inputs.text_features
        return {} if features is None else {"text_features": self.devices.replicate(features)}

    @property
    def example(self) -> dict[str, Any]:
        """A batch of one row, for shapes."""
        features = self.inputs.text_features
        return self.inputs.example | ({} if features is None else {"text_features": features})

    @property
    def batch_shapes(self) -> dict[str, Any]:
        """Shapes of a global training batch."""
        num_cases = self.settings.training.batch_size
        rows: dict[str, Any] = {
            name: jax.ShapeDtypeStruct((num_cases, *array.shape[1:]), array.dtype)
            for name, array in self.inputs.example.items()
        }
        return rows | self.shared

    def training_batches(self) -> ReadAhead:
        """Return endless batches, to be closed; batch n is a function of the seed and n."""
        batches = training_batches(
            self.inputs.dataset,
            batch_size=self.settings.training.batch_size,
            seed=self.settings.seed,
            sampling=self.settings.data.sampling,
            augment=self.settings.data.augment == "light",
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        return self._iterate(batches)

    def put_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch on the devices, with the prompts and collected entries, as a compiled update takes it."""
        collected = {name: array for name, array in batch.items() if name not in _READ}
        return self.devices.put_training_rows(self.inputs.prepare(batch) | self.shared | collected)

    def answer(self, predict: Callable[[dict[str, Any]], Any], split: str) -> Predictions:
        """Return the predictions for a split, the same in every process; each process loads its rows.

        Args:
          predict: a batch on the devices -> name of a network -> logits [case, step, answer] of all processes' rows.
        """
        batches = evaluation_batches(
            self.inputs.dataset,
            split,
            batch_size=self.settings.evaluation.batch_size,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            multiple_of=self.devices.num_devices,
        )

        def answered(read: ReadAhead) -> Iterator[dict[str, Any]]:
            for batch in read:
                logits = predict(self.devices.put_rows(self.inputs.prepare(batch) | self.shared))
                facts = {name: batch[name] for name in ("labels", "present", "index")}
                yield {**self.devices.gather_rows(facts), "logits": logits}

        with contextlib.closing(self._iterate(batches)) as read:
            return collect(lambda batch: batch["logits"], answered(read))

    def sample_rows(self, split: str, num_cases: int) -> dict[str, Any]:
        """Return prepared rows of a split on the host: all, or `num_cases` spread evenly; alike in every process."""
        parts = list(self.sample_batches(split, num_cases))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def sample_batches(self, split: str, num_cases: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of `sample_rows` in batches, so that the images of many cases need not fit in memory."""
        dataset, members = self.inputs.dataset, self.inputs.dataset.splits.by_name()[split]
        positions = np.unique(np.linspace(0, len(members) - 1, min(num_cases, len(members))).round().astype(int))
        chosen = tuple(members[position] for position in positions)
        batches = evaluation_batches(
            dataclasses.replace(dataset, splits=dataclasses.replace(dataset.splits, **{split: chosen})),
            split,
            batch_size=min(self.settings.evaluation.batch_size, len(chosen)),
        )
        with contextlib.closing(self._iterate(batches)) as read:
            for batch in read:
                rows = jax.device_get(self.inputs.prepare(batch))
                yield {name: array[np.asarray(batch["present"], bool)] for name, array in rows.items()}

    def _iterate(self, batches: Batches) -> ReadAhead:
        """Return batches that are read ahead: worker processes decode images, threads look up stored features."""
        data = self.settings.data
        num_workers = data.num_workers if self.inputs.dataset.features is None else 0
        return iterate(batches, num_threads=data.num_threads, num_workers=num_workers)
