"""Timing on shared machines: things are measured in turn, round after round, beside a yardstick."""

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
      seconds: one number a round.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """(Slowest - fastest) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def time_in_turn(tasks: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Time several tasks A B C A B C ..., so that what else the machine does falls on all of them alike.

    Args:
      tasks: each is run to its end (arrays must be waited for inside).
      rounds: measured rounds.
      warm_up: rounds before that.
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
    """The median over the rounds of one task's seconds over another's in the same round."""
    return statistics.median(a / b for a, b in zip(numerators.seconds, denominators.seconds, strict=True))


SGEMM_SIZE = 1536
SGEMM_REPEATS = 6


def make_sgemm() -> Callable[[], object]:
    """The yardstick: float32 matrix products in XLA, `sgemm_gflop()` of work a call."""
    import jax

    rows = np.random.default_rng(0).standard_normal((SGEMM_SIZE, SGEMM_SIZE)).astype(np.float32)
    product = jax.jit(lambda a, b: a @ b)
    left, right = jax.device_put(rows), jax.device_put(rows.T)

    def run() -> None:
        for _ in range(SGEMM_REPEATS):
            product(left, right).block_until_ready()

    return run


def sgemm_gflop() -> float:
    """Arithmetic of one call of the yardstick, in units of 10^9."""
    return SGEMM_REPEATS * 2 * SGEMM_SIZE**3 / 1e9


def peak_megabytes() -> float:
    """Largest resident memory of this process so far, MB.

    From the kernel's own count of this program: `getrusage` also counts what the process was before it became this
    program, which is a copy of its parent.
    """
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6  # type: ignore[index]
