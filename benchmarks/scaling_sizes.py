"""Computed sizes by number of devices and images: traffic, Gram matrices, feature store, encoding time."""

import dataclasses
import pathlib
import re
import tempfile
import tracemalloc

import numpy as np

from stepcot_jax.features.store import FeatureStore, StoreSpec

FLOAT_BYTES = 4
SECONDS_A_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Traffic of a joint step with cases divided among devices and replicated parameters.

    Attributes:
      gradients: number of values that the two optimizers update.
      num_steps: steps in the chain.
      projection_width: width of the projections that channel alignment compares.
    """

    gradients: int
    num_steps: int = 7
    projection_width: int = 256

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which the devices sum."""
        return self.gradients * FLOAT_BYTES

    @property
    def case_bytes(self) -> int:
        """Bytes gathered for one case: the student's projection, one projection per step, and the labels."""
        return FLOAT_BYTES * (self.projection_width * (self.num_steps + 1) + self.num_steps)

    @property
    def returned_case_bytes(self) -> int:
        """Bytes of one case that the gradient of the gathering returns: the student's projection."""
        return FLOAT_BYTES * self.projection_width

    def sent_gradient_bytes(self, num_devices: int) -> float:
        """Bytes that each device sends per update to sum the gradients in a ring."""
        return 2 * (num_devices - 1) / num_devices * self.gradient_bytes

    def sent_alignment_bytes(self, num_devices: int, batch_size: int) -> float:
        """Bytes that each device sends per update for channel alignment, forward and backward, for a global batch."""
        return (num_devices - 1) / num_devices * batch_size * (self.case_bytes + self.returned_case_bytes)

    def alignment_flop(self, batch_size: int) -> int:
        """Operations of each device for the Gram matrices of both sides and all steps, and the gradient of one side.

        Every device computes the whole alignment: a product [case, width] by [width, case] for each matrix, and for the
        gradient two of [case, case] by [case, width].
        """
        return 4 * self.num_steps * 2 * batch_size**2 * self.projection_width

    def gram_bytes(self, batch_size: int) -> int:
        """Bytes of the Gram matrices of both sides and all steps for a global batch."""
        return 2 * self.num_steps * batch_size**2 * FLOAT_BYTES


@dataclasses.dataclass(frozen=True)
class StoreCost:
    """Size of a stored feature.

    Attributes:
      file_bytes: bytes on disk.
      index_bytes: bytes of memory in each process that has opened the store.
    """

    file_bytes: float
    index_bytes: float


def measure_store(num_images: int = 16_384, width: int = 512) -> StoreCost:
    """Write a store of random features and open it as a run does; return the size of a feature."""
    spec = StoreSpec(encoder="random", digest="0" * 64, width=width)
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "store"
        store = FeatureStore(folder, spec)
        for _ in range(4):
            keys = [draw.bytes(32) for _ in range(num_images // 4)]
            store.write(keys, draw.standard_normal((len(keys), width), np.float32))
        del store
        file_bytes = sum(path.stat().st_size for path in folder.iterdir())
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        store = FeatureStore(folder, spec)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        num_stored = len(store)
    return StoreCost(file_bytes / num_stored, (after - before) / num_stored)


def read_result(path: pathlib.Path, name: str) -> float:
    """Return a number of benchmarks/RESULTS.md.

    Raises:
      ValueError: the file has no such row.
    """
    match = re.search(rf"^\| `{re.escape(name)}` \| ([\d.]+) \|", path.read_text(encoding="utf-8"), re.M)
    if match is None:
        raise ValueError(f"{path}: the table has no row of {name!r}")
    return float(match[1])


def say_number(number: float, digits: int = 3) -> str:
    """Format a number with so many significant digits, never as a power of ten."""
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (digits - 1) else f"{rounded:g}"


def say_bytes(number: float) -> str:
    """Format bytes in a unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{say_number(number)} {unit}"
        number /= 1000
    return f"{say_number(number)} PB"


def say_seconds(number: float) -> str:
    """Format a time in seconds, minutes, hours, days or years."""
    for unit, most, length in (("s", 90, 1), ("min", 90, 60), ("h", 48, 3600), ("days", 730, SECONDS_A_DAY)):
        if number < most * length:
            return f"{say_number(number / length, 2)} {unit}"
    return f"{say_number(number / SECONDS_A_DAY / 365.25, 2)} years"
