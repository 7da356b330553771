"""Files as the package reads and writes them: no more than is accepted, and whole or not at all."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from stepcot_jax.host.errors import BadInput

T = TypeVar("T")

_MAX_JSON_BYTES = 2**30


def read_file(path: Path, *, max_bytes: int, accepted: str = "an image file") -> bytes:
    """The content of an ordinary file.

    Args:
      path: the file.
      max_bytes: a larger file is refused before it is read.
      accepted: what kind of file should be there, for messages.

    Raises:
      BadInput: it is no ordinary file, or too large.
      OSError: it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path}: found no ordinary file, accepted is {accepted}")
    if status.st_size > max_bytes:
        raise BadInput(f"{path}: found a file of {status.st_size} bytes, accepted are at most {max_bytes}")
    with path.open("rb") as file:
        # One more byte than there was, and no more: a file that grows meanwhile is noticed by its decoder.
        return file.read(status.st_size + 1)


def read_json(path: str | os.PathLike[str], kind: type[T], *, accepted: str, max_bytes: int = _MAX_JSON_BYTES) -> T:
    """What a JSON file says, checked against a type.

    Args:
      path: the file.
      kind: a type as msgspec takes it.
      accepted: what file should be there, for messages; such as "accepted is ...".
      max_bytes: a larger file is refused before it is read.

    Raises:
      BadInput: it is missing, no ordinary file, too large, no JSON, or of another type.
    """
    where = Path(path)
    try:
        return msgspec.json.decode(read_file(where, max_bytes=max_bytes, accepted="a JSON file"), type=kind)
    except BadInput as error:
        raise BadInput(f"{error}; {accepted}") from None
    except OSError as error:
        raise BadInput(f"{where}: cannot be read ({error.strerror}); {accepted}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: {error}; {accepted}") from None


@contextlib.contextmanager
def writing_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes its name, and another's place, when all of it is on the disk.

    The folder is made if missing. Where the block fails, what was there stays and nothing else is left.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part of it."""
    with writing_whole(path) as file:
        file.write(content)


def digest_file(path: str | os.PathLike[str], *, sync: bool = False) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of a file.

    Args:
      path: the file.
      sync: flush it to the disk first.

    Raises:
      OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
