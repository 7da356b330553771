"""Timing on shared machines: tasks are measured in turn, round after round, next to a reference task."""

import dataclasses
import pathlib
import re
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of each round.

    Attributes:
      seconds: one number per round.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(Slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def time_in_turn(tasks: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Time several tasks in the order A B C A B C ..., so that other load affects all of them equally.

    Args:
      tasks: each must wait for its own arrays.
      rounds: number of measured rounds.
      warm_up: number of rounds before these.
    """
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in range(-warm_up, rounds):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if round_number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def median_of_ratios(numerators: Timing, denominators: Timing) -> float:
    """Return the median over the rounds of one task's seconds divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(numerators.seconds, denominators.seconds, strict=True))


SGEMM_SIZE = 1536
SGEMM_REPEATS = 6


def make_sgemm() -> Callable[[], object]:
    """Return the reference task: float32 matrix products in XLA, `sgemm_gflop()` of work per call."""
    import jax

    rows = np.random.default_rng(0).standard_normal((SGEMM_SIZE, SGEMM_SIZE)).astype(np.float32)
    product = jax.jit(lambda a, b: a @ b)
    left, right = jax.device_put(rows), jax.device_put(rows.T)

    def run() -> None:
        for _ in range(SGEMM_REPEATS):
            product(left, right).block_until_ready()

    return run


def sgemm_gflop() -> float:
    """Return the operations of one call of the reference task, in units of 10^9."""
    return SGEMM_REPEATS * 2 * SGEMM_SIZE**3 / 1e9


def peak_megabytes() -> float:
    """Return the largest resident memory of this process so far, in MB.

    From /proc/self/status, because `getrusage` also counts the copy of its parent that the process was before exec.
    """
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6  # type: ignore[index]
