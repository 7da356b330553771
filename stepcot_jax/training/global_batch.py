"""Cross-device reductions over the global batch.

An update is written for one device. Every mean spans the global batch: a device divides its sums by the counts of all
devices, so that losses and gradients of the devices are shares that add up. Where a loss compares every pair of cases
(channel alignment), rows of all devices are gathered, each device computes the whole loss, and its share is its part of
the rows; the gradient of the gathering returns what every device found for a row to the device that holds it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

AXIS = "batch"
"""Name of the axis over the devices."""


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """How a device that holds some rows of the batch computes what concerns all of them.

    Attributes:
      axis_name: the axis over the devices; None where one device has all rows.
      num_passes: passes that a device makes over its rows, each with as many of them; gradients are added up over the
        passes, which takes less memory.
    """

    axis_name: str | None = None
    num_passes: int = 1

    def first_case(self, num_rows: int) -> Int[Array, ""] | int:
        """Return the position in the global batch of the first of a device's `num_rows` rows."""
        return 0 if self.axis_name is None else num_rows * jax.lax.axis_index(self.axis_name)

    def add_up(self, shares: Any) -> Any:
        """Return the sum of a tree over the devices."""
        return shares if self.axis_name is None else jax.lax.psum(shares, self.axis_name)

    def gather(self, rows: Array) -> Array:
        """Return the rows of all devices, in order."""
        if self.axis_name is None:
            return rows
        return jax.lax.all_gather(rows, self.axis_name, tiled=True)

    def split(self, rows: dict[str, Array]) -> tuple[dict[str, Array], Int[Array, " part"]]:
        """Divide a device's rows into its passes.

        Returns:
          The rows [part, row, ...], and the position in the global batch of each part's first row.
        """
        num_rows = len(next(iter(rows.values())))
        if num_rows % self.num_passes:
            raise ValueError(f"{num_rows} rows cannot be divided into {self.num_passes} equal passes")
        size = num_rows // self.num_passes
        parts = {name: array.reshape(self.num_passes, size, *array.shape[1:]) for name, array in rows.items()}
        return parts, self.first_case(num_rows) + size * jnp.arange(self.num_passes)


ONE_DEVICE = GlobalBatch()


def differentiate(
    loss: Callable[[Any, dict[str, Array]], tuple[Array, Any]], params: Any, rows: dict[str, Array], whole: GlobalBatch
) -> tuple[Any, Any]:
    """Return the shares of the global batch added up, and the gradients of its loss."""
    gradient = jax.grad(loss, has_aux=True)
    if whole.num_passes == 1:
        gradients, shares = gradient(params, rows)
    else:
        parts, _ = whole.split(rows)
        shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda part: part[0], parts))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def one_pass(sums: Any, part: dict[str, Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, gradient(params, part)), None

        (gradients, shares), _ = jax.lax.scan(one_pass, zeros, parts)
    found: tuple[Any, Any] = whole.add_up((shares, gradients))
    return found
