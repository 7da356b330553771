"""Dropout by masks that are drawn ahead.

A pass of the teacher has dropout at dozens of places. Drawing all masks from one call, instead of one call a place,
compiles faster, and a mask belongs to a case and a place whatever runs in between. It is drawn from the case's position
in the batch, so that it is the same on however many devices the batch lies.
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
    """Random masks of what dropout keeps, for several places at once.

    Args:
      key: random key.
      cases: [case], position of each case in the whole batch.
      leading: axes before the cases' that all masks have, such as (step,).
      places: name -> (axes of the mask after the shared ones, share that is dropped, 0 to 1).

    Returns:
      name -> bool [*leading, case, *axes]; True is kept.
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
    """`values` with those not kept at zero and the others scaled up by 1 / (1 - rate); unchanged without a mask."""
    if keep is None or rate == 0.0:
        return values
    scale = 0.0 if rate == 1.0 else 1.0 / (1.0 - rate)
    return jnp.where(keep, values * scale, jnp.zeros_like(values))
