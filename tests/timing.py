"""Processor time of a call, for bounds that only a call of quadratic time exceeds."""

import time
from collections.abc import Callable


def least_seconds(call: Callable[[], object], enough: float) -> float:
    """The least processor time of up to five calls; no further call once one took under `enough` seconds.

    A shared machine may slow down one call forty times; a call of quadratic time is slow each time.
    """
    least = float("inf")
    for _ in range(5):
        start = time.process_time()
        call()
        least = min(least, time.process_time() - start)
        if least < enough:
            break
    return least
