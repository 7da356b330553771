"""Cross-entropy against the annotated answers (paper: Eq. 17)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.losses.masked import masked_mean


def hard_label_loss(
    *,
    logits: Float[Array, "case answer"],
    labels: Int[Array, "case"],
    annotated: Bool[Array, "case"],
    answer_weights: Float[Array, "answer"] | None = None,
) -> Float[Array, ""]:
    """Mean cross-entropy over the annotated cases.

    With `answer_weights` the mean is weighted by the weight of each case's label, as torch's cross_entropy does.

    Args:
      logits: [case, answer].
      labels: int [case]; what stands where a case is not annotated does not matter.
      annotated: bool [case]; a False case adds neither loss nor gradient.
      answer_weights: [answer], >= 0, for class-weighted training; None weighs all answers the same.

    Returns:
      float32 scalar in nats; 0 when no case is annotated.
    """
    safe_labels = jnp.where(annotated, labels, 0)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    values = -jnp.take_along_axis(log_probabilities, safe_labels[:, None], axis=-1)[:, 0]
    weights = None if answer_weights is None else answer_weights[safe_labels]
    return masked_mean(values=values, counted=annotated, weights=weights)
