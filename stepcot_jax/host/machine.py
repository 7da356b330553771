"""The user's cache of compiled programs, release of freed memory, and work in threads with ordered results."""

import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import hashlib
import os
import pathlib
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_CPU = pathlib.Path("/proc/cpuinfo")
_LEAST_SECONDS, _DEFAULT_LEAST = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", 1.0


def user_cache() -> pathlib.Path | None:
    """Return the folder of compiled programs for this kind of machine; None without a home."""
    base = user_folder()  # a home may be shared between machines, and code for one CPU may not run on another
    return None if base is None else base / "compiled" / _describe_machine()


def user_folder() -> pathlib.Path | None:
    """Return the folder of this user's caches, `~/.cache/stepcot_jax`; None without a writable home."""
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says that a relative path is ignored
        try:
            base = pathlib.Path.home() / ".cache"
        except RuntimeError:
            return None
    folder = base / "stepcot_jax"
    # Containers may run as a user whose home is / or another user's, where pathlib raises and os.path returns False.
    nearest = next((parent for parent in (folder, *folder.parents) if os.path.exists(parent)), None)  # noqa: PTH110
    usable = folder.is_absolute() and nearest is not None and os.access(nearest, os.W_OK | os.X_OK)
    return folder if usable else None


def use_compilation_cache() -> pathlib.Path | None:
    """Keep compiled programs in the user's private cache; return the folder, or None if JAX's own settings decide."""
    import jax

    config = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return None
    folder = user_cache()
    if folder is None or not _is_private(folder):  # the cache holds machine code that JAX loads
        return None
    config.update("jax_compilation_cache_dir", str(folder))
    if _LEAST_SECONDS not in os.environ and getattr(config, _LEAST_SECONDS.lower()) == _DEFAULT_LEAST:
        # JAX keeps what took a second to compile; a first answer waits for several smaller programs.
        config.update(_LEAST_SECONDS.lower(), 0.1)
    return folder


@functools.cache
def compile_seconds() -> list[float]:
    """Return the seconds of each program that XLA compiled, or read from the cache, since the first call; it grows."""
    import jax.monitoring

    seconds: list[float] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    return seconds


def _is_private(folder: pathlib.Path) -> bool:
    """Create the folder; return whether only this user can write it."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        return status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK)
    return False


def _describe_machine() -> str:
    kind = platform.machine()
    with contextlib.suppress(OSError):
        lines = _CPU.read_text().splitlines()
        kind += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return hashlib.sha256(kind.encode()).hexdigest()[:16]


# Return freed memory to the operating system.


def release_freed_memory(*, generation: int = 2) -> None:
    """Return freed memory to the operating system, of objects up to a `generation` of the garbage collector."""
    # A compilation leaves hundreds of megabytes that glibc keeps. All generations take 0.4 s in such a process.
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


# Work in threads: results in order, with a bound on how far the threads run ahead.


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, num_threads: int, num_ahead: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order; a slow consumer holds the threads back."""
    limit = num_threads if num_ahead is None else num_ahead
    pending: collections.deque[tuple[Item, concurrent.futures.Future[Result]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for item in items:
            pending.append((item, pool.submit(work, item)))
            if len(pending) > limit:
                earliest, future = pending.popleft()
                yield earliest, future.result()
        while pending:
            earliest, future = pending.popleft()
            yield earliest, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
