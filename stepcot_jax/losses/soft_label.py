"""Knowledge distillation of the teacher's answers (paper: Eq. 4 and 18)."""

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
    whole: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the mean of KL(teacher || student) over the annotated cases, times temperature squared.

    Paper: Eq. 4 and 18, which print the student first, in the order of the arguments of the authors' `kl_div`. The mean
    is over the global batch; a mask replaces the authors' boolean indexing.

    Args:
      teacher_logits: [case, answer]; constant.
      student_logits: [case, answer].
      annotated: bool [case]; a False case adds neither loss nor gradient.
      temperature: > 0; 2.0 in the paper.
      whole: number of annotated cases in the global batch, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 if no case is annotated.

    Raises:
      ValueError: `temperature` is not positive.
    """
    values = divergence(
        target_logits=jax.lax.stop_gradient(teacher_logits), logits=student_logits, temperature=temperature
    )
    return masked_mean(values=values, counted=annotated, whole=whole) * temperature**2
