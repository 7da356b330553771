"""The system of each `config.job`; a new system is added here."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.losses.step_cot import inverse_frequency_weights
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.baseline import BaselineSystem
from stepcot_jax.systems.chain_grpo import ChainGrpo
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.system import System


def make_system(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, *, batches_per_epoch: int
) -> System:
    """Return what the settings say to train, with class weights counted on the training split."""
    weights = _answer_weights(settings, dataset)
    if settings.job == "baseline":
        return BaselineSystem.from_settings(
            settings, dataset.chain, image_encoder, batches_per_epoch=batches_per_epoch, answer_weights=weights
        )
    if settings.job == "chain_grpo":
        return ChainGrpo.from_dataset(
            settings, dataset, image_encoder, batches_per_epoch=batches_per_epoch, answer_weights=weights
        )
    return StepCoT.from_settings(
        settings, dataset.chain, image_encoder, batches_per_epoch=batches_per_epoch, answer_weights=weights
    )


def _answer_weights(settings: Settings, dataset: Dataset) -> Array | None:
    if settings.loss.class_weights == "none":
        return None
    targets, answers = dataset.training_targets, dataset.chain.answers_per_step
    return jnp.asarray(
        inverse_frequency_weights(labels=targets.labels, answers_per_step=answers, distributions=targets.distributions)
    )
