"""Make folders, read files with a size limit, and write them atomically."""

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from stepcot_jax.host.download import refuse_address
from stepcot_jax.host.errors import DISK_ERRORS, BadInput
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted, reading, resolve

T = TypeVar("T")

_MAX_JSON_BYTES = 2**26
"""Limit for untyped JSON, such as nested lists, which takes up to 21 times its size in memory."""

MAX_LISTING_BYTES = 2**28


def make_workdir(folder: Path) -> None:
    """Create a folder and its parents, and check that it is writable."""
    refuse_address(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(f"{folder}: not a writable folder ({error.strerror})") from None


def make_private_folder(folder: Path) -> None:
    """Create a folder and its parents, accessible to this user only."""
    user = os.getuid()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid == user and status.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be made a folder of this user alone ({error.strerror})") from None
    if user not in (status.st_uid, 0):
        raise BadInput(f"{folder}: belongs to user {status.st_uid}; expected a folder of this user (XDG_CACHE_HOME)")


def require_new(folder: Path) -> None:
    """Refuse a folder that exists and is not empty, and an address."""
    refuse_address(folder)
    try:
        is_used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:  # a name of more than 255 bytes, or a folder that may not be read
        raise BadInput(f"{folder}: cannot be looked into ({error.strerror}); expected a new or empty folder") from None
    if is_used:
        raise BadInput(f"{folder}: exists and is not an empty folder; expected a new or empty folder")


@contextlib.contextmanager
def writing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when the block ends, and is removed if it fails."""
    require_new(folder)
    folder = resolve(folder)  # a link stays, and leads to the new folder
    make_workdir(folder.parent)
    remove_stale(folder.parent)
    partial = _name_partial(folder)
    try:
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:  # some writes name no file, and the temporary folder says nothing to the user
        if error.errno and str(error.filename or partial).startswith(str(partial)):
            error.filename = str(folder) + str(error.filename or partial).removeprefix(str(partial))
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_file(path: Path, *, max_bytes: int, accepted: str = "an image file") -> bytes:
    """Return the content of a regular file."""
    with open_untrusted(path, accepted=accepted, max_bytes=max_bytes) as file, reading(path):
        # At most one byte more than its size: the decoder rejects a file that has grown.
        return file.read(os.fstat(file.fileno()).st_size + 1)


def read_json(path: str | os.PathLike[str], kind: type[T], *, accepted: str, max_bytes: int = _MAX_JSON_BYTES) -> T:
    """Return the content of a JSON file, checked against a type."""
    where = Path(path)
    try:
        content = read_file(where, max_bytes=max_bytes, accepted="a JSON file")
        return msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=kind)
    except BadInput as error:
        raise BadInput(f"{error}; {accepted}") from None
    except OSError as error:
        raise BadInput(f"{where}: cannot be read ({error.strerror}); {accepted}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: {one_line(error)}; {accepted}") from None
    except MemoryError:
        raise BadInput(f"{where}: its content does not fit into memory; {accepted}") from None


def _read_boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii") + str(
            Path("/proc/self/ns/pid").readlink()
        )
    return ""


_MACHINE = hashlib.sha256(f"{platform.node()} {_read_boot()}".encode()).hexdigest()[:8]
"""This machine since it started, in the names of unfinished files."""
_PARTIAL = re.compile(r"\..+\.(?:([0-9a-f]{8})-)?(\d+)-[0-9a-f]{8}\.partial", re.DOTALL)
_OLD = 24 * 3600.0
"""Seconds after which an unfinished file of another machine, which cannot be asked, counts as left behind."""
_next_look = dict[Path, float]()


def remove_stale(folder: Path) -> None:
    """Remove what killed processes left half-written: of this machine once the process is gone, else a day later."""
    start = time.monotonic()
    if start < _next_look.get(folder, 0.0):
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if match := _PARTIAL.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD
                    if is_old or (match[1] == _MACHINE and not _is_alive(int(match[2]))):
                        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else Path(entry.path).unlink()
    end = time.monotonic()
    _next_look[folder] = end + 100 * max(end - start - 2e-3, 0.0)  # of folders with thousands of files: 1 % of the time


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _name_partial(target: Path) -> Path:
    # Random: processes on several machines, which may share a process id, write the same file.
    return target.with_name(f".{target.name[:40]}.{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}.partial")


@contextlib.contextmanager
def writing_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` once the block ends and all is on the disk, and not if it fails."""
    refuse_address(path)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent)
    partial = _name_partial(target)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:  # writes name no file, and the temporary one says nothing to the user
        if error.errno and error.filename in (None, str(partial)):
            error.filename = str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new."""
    with writing_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def removing_half(path: Path) -> Iterator[None]:
    """Name and remove a new file that a library could not write to its end."""
    try:
        yield
    except OSError as error:
        path.unlink(missing_ok=True)
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def writing_for(option: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the option whose file cannot be written; a full or failing disk stays an error of the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRORS - {errno.EACCES, errno.EPERM}:
            error.filename = str(path)
            raise
        raise BadInput(f"{option}: {path} cannot be written ({error.strerror})") from None


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_file(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of a file."""
    with open_untrusted(path, accepted="a file") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


LOCK_NAME = ".lock"

_POLL_SECONDS = 0.5


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock an output folder against other runs, which would overwrite its results."""
    make_workdir(folder)
    with lock_file(folder / LOCK_NAME, what="folder"):
        yield


@contextlib.contextmanager
def lock_file(path: Path, *, what: str = "file") -> Iterator[None]:
    """Lock a file, created if missing, which stands for what no other process may write meanwhile."""
    with try_lock(path) as is_held:
        if not is_held:
            raise BadInput(f"{path}: in use by another process (one run at a time per {what})")
        yield


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Lock a file, created if missing, and yield True; False if another process holds the lock."""
    with _open_lock(path) as descriptor:
        yield _try_lock(descriptor, path)


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
