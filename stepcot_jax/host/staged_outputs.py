"""An output on this machine before it is uploaded: where it lies, what errors call it, and when it is kept."""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.locks import LOCK_NAME
from stepcot_jax.host.mirrors import list_files, mark_file
from stepcot_jax.host.stores import StoreError

NOT_UPLOADED = frozenset({LOCK_NAME})
"""Names in an output's folder that stay on this machine."""


@dataclasses.dataclass(frozen=True)
class Output:
    """A file or a folder that is written.

    Attributes:
      path: where to write it on this machine.
      name: what the user calls it: the path, or an address.
    """

    path: pathlib.Path
    name: str

    def show(self, text: object) -> str:
        """Return a text, such as a path below the output, with the user's name of it."""
        return str(text).replace(str(self.path), self.name)


class NotUploaded(RunStopped):
    """An output is complete on this machine and not on the store."""


def mark_files(folder: pathlib.Path) -> dict[str, tuple[int, ...]]:
    """Return the files of an output by name, each with what changes when it is written."""
    return {name: mark_file(path) for name, path in list_files(folder, NOT_UPLOADED).items()}


@contextlib.contextmanager
def temporary_output(address: str) -> Iterator[Output]:
    """Give a place in a new folder, which is removed unless the output is complete and could not be uploaded."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stepcot_jax-"))
    try:
        yield Output(folder / address.rpartition("/")[2], address)
    except NotUploaded as error:
        raise RunStopped(str(error)) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def keeping_output(out: Output, flag: str, *, is_moved: bool = False) -> Iterator[None]:
    """Say where a complete output lies when it cannot be uploaded, also since Ctrl-C ended the upload.

    Args:
      is_moved: put it into a new folder beside it first, as the next start of the command empties this one.
    """
    try:
        yield
    except (StoreError, RunStopped, KeyboardInterrupt) as error:
        cause = "the upload was interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
        place = _move_aside(out.path) if is_moved else str(out.path)
        raise NotUploaded(f"{flag}: {cause}; what the command wrote is in {place}") from error


def _move_aside(path: pathlib.Path) -> str:
    """Move a folder into a new one on the same disk; return where it is."""
    try:
        kept = pathlib.Path(tempfile.mkdtemp(prefix="kept-", dir=path.parent)) / path.name
        path.rename(kept)
    except OSError as error:
        return f"{path} until the next start (it cannot be moved: {error.strerror})"
    return str(kept)


@contextlib.contextmanager
def naming_errors(out: Output) -> Iterator[None]:
    """Name the address in the place of the folder of this machine in errors of a command."""
    try:
        yield
    except NotUploaded:
        raise
    except (BadInput, RunStopped) as error:
        if str(out.path) not in str(error):
            raise
        raise type(error)(out.show(error)) from error
