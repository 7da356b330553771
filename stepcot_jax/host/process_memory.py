"""Giving memory back to the machine."""

import ctypes
import functools
import gc
from collections.abc import Callable


def release_freed_memory(*, generation: int = 2) -> None:
    """Give what this process has freed back to the operating system, where glibc is the allocator.

    A compilation leaves hundreds of megabytes that are free but stay with the process, since glibc keeps them for
    later: at the published sizes half of what a training process holds. Elsewhere than on Linux nothing happens.

    Args:
      generation: oldest generation of Python's collector to look through; all of them take 0.4 s in a process that has
        compiled, and 1 is enough for what was made a moment ago.
    """
    gc.collect(generation)
    trim = _find_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _find_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # macOS, Windows, musl
        return None
