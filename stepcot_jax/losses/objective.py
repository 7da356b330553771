"""Objectives of teacher and student: sums over the steps, with named parts (paper: Eq. 3 to 6 and 17 to 25)."""

from collections.abc import Callable
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stepcot_jax.losses.channel_alignment import Normaliser, channel_alignment_loss
from stepcot_jax.losses.hard_label import distribution_loss, hard_label_loss
from stepcot_jax.losses.soft_label import soft_label_loss

GradientOf = Literal["features", "projection"]
Gather = Callable[[Array], Array]


class LossParts(flax.struct.PyTreeNode):
    """A total and the parts whose weighted sum it is, all float32.

    Attributes:
      total: scalar. Fields have no shape annotations, since trees of them also hold vmap axes and host arrays.
      hard_label: [step], cross-entropy against the annotation (CE).
      soft_label: [step], unweighted distillation (KD); None for the teacher.
      channel_alignment: [step], unweighted channel alignment (CH); None for the teacher.
      alignment_weight: [step], w_fw inside CH; None for the teacher.
    """

    total: Any
    hard_label: Any
    soft_label: Any = None
    channel_alignment: Any = None
    alignment_weight: Any = None


class BatchTotals(flax.struct.PyTreeNode):
    """Denominators of the means over the global batch, for devices or passes that see a part of it.

    Attributes:
      cases: float32 [step], number of annotated cases.
      weights: float32 [step], total weight of their answers; `cases` without answer weights.
    """

    cases: Any
    weights: Any


def batch_totals(
    labels: Int[Array, "case step"],
    answer_weights: Float[Array, "step answer"] | None = None,
    targets: Float[Array, "case step answer"] | None = None,
) -> BatchTotals:
    """Return the totals of these cases; totals of parts add up to those of their global batch.

    Args:
      labels: int [case, step], negative where not annotated.
      answer_weights: [step, answer] for class-weighted training.
      targets: [case, step, answer], distributions in the place of the labels' answers; None for the labels.
    """
    annotated = labels >= 0
    cases = jnp.sum(annotated, axis=0, dtype=jnp.float32)
    if answer_weights is None:
        return BatchTotals(cases=cases, weights=cases)
    if targets is not None:
        shares = jnp.where(annotated[..., None], targets, 0.0) * answer_weights[None]
        return BatchTotals(cases=cases, weights=jnp.sum(shares, axis=(0, 2)))
    of_answers = jax.vmap(lambda weights, labels: weights[labels])(answer_weights, jnp.where(annotated, labels, 0).T)
    return BatchTotals(cases=cases, weights=jnp.sum(jnp.where(annotated.T, of_answers, 0.0), axis=1))


class LinearMap(flax.struct.PyTreeNode):
    """Linear map x @ kernel + bias into the space of channel alignment.

    Attributes:
      kernel: [width, projected].
      bias: [projected].
    """

    kernel: Any
    bias: Any

    def __call__(self, features: Float[Array, "*case width"]) -> Float[Array, "*case projected"]:
        """Project `features` [*case, width] to [*case, projected], in float32."""
        projected = features.astype(jnp.float32) @ self.kernel
        return projected + jnp.broadcast_to(self.bias, projected.shape)


