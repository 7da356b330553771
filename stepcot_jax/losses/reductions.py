"""Means over the cases that count: the only averaging of losses, below every module of losses."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(
    *,
    values: Float[Array, "case"],
    counted: Bool[Array, "case"],
    weights: Float[Array, "case"] | None = None,
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the (weighted) mean of `values` over the counted cases; 0 if no case counts.

    If the cases are part of a global batch, such as the rows of one device, `divisor` makes the result the part's
    share: shares and their gradients add up to the mean over the global batch and its gradient.

    Values that do not count, also inf and NaN, reach neither result nor gradient, provided that the computation
    of the values is differentiable there.

    Args:
      values: [case].
      counted: bool [case].
      weights: [case], >= 0; equal by default.
      divisor: total weight of the counted cases (their number without weights) over the global batch; None for this
        batch alone.

    Returns:
      float32 scalar.

    >>> float(masked_mean(values=jnp.array([1.0, 3.0, jnp.nan]), counted=jnp.array([True, True, False])))
    2.0
    """
    kept = jnp.where(counted, values.astype(jnp.float32), 0.0)
    share = counted.astype(jnp.float32) if weights is None else jnp.where(counted, weights.astype(jnp.float32), 0.0)
    total = jnp.sum(share) if divisor is None else divisor
    return jnp.sum(kept * share) / jnp.where(total > 0, total, 1.0)


def masked_center(*, rows: Float[Array, "case width"], counted: Bool[Array, "case"]) -> Float[Array, "case width"]:
    """Subtract the mean of the counted rows from `rows` [case, width]; rows that do not count become 0."""
    share = counted.astype(jnp.float32)[:, None]
    # Relative to a counted row, equal rows are exactly 0; their float32 mean can be off by an ulp.
    origin = jax.lax.stop_gradient(rows[jnp.argmax(counted)])[None]
    kept = jnp.where(counted[:, None], rows - origin, 0.0)
    mean = jnp.sum(kept, axis=0, keepdims=True) / jnp.maximum(jnp.sum(share), 1.0)
    return (kept - mean) * share
