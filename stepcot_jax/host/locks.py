"""One run at a time: a lock on a file or on a folder, which ends with the process that holds it, however it ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.host.errors import BadInput, make_workdir

LOCK_NAME = ".lock"


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other runs out of an output folder; they would replace each other's results.

    Args:
      folder: of the output; made where it is missing.

    Raises:
      BadInput: another run has it.
    """
    make_workdir(folder)
    path = folder / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BadInput(f"{path}: cannot be opened ({error.strerror}), accepted is a file of one's own") from None
    try:
        lock_file(descriptor, path)
        yield  # The file stays: removed, it would be another one for a run that has opened it already.
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, path: Path) -> None:
    """Keep other processes from locking an open file until it is closed.

    Args:
      descriptor: of the file.
      path: its name, for the message.

    Raises:
      BadInput: another process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BadInput(
            f"{path}: found it in use by another process, accepted is one run at a time for each folder"
        ) from None
