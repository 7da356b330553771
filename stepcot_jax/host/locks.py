"""Locks on files and folders, released when the process ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.host.errors import BadInput, make_workdir

LOCK_NAME = ".lock"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock an output folder against other runs, which would overwrite its results.

    Args:
      folder: of the output; created if missing.

    Raises:
      BadInput: another run has locked it.
    """
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


def lock_file(descriptor: int, path: Path) -> None:
    """Lock an open file until it is closed.

    Args:
      descriptor: of the file.
      path: for the message.

    Raises:
      BadInput: another process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(f"{path}: in use by another process (one run at a time per folder)") from None
