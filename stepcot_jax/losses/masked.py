"""The one place where losses are averaged: over the cases that count, never over the rest."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_mean(
    *,
    values: Float[Array, "case"],
    counted: Bool[Array, "case"],
    weights: Float[Array, "case"] | None = None,
    whole: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Mean of `values` over the counted cases, weighted if asked; 0 when no case counts.

    Where the cases are a part of a batch (a device's rows, say), `whole` makes the result this part's share of the mean
    over the batch: the shares of all parts add up to it, and so do their gradients.

    A value that does not count may be anything, inf and NaN included: it reaches neither result nor gradient,
    as long as the computation that made it is itself differentiable there.

    Args:
      values: [case].
      counted: bool [case].
      weights: [case], >= 0; None weighs every case the same.
      whole: number of counted cases, or the sum of their weights, in the whole batch; None when the cases are all.

    Returns:
      float32 scalar.

    >>> float(masked_mean(values=jnp.array([1.0, 3.0, jnp.nan]), counted=jnp.array([True, True, False])))
    2.0
    """
    kept = jnp.where(counted, values.astype(jnp.float32), 0.0)
    share = counted.astype(jnp.float32) if weights is None else jnp.where(counted, weights.astype(jnp.float32), 0.0)
    total = jnp.sum(share) if whole is None else whole
    return jnp.sum(kept * share) / jnp.where(total > 0, total, 1.0)


def masked_center(*, rows: Float[Array, "case width"], counted: Bool[Array, "case"]) -> Float[Array, "case width"]:
    """`rows` [case, width] minus the mean of the counted rows; rows that do not count become 0."""
    share = counted.astype(jnp.float32)[:, None]
    # Counting from a row that counts makes equal rows exactly 0; their float32 mean could be an ulp away from them.
    origin = jax.lax.stop_gradient(rows[jnp.argmax(counted)])[None]
    kept = jnp.where(counted[:, None], rows - origin, 0.0)
    mean = jnp.sum(kept, axis=0, keepdims=True) / jnp.maximum(jnp.sum(share), 1.0)
    return (kept - mean) * share
