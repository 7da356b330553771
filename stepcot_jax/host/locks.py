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

_LOOK_SECONDS = 0.5


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock an output folder against other runs, which would overwrite its results."""
    make_workdir(folder)
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(f"{path}: cannot be opened for locking ({error.strerror})") from None
    try:
        lock_file(descriptor, path)
        yield  # The file stays: another run may have opened it already.
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def wait_for_lock(path: Path, *, say: Callable[[], None]) -> Iterator[None]:
    """Lock a file, which is made if missing and stays; wait while another process has it locked."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(f"{path}: cannot be opened for locking ({error.strerror})") from None
    try:
        waits = False
        while not _try_lock(descriptor, path):
            if not waits:
                say()
            waits = True
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file; return whether that was possible at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise BadInput(f"{path}: cannot be locked ({error.strerror})") from None
    return True


def lock_file(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(f"{path}: in use by another process (one run at a time per folder)") from None
