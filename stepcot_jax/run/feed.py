"""What a process of a run reads of the data, and how it reaches the devices: batches to train on, splits to answer."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stepcot_jax.data.batches import Batches, batches_per_epoch, evaluation_batches, iterate, training_batches
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.evaluator import Predictions, collect
from stepcot_jax.features.inputs import Inputs
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.training.parallel import Devices


class Feed:
    """The batches of a run, of which every process reads its own rows.

    Args:
      settings: batch sizes, seed, sampling, augmentation, and who reads.
      inputs: the dataset and how a batch of it is made ready.
      devices: where batches go.
    """

    def __init__(self, settings: Settings, inputs: Inputs, devices: Devices) -> None:
        self.settings, self.inputs, self.devices = settings, inputs, devices

    @property
    def batches_per_epoch(self) -> int:
        """Batches, over all processes, until every training case could have been seen once."""
        return batches_per_epoch(self.inputs.dataset, self.settings.training.batch_size)

    def training_batches(self) -> ReadAhead:
        """Endless; batch n is a function of the seed and n. To be closed."""
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
        """A batch that was read, as arrays of all devices."""
        return self.devices.put_training_rows(self.inputs.prepare(batch))

    def answer(self, predict: Callable[[dict[str, Any]], Any], split: str) -> Predictions:
        """What networks say of a split; every process reads its rows, and all of them know all answers.

        Args:
          predict: a batch on the devices -> name of a network -> logits [case, step, answer] of all processes' rows.
          split: "train", "val" or "test".
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
                logits = predict(self.devices.put_rows(self.inputs.prepare(batch)))
                facts = {name: batch[name] for name in ("labels", "present", "index")}
                yield {**self.devices.gather_rows(facts), "logits": logits}

        with contextlib.closing(self._iterate(batches)) as read:
            return collect(lambda batch: batch["logits"], answered(read))

    def _iterate(self, batches: Batches) -> ReadAhead:
        """Workers read what is decoded; features made ahead are only looked up, which threads do at once."""
        data = self.settings.data
        num_workers = data.num_workers if self.inputs.dataset.features is None else 0
        return iterate(batches, num_threads=data.num_threads, num_workers=num_workers)
