"""Direct preference optimisation, the sequence-level baseline of MEDSAGE's public code (4c8030a); not in its paper."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@dataclasses.dataclass(frozen=True)
class PreferenceLoss:
    """The loss and two diagnostics, averaged over the pairs that count; shares of a global batch add up.

    Attributes:
      total: the loss, to be minimised.
      margin: the difference that the loss compares with 0, without beta, in nats.
      accuracy: share of the pairs whose margin is above 0.
    """

    total: Array
    margin: Array
    accuracy: Array


def dpo_loss(
    *,
    chosen: Float[Array, "pair"],
    rejected: Float[Array, "pair"],
    reference_chosen: Float[Array, "pair"],
    reference_rejected: Float[Array, "pair"],
    counted: Bool[Array, "pair"],
    beta: float = 0.1,
    divisor: Float[Array, ""] | None = None,
) -> PreferenceLoss:
    """Return -log sigmoid(beta ((logpi_c - logpi_r) - (logref_c - logref_r))), averaged over pairs.

    Args:
      chosen: [pair], log-probability of the better reply, summed over its tokens.
      rejected: [pair], of the worse one.
      reference_chosen: [pair], of the better one by the frozen start.
      reference_rejected: [pair], of the worse one by the frozen start.
      counted: bool [pair]; where False the others may hold anything and reach neither value nor gradient.
      beta: scale of the margin; the public code has none, the default is ours.
      divisor: number of pairs of the global batch; None for this batch alone.

    Returns:
      float32; 0 without a pair.
    """
    kept = [
        jnp.where(counted, values.astype(jnp.float32), 0.0)
        for values in (chosen, rejected, reference_chosen, reference_rejected)
    ]
    margins = (kept[0] - kept[1]) - (kept[2] - kept[3])
    total = jnp.maximum(jnp.sum(counted, dtype=jnp.float32) if divisor is None else divisor, 1.0)

    def average(values: Array) -> Array:
        return jnp.sum(jnp.where(counted, values, 0.0)) / total

    right = (margins > 0).astype(jnp.float32)
    return PreferenceLoss(average(jax.nn.softplus(-beta * margins)), average(margins), average(right))
