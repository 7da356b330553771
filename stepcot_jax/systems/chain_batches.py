"""Batches of the phase "chain_grpo", and checks of its settings."""

import jax

from stepcot_jax.data.batches import batches_per_epoch, iterate, training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings


def check_settings(settings: Settings) -> None:
    """Refuse settings that leave nothing to do, or a teacher whose steps do not see the answers before them."""
    if not settings.grpo.epochs:
        raise BadInput("config.grpo.epochs: 0; expected 1 or more with config.job='chain_grpo'")
    if not (settings.teacher.memory and settings.teacher.write_back):
        raise BadInput(
            "config.teacher.memory and write_back must be True with config.job='chain_grpo': a step must see the "
            "answers before it"
        )


def read_batches(settings: Settings, dataset: Dataset) -> tuple[ReadAhead, int]:
    """Return the batches of GRPO, of `grpo.batch_size` cases, and their number in an epoch."""
    grpo, data, parallel = settings.grpo, settings.data, settings.parallel
    num_parts = (parallel.num_devices or jax.device_count()) * parallel.num_passes
    if grpo.batch_size % num_parts:
        raise BadInput(
            f"config.grpo.batch_size: {grpo.batch_size} is not a multiple of {num_parts} (devices x "
            "config.parallel.num_passes); config.parallel.num_devices changes the devices"
        )
    batches = training_batches(
        dataset,
        batch_size=grpo.batch_size,
        seed=settings.seed,
        sampling=data.sampling,
        augment=data.augment == "light",
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    num_workers = data.num_workers if dataset.features is None else 0
    length = grpo.updates_per_epoch or batches_per_epoch(dataset, grpo.batch_size)
    return iterate(batches, num_threads=data.num_threads, num_workers=num_workers), length
