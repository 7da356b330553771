"""Advantages of rollouts relative to their group (GEMeX-RMCoT: below Eq. 2)."""

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Scale = Literal["group", "batch", "none"]


def advantages(
    rewards: Float[Array, "prompt rollout"], *, std_ddof: int = 1, std_epsilon: float = 1e-6, scale: Scale = "group"
) -> Float[Array, "prompt rollout"]:
    """Return each reward less its group's mean, divided by a standard deviation (GEMeX-RMCoT: below Eq. 2).

    Args:
      rewards: [prompt, rollout]; NaN for an unscored rollout, which is left out and gets 0.
      std_ddof: 1 divides by the number of rollouts less one, 0 by their number.
      std_epsilon: added to the deviation.
      scale: deviation of the "group", of the whole "batch", or "none" for no division.

    Returns:
      float32 [prompt, rollout]; exactly 0 where all scored rewards of a group are equal or fewer than two are scored.

    Raises:
      ValueError: a group has fewer than two rollouts, or a setting is another one.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group must have at least 2 rollouts; got {rewards.shape[1]}")
    if std_ddof not in (0, 1) or scale not in get_args(Scale):
        raise ValueError(
            f"std_ddof must be 0 or 1, scale one of {', '.join(get_args(Scale))}; got {std_ddof}, {scale!r}"
        )
    scored = ~jnp.isnan(rewards)
    kept = jnp.where(scored, rewards.astype(jnp.float32), 0.0)
    centred, number = _centre(kept, scored, axis=1)
    if scale != "none":
        spread, of = (centred, number) if scale == "group" else _centre(kept, scored, axis=None)
        squares = jnp.sum(jnp.square(spread), axis=None if scale == "batch" else 1, keepdims=True)
        centred = centred / (jnp.sqrt(squares / jnp.maximum(of - std_ddof, 1)) + std_epsilon)
    # Rounding moves the mean of equal rewards by an ulp, and the deviation is as small: the quotient would not be 0.
    highest = jnp.max(jnp.where(scored, kept, -jnp.inf), axis=1, keepdims=True)
    lowest = jnp.min(jnp.where(scored, kept, jnp.inf), axis=1, keepdims=True)
    return jnp.where(scored & (highest > lowest), centred, 0.0)


def _centre(
    kept: Float[Array, "prompt rollout"], scored: Bool[Array, "prompt rollout"], axis: int | None
) -> tuple[Array, Array]:
    number = jnp.sum(scored, axis=axis, keepdims=True, dtype=jnp.float32)
    mean = jnp.sum(kept, axis=axis, keepdims=True) / jnp.maximum(number, 1)
    return jnp.where(scored, kept - mean, 0.0), number
