"""Locks on files and folders, released when the process ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir

LOCK_NAME = ".lock"

_POLL_SECONDS = 0.5


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock an output folder against other runs, which would overwrite its results."""
    make_workdir(folder)
    path = folder / LOCK_NAME
    with _open_lock(path) as descriptor:
        if not _try_lock(descriptor, path):
            raise BadInput(f"{path}: in use by another process (one run at a time per folder)")
        yield


@contextlib.contextmanager
def wait_for_lock(path: Path, *, say: Callable[[], None]) -> Iterator[None]:
    """Lock a file, created if missing; wait while another process holds the lock."""
    with _open_lock(path) as descriptor:
        if not _try_lock(descriptor, path):
            say()
            while not _try_lock(descriptor, path):
                time.sleep(_POLL_SECONDS)
        yield


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    """Open a lock file, created if missing. It is never removed: another process may have opened it already."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(f"{path}: cannot be opened for locking ({error.strerror})") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file unless another process holds the lock; return whether it succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise BadInput(f"{path}: cannot be locked ({error.strerror})") from None
    return True
