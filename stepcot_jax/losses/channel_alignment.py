"""Channel alignment of student and teacher image features (paper: Eq. 5 and 19 to 23).

An HSIC-style similarity of the two sets of features in the batch weights the loss.
"""

from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stepcot_jax.losses.masked import masked_center, masked_mean
from stepcot_jax.losses.soft_label import divergence

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
