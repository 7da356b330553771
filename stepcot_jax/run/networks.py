"""The networks and encoders that the settings of a chain's run describe, also for readers of the run."""

import dataclasses
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.run.settings import Settings
from stepcot_jax.systems.networks import Networks

if TYPE_CHECKING:
    from stepcot_jax.features.store import FrozenImageEncoder

TEACHER = {
    **{name: name for name in ("width", "num_layers", "num_heads", "negative_slope", "memory", "write_back", "text")},
    **{f"{part}_dropout": f"{part}_dropout_rate" for part in ("attention", "context", "head")},
}
"""Settings of the teacher -> fields of `Teacher`."""


def make_networks(settings: Settings, chain: Chain, image_encoder: nn.Module | None) -> Networks:
    """Return the modules that the settings describe."""
    teacher, student, dtype = settings.teacher, settings.student, jnp.dtype(settings.training.compute_dtype)
    if image_encoder is not None and dtype != jnp.float32:
        image_encoder = image_encoder.clone(dtype=dtype)
    return Networks(
        teacher=Teacher(
            answers_per_step=chain.answers_per_step,
            **{field: getattr(teacher, name) for name, field in TEACHER.items()} | {"text": settings.reads_prompts},
            remat=settings.parallel.remat,
            dtype=dtype,
        ),
        student=Student(
            answers_per_step=chain.answers_per_step, width=student.width, dropout_rate=student.dropout, dtype=dtype
        ),
        image_encoder=image_encoder,
        remat=settings.parallel.remat,
        projection_width=settings.loss.projection_width,
        baseline=Baseline(answers_per_step=chain.answers_per_step, hidden=settings.baseline.hidden, dtype=dtype),
        plain=LinearHeads(chain.answers_per_step) if "plain" in settings.trains.names else None,
    )


def trained_preprocessing(settings: Settings) -> Preprocessing:
    """Return the preprocessing of images for a trained encoder."""
    encoder = settings.image_encoder
    mean, std = encoder.mean, encoder.std
    reduced_jpeg = encoder.reduced_jpeg
    return Preprocessing(size=encoder.image_size, mean=mean, std=std, fit=encoder.fit, reduced_jpeg=reduced_jpeg)


def load_frozen_encoder(settings: Settings) -> "FrozenImageEncoder":
    """Return the encoder that `image_encoder.weights` names: of this package, or of transformers in PyTorch."""
    from stepcot_jax.features.frozen_encoders import load_encoder  # the readers of every kind of weights

    encoder: Any = load_encoder(settings.image_encoder.weights, settings.image_encoder.dtype)
    if not settings.image_encoder.reduced_jpeg:
        return encoder
    preprocessing = dataclasses.replace(encoder.preprocessing, reduced_jpeg=True)
    return dataclasses.replace(encoder, preprocessing=preprocessing)
