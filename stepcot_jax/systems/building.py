"""From settings to networks, losses and a compiled prediction."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.losses.hard_label import inverse_frequency_weights
from stepcot_jax.models.baseline import Baseline
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.baseline_updates import read_as_baseline
from stepcot_jax.systems.gradients import Objective, encode_images, read_as_teacher
from stepcot_jax.training.state import Networks

Predict = Callable[[Any, dict[str, Any]], dict[str, jax.Array]]


def make_networks(settings: Settings, chain: Chain, image_encoder: nn.Module | None) -> Networks:
    """The modules that the settings describe, for the chain of the data and an image encoder to train along."""
    teacher, student, dtype = settings.teacher, settings.student, jnp.dtype(settings.training.compute_dtype)
    if image_encoder is not None and dtype != jnp.float32:
        image_encoder = image_encoder.clone(dtype=dtype)
    return Networks(
        teacher=Teacher(
            answers_per_step=chain.answers_per_step,
            width=teacher.width,
            num_layers=teacher.num_layers,
            num_heads=teacher.num_heads,
            negative_slope=teacher.negative_slope,
            attention_dropout_rate=teacher.attention_dropout,
            context_dropout_rate=teacher.context_dropout,
            head_dropout_rate=teacher.head_dropout,
            memory=teacher.memory,
            write_back=teacher.write_back,
            text=teacher.text,
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
    )


def make_objective(settings: Settings, dataset: Dataset) -> Objective:
    """The loss settings, with class weights counted on the training split."""
    loss = settings.loss
    weights = None
    if loss.class_weights == "inverse_frequency":
        labels = dataset.labels[np.asarray(dataset.splits.train)]
        weights = jnp.asarray(inverse_frequency_weights(labels=labels, answers_per_step=dataset.chain.answers_per_step))
    return Objective(
        temperature=loss.temperature,
        soft_label_scale=loss.soft_label_scale,
        channel_alignment_scale=loss.channel_alignment_scale,
        normaliser=loss.normaliser,
        alignment_gradient=loss.alignment_gradient,
        train_teacher_projection=loss.train_teacher_projection,
        target_dropout=loss.target_dropout,
        answer_weights=weights,
    )


def make_predict(
    networks: Networks,
    text_features: jax.Array | None,
    names: tuple[str, ...],
    *,
    whole: jax.sharding.Sharding | None = None,
) -> Predict:
    """A compiled function (params, batch) -> padded logits [case, step, answer] of the named networks.

    Args:
      networks: the modules.
      text_features: [step, width]; None without text.
      names: of the networks to ask.
      whole: where the logits are to lie, when the rows of the batch lie on several devices.
    """

    def predict(params: Any, batch: dict[str, Any]) -> dict[str, jax.Array]:
        features = encode_images(networks, params, batch)
        logits = {}
        if "teacher" in names:
            logits["teacher"] = read_as_teacher(networks, params["teacher"], features, text_features, key=None).logits
        if "student" in names:
            reading = networks.student.apply({"params": params["student"]}, image_features=features, deterministic=True)
            logits["student"] = reading.logits
        if "baseline" in names:
            logits["baseline"] = read_as_baseline(networks, params["baseline"], features, text_features)
        return logits

    return jax.jit(predict, out_shardings=whole)
