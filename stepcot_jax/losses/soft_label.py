"""Knowledge distillation: the student's answers drawn towards the teacher's (paper: Eq. 18)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stepcot_jax.losses.masked import masked_mean


def divergence(
    *, target_logits: Float[Array, "case answer"], logits: Float[Array, "case answer"], temperature: float
) -> Float[Array, "case"]:
    """KL(softmax(target_logits / T) || softmax(logits / T)) of each case, float32 [case] in nats.

    Raises:
      ValueError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"found temperature {temperature}, accepted are numbers above 0")
    target = jax.nn.log_softmax(target_logits.astype(jnp.float32) / temperature, axis=-1)
    estimate = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    return jnp.sum(jnp.exp(target) * (target - estimate), axis=-1)


def soft_label_loss(
    *,
    teacher_logits: Float[Array, "case answer"],
    student_logits: Float[Array, "case answer"],
    annotated: Bool[Array, "case"],
    temperature: float,
    whole: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Mean of KL(teacher || student) over the annotated cases, times temperature squared.

    Paper: Eq. 18. The mean spans the global batch; a mask replaces the authors' boolean indexing.

    Args:
      teacher_logits: [case, answer]; constant, no gradient reaches it.
      student_logits: [case, answer].
      annotated: bool [case]; a False case adds neither loss nor gradient.
      temperature: > 0; 2.0 in the paper.
      whole: of the batch that the cases are a part of, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 when no case is annotated.

    Raises:
      ValueError: `temperature` is not positive.
    """
    values = divergence(
        target_logits=jax.lax.stop_gradient(teacher_logits), logits=student_logits, temperature=temperature
    )
    return masked_mean(values=values, counted=annotated, whole=whole) * temperature**2
