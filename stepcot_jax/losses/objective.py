"""What teacher and student are trained on: sums over the steps, with every part named (paper: Eq. 17 to 24)."""

from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepcot_jax.losses.channel_alignment import Normaliser, channel_alignment_loss
from stepcot_jax.losses.hard_label import hard_label_loss
from stepcot_jax.losses.soft_label import soft_label_loss

GradientOf = Literal["features", "projection"]


class LossParts(flax.struct.PyTreeNode):
    """A total and the parts it is the weighted sum of; all float32.

    Attributes:
      total: scalar; like the rest not annotated with a shape, as trees of these hold axes or fetched arrays too.
      hard_label: [step], cross-entropy against the annotation (CE).
      soft_label: [step], distillation (KD), not yet weighted; None for the teacher.
      channel_alignment: [step], (CH), not yet weighted; None for the teacher.
      alignment_weight: [step], w_fw inside CH; None for the teacher.
    """

    total: Any
    hard_label: Any
    soft_label: Any = None
    channel_alignment: Any = None
    alignment_weight: Any = None


class LinearMap(flax.struct.PyTreeNode):
    """x @ kernel + bias, into the space where channel alignment compares teacher and student.

    Attributes:
      kernel: [width, projected].
      bias: [projected].
    """

    kernel: Any
    bias: Any

    def __call__(self, features: Float[Array, "case width"]) -> Float[Array, "case projected"]:
        """Project `features` [case, width] to [case, projected], in float32."""
        projected = features.astype(jnp.float32) @ self.kernel
        return projected + jnp.broadcast_to(self.bias, projected.shape)


def teacher_objective(
    *,
    logits: Float[Array, "case step answer"],
    labels: Int[Array, "case step"],
    answer_weights: Float[Array, "step answer"] | None = None,
) -> LossParts:
    """Sum over the steps of the mean cross-entropy of the annotated cases (paper: Eq. 17).

    Args:
      logits: [case, step, answer], absent answers at -1e9.
      labels: int [case, step], negative where not annotated.
      answer_weights: [step, answer] for class-weighted training.

    Returns:
      `LossParts` with the hard-label part alone.
    """
    hard = jax.vmap(_hard_label, in_axes=(1, 1, None if answer_weights is None else 0))(logits, labels, answer_weights)
    return LossParts(total=jnp.sum(hard), hard_label=hard)


def student_objective(
    *,
    student_logits: Float[Array, "case step answer"],
    student_features: Float[Array, "case student_width"],
    teacher_logits: Float[Array, "case step answer"],
    teacher_features: Float[Array, "case step teacher_width"],
    labels: Int[Array, "case step"],
    student_projection: LinearMap,
    teacher_projection: LinearMap,
    soft_label_scale: float = 0.5,
    channel_alignment_scale: float = 1.0,
    temperature: float = 2.0,
    normaliser: Normaliser = "cka",
    alignment_gradient: GradientOf = "features",
    answer_weights: Float[Array, "step answer"] | None = None,
) -> LossParts:
    """Sum over the steps of CE + 0.5 KD + 1.0 CH (paper: Eq. 24).

    The teacher's logits and features are constants. The teacher's projection is trained only if the caller
    differentiates with respect to it (departure "teacher's projection", see docs/departures.md).

    Args:
      student_logits: [case, step, answer], absent answers at -1e9.
      student_features: [case, student width], the image feature before any answer.
      teacher_logits: [case, step, answer].
      teacher_features: [case, step, teacher width], each step's own image feature.
      labels: int [case, step], negative where not annotated.
      student_projection: student width -> projected width.
      teacher_projection: teacher width -> projected width.
      soft_label_scale: weight of KD (alpha_KD).
      channel_alignment_scale: weight of CH (alpha_CH).
      temperature: of KD and CH, > 0.
      normaliser: of w_fw, see `alignment_weight`.
      alignment_gradient: "features" lets CH reach the student's features (paper); "projection" stops it before
        them, so that CH trains the student's projection alone (authors' code).
      answer_weights: [step, answer] for class-weighted training.

    Returns:
      `LossParts` with all parts.

    Raises:
      ValueError: a setting is none of those named.
    """
    if alignment_gradient not in ("features", "projection"):
        raise ValueError(f"found alignment_gradient {alignment_gradient!r}, accepted are 'features' and 'projection'")
    if alignment_gradient == "projection":
        student_features = jax.lax.stop_gradient(student_features)
    projected_student = student_projection(student_features)
    teacher_features = jax.lax.stop_gradient(teacher_features)

    def parts_of_step(
        logits: Array, soft: Array, feature: Array, step_labels: Array, weights: Array | None
    ) -> tuple[Array, ...]:
        annotated = step_labels >= 0
        alignment = channel_alignment_loss(
            teacher_projection=teacher_projection(feature),
            student_projection=projected_student,
            annotated=annotated,
            temperature=temperature,
            normaliser=normaliser,
        )
        distilled = soft_label_loss(
            teacher_logits=soft, student_logits=logits, annotated=annotated, temperature=temperature
        )
        return _hard_label(logits, step_labels, weights), distilled, alignment.loss, alignment.weight

    axes = (1, 1, 1, 1, None if answer_weights is None else 0)
    hard, soft, alignment, weight = jax.vmap(parts_of_step, in_axes=axes)(
        student_logits, teacher_logits, teacher_features, labels, answer_weights
    )
    total = jnp.sum(hard) + soft_label_scale * jnp.sum(soft) + channel_alignment_scale * jnp.sum(alignment)
    return LossParts(
        total=total, hard_label=hard, soft_label=soft, channel_alignment=alignment, alignment_weight=weight
    )


def _hard_label(logits: Array, labels: Array, weights: Array | None) -> Array:
    return hard_label_loss(logits=logits, labels=labels, annotated=labels >= 0, answer_weights=weights)
