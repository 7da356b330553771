"""Dropout with masks drawn in advance.

A pass of the teacher has dropout at dozens of places. Drawing all masks in one call compiles faster. The position of a
case in the global batch seeds its masks, so that they do not depend on the number of devices.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def draw_keeps(
    key: Array,
    *,
    cases: Int[Array, "case"],
    leading: tuple[int, ...] = (),
    places: Mapping[str, tuple[tuple[int, ...], float]],
) -> dict[str, Bool[Array, "..."]]:
    """Draw the dropout masks of several places at once.

    Args:
      key: random key.
      cases: [case], position of each case in the global batch.
      leading: axes of all masks before the case axis, such as (step,).
      places: name -> (axes of the mask after the case axis, dropout rate, 0 to 1).

    Returns:
      name -> bool [*leading, case, *axes]; True keeps the value.
    """
    sizes = [int(np.prod(axes)) for axes, _ in places.values()]

    def draw(case: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(key, case), (*leading, sum(sizes)), jnp.uint32)

    bits = jax.vmap(draw, out_axes=len(leading))(cases)
    parts = jnp.split(bits, np.cumsum(sizes)[:-1], axis=-1)
    return {
        name: (part >= np.uint32(min(round(rate * 2**32), 2**32 - 1))).reshape(*leading, len(cases), *axes)
        for part, (name, (axes, rate)) in zip(parts, places.items(), strict=True)
    }


def drop(values: Float[Array, "*shape"], *, keep: Bool[Array, "*shape"] | None, rate: float) -> Float[Array, "*shape"]:
    """Apply a dropout mask: zero the dropped values and scale the others by 1 / (1 - rate); no mask, no change."""
    if keep is None or rate == 0.0:
        return values
    scale = 0.0 if rate == 1.0 else 1.0 / (1.0 - rate)
    return jnp.where(keep, values * scale, jnp.zeros_like(values))
