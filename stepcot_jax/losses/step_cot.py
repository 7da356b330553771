"""Objectives of teacher and student: sums over the steps, with named parts (paper: Eq. 3 to 6 and 17 to 25)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.host.extras import find_misfit
from stepcot_jax.losses.reductions import masked_center, masked_mean

# Knowledge distillation of the teacher's answers (paper: Eq. 4 and 18).


def divergence(
    *, target_logits: Float[Array, "case answer"], logits: Float[Array, "case answer"], temperature: float
) -> Float[Array, "case"]:
    """Return KL(softmax(target_logits / T) || softmax(logits / T)) of each case, float32 [case] in nats.

    Raises:
      ValueError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    target = jax.nn.log_softmax(target_logits.astype(jnp.float32) / temperature, axis=-1)
    estimate = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    return jnp.sum(jnp.exp(target) * (target - estimate), axis=-1)


def soft_label_loss(
    *,
    teacher_logits: Float[Array, "case answer"],
    student_logits: Float[Array, "case answer"],
    annotated: Bool[Array, "case"],
    temperature: float,
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the mean of KL(teacher || student) over the annotated cases, times temperature squared.

    Paper: Eq. 4 and 18, which print the student first, in the order of the arguments of the authors' `kl_div`. The mean
    is over the global batch; a mask replaces the authors' boolean indexing.

    Args:
      teacher_logits: [case, answer]; constant.
      student_logits: [case, answer].
      annotated: bool [case]; a False case adds neither loss nor gradient.
      temperature: > 0; 2.0 in the paper.
      divisor: number of annotated cases in the global batch, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 if no case is annotated.

    Raises:
      ValueError: `temperature` is not positive.
    """
    values = divergence(
        target_logits=jax.lax.stop_gradient(teacher_logits), logits=student_logits, temperature=temperature
    )
    return masked_mean(values=values, counted=annotated, divisor=divisor) * temperature**2


# Channel alignment of student and teacher image features (paper: Eq. 5 and 19 to 23).
#
# An HSIC-style similarity of the two sets of features in the batch weights the loss.


Normaliser = Literal["cka", "trace"]

_SMALLEST_H = 1e-30
"""Below it the rows do not differ at float32 precision."""


class ChannelAlignment(flax.struct.PyTreeNode):
    """Loss of one step and its weight w_fw, both float32 scalars."""

    loss: Any
    weight: Any


def alignment_weight(
    *,
    teacher: Float[Array, "case width"],
    student: Float[Array, "case width"],
    annotated: Bool[Array, "case"],
    normaliser: Normaliser = "cka",
) -> Float[Array, ""]:
    """Return w_fw = h_UV / sqrt(h_UU h_VV) for two sets of row vectors of the same cases (paper: Eq. 20 to 22).

    With Gram matrices M_U = U U^T, M_V = V V^T and C = I - 1/n over the n annotated cases,
    h_UV = sum of the elementwise product of C M_U C and C M_V C. "cka" takes h_UU and h_VV in the same way, which
    makes the weight linear CKA, 0 to 1 (authors' code); "trace" takes h_UU = tr(C M_U C) (the paper's Eq. 21).

    Args:
      teacher: [case, width], the rows of U.
      student: [case, width], the rows of V.
      annotated: bool [case]; other cases are ignored, also in the centring.
      normaliser: "cka" or "trace".

    Returns:
      float32 scalar; 0 if either side does not vary over the cases or fewer than two are annotated.

    Raises:
      ValueError: `normaliser` is unknown.
    """
    if normaliser not in ("cka", "trace"):
        raise ValueError(f"normaliser {normaliser!r} is not one of 'cka', 'trace'")
    centred_u = masked_center(rows=teacher, counted=annotated)
    centred_v = masked_center(rows=student, counted=annotated)
    enough = jnp.sum(annotated) >= 2
    gram_u, u_varies = _normalised_gram(centred_u, normaliser, enough)
    gram_v, v_varies = _normalised_gram(centred_v, normaliser, enough)
    return jnp.where(u_varies & v_varies, jnp.sum(gram_u * gram_v), 0.0)


def _normalised_gram(
    centred: Float[Array, "case width"], normaliser: Normaliser, enough: Bool[Array, ""]
) -> tuple[Float[Array, "case case"], Bool[Array, ""]]:
    """Return the centred Gram matrix divided by the root of its h, and whether it varies."""
    gram = centred @ centred.T
    h = jnp.sum(gram * gram) if normaliser == "cka" else jnp.trace(gram)
    varies = enough & (h > _SMALLEST_H)
    # The inner where keeps the root's gradient finite; the sides are divided separately since h_UU h_VV can underflow.
    return gram / jnp.sqrt(jnp.where(varies, h, 1.0)), varies


def channel_alignment_loss(
    *,
    teacher_projection: Float[Array, "case width"],
    student_projection: Float[Array, "case width"],
    annotated: Bool[Array, "case"],
    temperature: float,
    normaliser: Normaliser = "cka",
) -> ChannelAlignment:
    """Return w_fw times the mean of KL(K_U || K_V) over the annotated cases, K = softmax(projection / temperature).

    Paper: Eq. 5, 19 and 23. The weight is computed from K_U and K_V and is differentiated too. The caller chooses the
    sides that receive gradients (see `objective`).

    Args:
      teacher_projection: [case, width], the projected image feature of the step's teacher.
      student_projection: [case, width], the projected image feature of the student.
      annotated: bool [case]; a False case adds neither loss nor gradient.
      temperature: > 0; 2.0 in the paper.
      normaliser: "cka" (authors' code) or "trace" (paper), see `alignment_weight`.

    Returns:
      Loss and weight, both 0 if fewer than two cases are annotated.

    Raises:
      ValueError: `temperature` is not positive, or `normaliser` is unknown.
    """
    divergences = divergence(target_logits=teacher_projection, logits=student_projection, temperature=temperature)
    weight = alignment_weight(
        teacher=jax.nn.softmax(teacher_projection.astype(jnp.float32) / temperature, axis=-1),
        student=jax.nn.softmax(student_projection.astype(jnp.float32) / temperature, axis=-1),
        annotated=annotated,
        normaliser=normaliser,
    )
    return ChannelAlignment(loss=weight * masked_mean(values=divergences, counted=annotated), weight=weight)


# Cross-entropy against the annotated answers (paper: Eq. 3 and 17).


def hard_label_loss(
    *,
    logits: Float[Array, "case answer"],
    labels: Int[Array, "case"],
    annotated: Bool[Array, "case"],
    answer_weights: Float[Array, "answer"] | None = None,
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the mean cross-entropy over the annotated cases.

    With `answer_weights` the mean is weighted by the weight of each case's label, as torch's cross_entropy does.

    Args:
      logits: [case, answer].
      labels: int [case]; values of cases that are not annotated are ignored.
      annotated: bool [case]; a False case adds neither loss nor gradient.
      answer_weights: [answer], >= 0, for class-weighted training; equal by default.
      divisor: total weight over the global batch, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 if no case is annotated.
    """
    safe_labels = jnp.where(annotated, labels, 0)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    values = -jnp.take_along_axis(log_probabilities, safe_labels[:, None], axis=-1)[:, 0]
    weights = None if answer_weights is None else answer_weights[safe_labels]
    return masked_mean(values=values, counted=annotated, weights=weights, divisor=divisor)


def inverse_frequency_weights(
    *, labels: Int[np.ndarray, "case step"], answers_per_step: Sequence[int]
) -> Float[np.ndarray, "step answer"]:
    """Return 1 / frequency of each answer of each step, normalised to mean 1 over the step's answers.

    An answer that never occurs counts as occurring once, so that its weight is finite.

    Args:
      labels: int [case, step] of the training split, negative where not annotated.
      answers_per_step: number of answers of each step.

    Returns:
      float32 [step, answer]; 0 for answers that a step does not have.
    """
    weights = np.zeros((len(answers_per_step), max(answers_per_step)), np.float32)
    for step, num_answers in enumerate(answers_per_step):
        annotated = labels[labels[:, step] >= 0, step]
        counts = np.bincount(annotated, minlength=num_answers)
        inverse = 1.0 / np.maximum(counts, 1)
        weights[step, :num_answers] = inverse / inverse.mean()
    return weights


GradientOf = Literal["features", "projection"]
Gather = Callable[[Array], Array]
Part = Callable[..., tuple[Array, Array]]
"""A part of the student's loss: (teacher, student, labels, annotated) -> (sum over cases and steps, their number).

Called by keyword with logits float32 [case, step, answer] (the teacher's constant), int labels [case, step] and bool
annotated [case, step]. It is traced, and must not depend on cases that are not annotated.
"""

PARTS: dict[str, Part] = {}
"""Further parts by the name under which `config.loss.parts` weighs them; a contributed loss is added here."""


@dataclasses.dataclass(frozen=True)
class Objective:
    """The losses of teacher and student as one value, from settings to sum; defaults as in the paper.

    `config.loss` has a setting of the same name for every field but the last two. See docs/departures.md.

    Attributes:
      temperature: of distillation and channel alignment, > 0.
      soft_label_scale: weight of distillation (alpha_KD).
      channel_alignment_scale: weight of channel alignment (alpha_CH).
      normaliser: of w_fw, "cka" or "trace"; see `alignment_weight`.
      alignment_gradient: "features" differentiates channel alignment with respect to the student's features (paper),
        "projection" only with respect to the student's projection (authors' code).
      train_teacher_projection: train the teacher's projection with the student.
      target_dropout: dropout active in the forward pass that makes the teacher's targets.
      plain_scale: weight of the plain network, one linear head a step on the image encoder that is trained along with
        the teacher, in the loss of the teacher's phase (0: none, paper).
      answer_weights: [step, answer] weights of the hard labels; None weighs all answers the same.
      parts: further parts of the student's loss by name, each with its weight.
    """

    temperature: float = 2.0
    soft_label_scale: float = 0.5
    channel_alignment_scale: float = 1.0
    normaliser: Normaliser = "cka"
    alignment_gradient: GradientOf = "features"
    train_teacher_projection: bool = False
    target_dropout: bool = False
    plain_scale: float = 0.0
    answer_weights: Any = None
    parts: Mapping[str, tuple[Part, float]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {field.name for field in dataclasses.fields(LossParts)}
        for name, (function, weight) in self.parts.items():
            if name in known or not name.isidentifier():
                raise ValueError(
                    f"parts: {name!r} is not a free name; expected an identifier other than {sorted(known)}"
                )
            if not callable(function) or not 0 <= weight < float("inf"):
                raise ValueError(f"parts[{name!r}]: expected a function and a weight of 0 or more; got {weight!r}")
            if misfit := find_misfit(function, ("teacher", "student", "labels", "annotated"), by_keyword=True):
                raise ValueError(
                    f"parts[{name!r}]: it {misfit}; expected (teacher, student, labels, annotated), by name"
                )


class LossParts(flax.struct.PyTreeNode):
    """A total and the parts whose weighted sum it is, all float32.

    Attributes:
      total: scalar. Fields have no shape annotations, since trees of them also hold vmap axes and host arrays.
      hard_label: [step], cross-entropy against the annotation (CE).
      soft_label: [step], unweighted distillation (KD); None for the teacher.
      channel_alignment: [step], unweighted channel alignment (CH); None for the teacher.
      alignment_weight: [step], w_fw inside CH; None for the teacher.
      further: unweighted scalars, the further parts of the objective by name.
    """

    total: Any
    hard_label: Any
    soft_label: Any = None
    channel_alignment: Any = None
    alignment_weight: Any = None
    further: Any = flax.struct.field(default_factory=dict)

    def by_name(self) -> dict[str, Any]:
        """Return all parts by name, those of the steps as [step], without those that are None."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        further = named.pop("further")
        del named["total"]
        return {name: part for name, part in {**named, **further}.items() if part is not None}


class BatchTotals(flax.struct.PyTreeNode):
    """Denominators of the means over the global batch, for devices or passes that see a part of it.

    Attributes:
      cases: float32 [step], number of annotated cases.
      weights: float32 [step], total weight of their answers; `cases` without answer weights.
    """

    cases: Any
    weights: Any


def batch_totals(
    labels: Int[Array, "case step"], answer_weights: Float[Array, "step answer"] | None = None
) -> BatchTotals:
    """Return the totals of these cases; totals of parts add up to those of their global batch.

    Args:
      labels: int [case, step], negative where not annotated.
      answer_weights: [step, answer] for class-weighted training.
    """
    annotated = labels >= 0
    cases = jnp.sum(annotated, axis=0, dtype=jnp.float32)
    if answer_weights is None:
        return BatchTotals(cases=cases, weights=cases)
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
    answer_weights: Float[Array, "step answer"] | None = None,
    totals: BatchTotals | None = None,
) -> LossParts:
    """Return the sum over steps of the mean cross-entropy of the annotated cases (paper: Eq. 25).

    Args:
      logits: [case, step, answer], absent answers at -1e9.
      labels: int [case, step], negative where not annotated.
      answer_weights: [step, answer] for class-weighted training.
      totals: of the global batch; the losses are then the shares of this part.

    Returns:
      `LossParts` with only the hard-label part.
    """
    totals = batch_totals(labels, answer_weights) if totals is None else totals
    axes = (1, 1, None if answer_weights is None else 0, 0)
    hard = jax.vmap(_hard_label, in_axes=axes)(logits, labels, answer_weights, totals.weights)
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
    objective: Objective = Objective(),
    totals: BatchTotals | None = None,
    gather: Gather | None = None,
    add_up: Callable[[Any], Any] | None = None,
) -> LossParts:
    """Return the sum over steps of CE + 0.5 KD + 1.0 CH (paper: Eq. 6 and 24), and the objective's further parts.

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
      objective: weights and kinds of the parts.
      totals: of the global batch; the losses are then the shares of this part.
      gather: rows [case, ...] -> rows of the global batch, for the Gram matrices of channel alignment; required with
        `totals`.
      add_up: a number of this part of the batch -> that of the global batch; required with `totals`.

    Returns:
      `LossParts` with all parts.

    Raises:
      ValueError: a setting is unknown.
    """
    alignment, weight = _align(
        teacher_projection=teacher_projection(jax.lax.stop_gradient(teacher_features)),
        student_projection=student_projection(_differentiated(student_features, objective.alignment_gradient)),
        labels=labels,
        temperature=objective.temperature,
        normaliser=objective.normaliser,
        gather=gather or (lambda rows: rows),
    )
    weights = objective.answer_weights
    totals = batch_totals(labels, weights) if totals is None else totals
    hard, soft = _label_losses(student_logits, teacher_logits, labels, weights, totals, objective.temperature)
    total = jnp.sum(hard) + objective.soft_label_scale * jnp.sum(soft)
    total += objective.channel_alignment_scale * jnp.sum(alignment)
    further = {}
    for name, (part, scale) in objective.parts.items():
        further[name] = _further_loss(name, part, teacher_logits, student_logits, labels, add_up)
        total += scale * further[name]
    return LossParts(total, hard, soft, alignment, weight, further)


def _further_loss(
    name: str,
    part: Part,
    teacher_logits: Array,
    student_logits: Array,
    labels: Array,
    add_up: Callable[[Any], Any] | None,
) -> Array:
    """Return a part's sum over this part of the batch, divided by its count in the global batch."""
    with jax.numpy_dtype_promotion("standard"):  # a caller's function, in a program that may be strict
        returned = part(
            teacher=jax.lax.stop_gradient(teacher_logits.astype(jnp.float32)),
            student=student_logits.astype(jnp.float32),
            labels=labels,
            annotated=labels >= 0,
        )
    if not isinstance(returned, tuple) or len(returned) != 2 or any(map(jnp.ndim, returned)):
        raise ValueError(f"parts[{name!r}] returned {returned!r:.80}; expected a tuple of two numbers: sum, how many")
    summed, number = returned[0], jax.lax.stop_gradient(jnp.asarray(returned[1], jnp.float32))
    return summed / jnp.maximum(number if add_up is None else add_up(number), 1.0)


def _differentiated(student_features: Array, alignment_gradient: str) -> Array:
    """Return the student's features, constants if channel alignment trains the projection alone."""
    if alignment_gradient not in ("features", "projection"):
        raise ValueError(f"alignment_gradient {alignment_gradient!r} is not one of 'features', 'projection'")
    return student_features if alignment_gradient == "features" else jax.lax.stop_gradient(student_features)


def _label_losses(
    logits: Array,
    soft: Array,
    labels: Array,
    weights: Array | None,
    totals: BatchTotals,
    temperature: float,
) -> tuple[Float[Array, " step"], Float[Array, " step"]]:
    """Return CE and KD of each step, for logits [case, step, answer] of student and teacher."""

    def label_losses(logits: Array, soft: Array, labels: Array, weights: Array | None, totals: BatchTotals) -> Any:
        distilled = soft_label_loss(
            teacher_logits=soft,
            student_logits=logits,
            annotated=labels >= 0,
            temperature=temperature,
            divisor=totals.cases,
        )
        return _hard_label(logits, labels, weights, totals.weights), distilled

    axes = (1, 1, 1, None if weights is None else 0, 0)
    return jax.vmap(label_losses, axes)(logits, soft, labels, weights, totals)


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
    num_cases = len(labels)
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
    share = num_cases / len(labels)
    return share * loss, share * weight


def _hard_label(logits: Array, labels: Array, weights: Array | None, divisor: Array) -> Array:
    return hard_label_loss(logits=logits, labels=labels, annotated=labels >= 0, answer_weights=weights, divisor=divisor)
