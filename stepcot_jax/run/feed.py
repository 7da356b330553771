"""The batches of a run of steps, of which every process loads its own rows."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from stepcot_jax.data.batches import Batches, evaluation_batches, iterate, training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.predictions import Predictions, collect
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.run.settings import Settings
from stepcot_jax.training.devices import Devices


def read_ahead(settings: Settings, dataset: Dataset, batches: Batches) -> ReadAhead:
    """Return batches that are read ahead: worker processes decode images, threads look up stored features."""
    num_workers = settings.data.num_workers if dataset.features is None else 0
    return iterate(batches, num_threads=settings.data.batching_threads, num_workers=num_workers)


class Feed:
    """The batches of a run, of which every process loads its own rows."""

    def __init__(self, settings: Settings, inputs: Inputs, devices: Devices) -> None:
        self.settings, self.inputs, self.devices = settings, inputs, devices

    @functools.cached_property
    def shared(self) -> dict[str, jax.Array]:
        """The prompts' vectors [step, width] on every device; empty without text."""
        features = self.inputs.text_features
        return {} if features is None else {"text_features": self.devices.replicate(features)}

    def training_batches(self) -> ReadAhead:
        """Return endless batches, to be closed; batch n is a function of the seed and n."""
        settings, dataset = self.settings, self.inputs.dataset
        batches = training_batches(
            dataset,
            batch_size=settings.training.batch_size,
            seed=settings.seed,
            sampling=settings.data.sampling,
            augment=settings.data.augment == "light",
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        return read_ahead(settings, dataset, batches)

    def answer(self, predict: Callable[[dict[str, Any]], Any], split: str) -> Predictions:
        """Return the predictions for a split, the same in every process; each process loads its rows.

        `predict` maps a batch on the devices to logits [case, step, answer] by network, of all processes' rows.
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

        with contextlib.closing(read_ahead(self.settings, self.inputs.dataset, batches)) as read:
            return collect(lambda batch: batch["logits"], answered(read))

    def sample(self, split: str, num_cases: int) -> np.ndarray:
        """Return the positions of all cases of a split, or of `num_cases` spread evenly."""
        number = len(self.inputs.dataset.splits.by_name()[split])
        return np.unique(np.linspace(0, number - 1, min(num_cases, number)).round().astype(int))

    def sample_rows(self, split: str, num_cases: int) -> dict[str, Any]:
        """Return prepared rows of a split on the host: all, or `num_cases` spread evenly; alike in every process."""
        parts = list(self.sample_batches(split, num_cases))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def sample_batches(self, split: str, num_cases: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of `sample_rows` in batches, so that the images of many cases need not fit in memory."""
        dataset, members = self.inputs.dataset, self.inputs.dataset.splits.by_name()[split]
        chosen = tuple(members[position] for position in self.sample(split, num_cases))
        batches = evaluation_batches(
            dataclasses.replace(dataset, splits=dataclasses.replace(dataset.splits, **{split: chosen})),
            split,
            batch_size=min(self.settings.evaluation.batch_size, len(chosen)),
        )
        with contextlib.closing(read_ahead(self.settings, dataset, batches)) as read:
            for batch in read:
                rows = jax.device_get(self.inputs.prepare(batch))
                yield {name: array[np.asarray(batch["present"], bool)] for name, array in rows.items()}
