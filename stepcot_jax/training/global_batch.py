"""What a device's rows are of the whole batch: where they begin, and how results of all devices come together.

A training step is written for one device. Every mean is over the whole batch: a device divides its sums by the counts
of all (`losses.objective.BatchTotals`, added up over the devices), so that what the devices find, losses and gradients
alike, are shares that add up. Channel alignment compares every pair of cases; for it the projected features and labels
of all devices are gathered, each device computes the whole alignment, and its share is its part of the rows. The
gradient of the gathering sends what every device found for a row back to the device that has it.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from stepcot_jax.losses.objective import BatchTotals, batch_totals

AXIS = "batch"
"""Name of the axis over the devices."""


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """The batch that a device sees a part of.

    Attributes:
      axis_name: the axis over the devices; None where one device has all rows.
      num_passes: how many passes a device makes over its rows, each with as many of them; the gradients of the teacher
        and of an image encoder are added up over the passes, which need less memory.
    """

    axis_name: str | None = None
    num_passes: int = 1

    def first_case(self, num_rows: int) -> Int[Array, ""] | int:
        """Position in the batch of the first of a device's rows."""
        return 0 if self.axis_name is None else num_rows * jax.lax.axis_index(self.axis_name)

    def add_up(self, shares: Any) -> Any:
        """The sum over the devices of a tree."""
        return shares if self.axis_name is None else jax.lax.psum(shares, self.axis_name)

    def gather(self, rows: Array) -> Array:
        """The rows of all devices, in order."""
        if self.axis_name is None:
            return rows
        return jax.lax.all_gather(rows, self.axis_name, tiled=True)

    def totals(self, labels: Int[Array, "case step"], answer_weights: Array | None) -> BatchTotals:
        """What the means divide by; no gradient passes."""
        return self.add_up(batch_totals(labels, answer_weights))

    def split(self, batch: dict[str, Array]) -> tuple[dict[str, Array], Int[Array, "part"]]:
        """A device's rows by passes [part, row, ...], and the position in the batch of each pass's first row.

        Raises:
          ValueError: the rows cannot be divided into as many passes.
        """
        num_rows = len(batch["labels"])
        if num_rows % self.num_passes:
            raise ValueError(f"found {num_rows} rows for {self.num_passes} passes, accepted are multiples")
        size = num_rows // self.num_passes
        parts = {name: rows.reshape(self.num_passes, size, *rows.shape[1:]) for name, rows in batch.items()}
        return parts, self.first_case(num_rows) + size * jnp.arange(self.num_passes)


ONE_DEVICE = GlobalBatch()