def teacher_objective(
    *,
    logits: Float[Array, "case step answer"],
    labels: Int[Array, "case step"],
    targets: Float[Array, "case step answer"] | None = None,
    answer_weights: Float[Array, "step answer"] | None = None,
    totals: BatchTotals | None = None,
) -> LossParts:
    """Return the sum over steps of the mean cross-entropy of the annotated cases (paper: Eq. 25).

    Args:
      logits: [case, step, answer], absent answers at -1e9.
      labels: int [case, step], negative where not annotated.
      targets: [case, step, answer], distributions that the cross-entropy takes in the place of the labels.
      answer_weights: [step, answer] for class-weighted training.
      totals: of the global batch; the losses are then the shares of this part.

    Returns:
      `LossParts` with only the hard-label part.
    """
    totals = batch_totals(labels, answer_weights, targets) if totals is None else totals
    axes = (1, 1, None if targets is None else 1, None if answer_weights is None else 0, 0)
    hard = jax.vmap(_hard_label, in_axes=axes)(logits, labels, targets, answer_weights, totals.weights)
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
    targets: Float[Array, "case step answer"] | None = None,
    answer_weights: Float[Array, "step answer"] | None = None,
    totals: BatchTotals | None = None,
    gather: Gather | None = None,
) -> LossParts:
    """Return the sum over steps of CE + 0.5 KD + 1.0 CH (paper: Eq. 6 and 24).

    The teacher's logits and features are constants. Its projection is trained only if the caller differentiates with
    respect to it (departure "teacher's projection", see docs/departures.md).

    Args:
      student_logits: [case, step, answer], absent answers at -1e9.
      student_features: [case, student width], the image feature before any answer.
      teacher_logits: [case, step, answer].
      teacher_features: [case, step, teacher width], each step's image feature.
      labels: int [case, step], negative where not annotated; KD and CH count the same cases as CE.
      student_projection: student width -> projected width.
      teacher_projection: teacher width -> projected width.
      soft_label_scale: weight of KD (alpha_KD).
      channel_alignment_scale: weight of CH (alpha_CH).
      temperature: of KD and CH, > 0.
      normaliser: of w_fw, see `alignment_weight`.
      alignment_gradient: "features" differentiates CH with respect to the student's features (paper); "projection" only
        with respect to the student's projection (authors' code).
      targets: [case, step, answer], distributions that CE takes in the place of the labels.
      answer_weights: [step, answer] for class-weighted training.
      totals: of the global batch; the losses are then the shares of this part.
      gather: rows [case, ...] -> rows of the global batch, for the Gram matrices of channel alignment; required with
        `totals`.

    Returns:
      `LossParts` with all parts.

    Raises:
      ValueError: a setting is unknown.
    """
    alignment, weight = _align(
        teacher_projection=teacher_projection(jax.lax.stop_gradient(teacher_features)),
        student_projection=student_projection(_differentiated(student_features, alignment_gradient)),
        labels=labels,
        temperature=temperature,
        normaliser=normaliser,
        gather=gather or (lambda rows: rows),
    )
    totals = batch_totals(labels, answer_weights, targets) if totals is None else totals
    hard, soft = _label_losses(student_logits, teacher_logits, labels, targets, answer_weights, totals, temperature)
    total = jnp.sum(hard) + soft_label_scale * jnp.sum(soft) + channel_alignment_scale * jnp.sum(alignment)
    return LossParts(total, hard, soft, alignment, weight)


def _differentiated(student_features: Array, alignment_gradient: str) -> Array:
    """Return the student's features, constants if channel alignment trains the projection alone."""
    if alignment_gradient not in ("features", "projection"):
        raise ValueError(f"alignment_gradient {alignment_gradient!r} is not one of 'features', 'projection'")
    return student_features if alignment_gradient == "features" else jax.lax.stop_gradient(student_features)


def _label_losses(
    logits: Array,
    soft: Array,
    labels: Array,
    targets: Array | None,
    weights: Array | None,
    totals: BatchTotals,
    temperature: float,
) -> tuple[Float[Array, " step"], Float[Array, " step"]]:
    """Return CE and KD of each step, for logits [case, step, answer] of student and teacher."""

    def label_losses(
        logits: Array, soft: Array, labels: Array, targets: Array | None, weights: Array | None, whole: BatchTotals
    ) -> Any:
        distilled = soft_label_loss(
            teacher_logits=soft,
            student_logits=logits,
            annotated=labels >= 0,
            temperature=temperature,
            whole=whole.cases,
        )
        return _hard_label(logits, labels, targets, weights, whole.weights), distilled

    axes = (1, 1, 1, None if targets is None else 1, None if weights is None else 0, 0)
    return jax.vmap(label_losses, axes)(logits, soft, labels, targets, weights, totals)


def _align(
    *,
    teacher_projection: Float[Array, "case step projected"],
    student_projection: Float[Array, "case projected"],
    labels: Int[Array, "case step"],
    temperature: float,
    normaliser: Normaliser,
    gather: Gather,
) -> tuple[Float[Array, " step"], Float[Array, " step"]]:
    """Return CH and w_fw of each step, computed for the global batch and scaled by this part's share of its cases."""
    num_own = len(labels)
    teacher_projection, student_projection = gather(teacher_projection), gather(student_projection)
    labels = gather(labels)

    def align(teacher: Array, labels: Array) -> tuple[Array, Array]:
        alignment = channel_alignment_loss(
            teacher_projection=teacher,
            student_projection=student_projection,
            annotated=labels >= 0,
            temperature=temperature,
            normaliser=normaliser,
        )
        return alignment.loss, alignment.weight

    loss, weight = jax.vmap(align, in_axes=1)(teacher_projection, labels)
    share = num_own / len(labels)
    return share * loss, share * weight


def _hard_label(logits: Array, labels: Array, targets: Array | None, weights: Array | None, whole: Array) -> Array:
    known = labels >= 0
    if targets is None:
        return hard_label_loss(logits=logits, labels=labels, annotated=known, answer_weights=weights, whole=whole)
    return distribution_loss(logits=logits, targets=targets, annotated=known, answer_weights=weights, whole=whole)
