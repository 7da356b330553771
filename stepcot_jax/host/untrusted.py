"""Open untrusted files: regular files only, with limits on size, unpacked size, rows, cells, text and time.

Every file of a user is opened here or by `files`, which uses this module; a test searches the sources for others.
"""

import contextlib
import dataclasses
import errno
import functools
import gzip
import io
import os
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from stepcot_jax.host.errors import BadInput, RunStopped, is_machine_fault
from stepcot_jax.host.text import one_line, show

VARIABLE = "STEPCOT_JAX_LIMITS"

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)
_LONGEST_DIRECTORY = 2**22  # bytes of the list of an archive's files: up to 90 thousand files
_BETWEEN_CLOCKS = 1024


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest accepted files."""

    rows: int = 20_000_000
    blank_rows: int = 2**20  # of a table, without text; spreadsheets save up to a million
    columns: int = 2**14
    cells: int = 50_000_000  # of a table, blank ones included
    sheet_cells: int = 2_000_000  # of an .xlsx: eight tags of its XML, and five places of its table, count as one
    text: int = 2**23  # characters of a text, such as a report
    name: int = 2**12  # characters of a name: an image path, a patient, an option, an answer, an id
    unpacked_bytes: int = 500_000_000  # of the files in an archive
    seconds: int = 600  # that reading a table may take
    elements: int = 100_000  # of the header of a DICOM file, items of sequences included
    header_bytes: int = 2**21  # of these elements, without pixels, overlays and private values


def read_limits() -> Limits:
    """Return the limits, with those of the environment variable `STEPCOT_JAX_LIMITS` in place of the defaults."""
    return _parse_limits(os.environ.get(VARIABLE, ""))


@functools.cache
def _parse_limits(written: str) -> Limits:
    known, changed = {field.name for field in dataclasses.fields(Limits)}, {}
    for part in filter(None, map(str.strip, written.split(","))):
        name, _, number = (side.strip() for side in part.partition("="))
        if name not in known or not (number.isascii() and number.isdigit() and 0 < len(number) < 16 and int(number)):
            accepted = f"limits such as rows=1000, separated by commas: {', '.join(sorted(known))}"
            raise BadInput(f"{VARIABLE}: {part[:80]!r} is not one of the {accepted}")
        changed[name] = int(number)
    return Limits(**changed)


def exceeds(where: object, excess: str, limit: str) -> BadInput:
    """Return the error for a file above a limit, which names the limit and how to raise it."""
    most = getattr(read_limits(), limit)
    return BadInput(f"{where}: {excess}; at most {most} are accepted (raise it by {VARIABLE}={limit}=NUMBER)")


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without links; what lies there may be missing, but a ring of links is refused."""
    try:
        found = os.path.realpath(
            path
        )  # pathlib's own raises a RuntimeError for rings, or nothing: it depends on Python
        os.stat(found)  # noqa: PTH116
    except ValueError as error:  # a zero byte, or a character that the locale lacks
        raise BadInput(f"{show(os.fspath(path))}: cannot be a path ({one_line(error)})") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise BadInput(f"{path}: cannot be followed ({error.strerror}); expected a path") from None
    return Path(found)


def open_untrusted(
    path: str | os.PathLike[str], *, accepted: str, max_bytes: int | None = None, follow: bool = True
) -> io.BufferedReader:
    """Open a regular file for reading bytes; never wait for a pipe."""
    with reading(path):
        return _open(path, accepted=accepted, max_bytes=max_bytes, follow=follow)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Stop at a fault of the machine, such as too many open files, for which no file must be set aside as bad."""
    try:
        yield
    except OSError as error:
        if is_machine_fault(error):
            raise RunStopped(f"{path}: cannot be read ({error.strerror})") from error
        raise


def _open(path: str | os.PathLike[str], *, accepted: str, max_bytes: int | None, follow: bool) -> io.BufferedReader:
    _require_regular(os.stat(path, follow_symlinks=follow), path, accepted)  # noqa: PTH116
    descriptor = os.open(path, _FLAGS | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    try:
        status = os.fstat(descriptor)  # the path may have changed since
        _require_regular(status, path, accepted)
        if max_bytes is not None and status.st_size > max_bytes:
            raise BadInput(
                f"{path}: {status.st_size} bytes, more than {max_bytes}; expected {accepted} within this size"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_file(path: str | os.PathLike[str], *, accepted: str) -> None:
    """Check a file that a library opens by its name; errors as for `open_untrusted`."""
    open_untrusted(path, accepted=accepted).close()


def _require_regular(status: os.stat_result, path: object, accepted: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{path}: not a regular file; expected {accepted}")


@contextlib.contextmanager
def open_archive(path: Path, *, accepted: str, most_unpacked: int | None = None) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive whose files together are at most `most_unpacked` bytes; reads return what it states."""
    with open_untrusted(path, accepted=accepted) as file:
        limited = _ShortReads(file, path=path)
        with zipfile.ZipFile(cast(IO[bytes], limited)) as archive:
            limited.largest = None
            unpacked = sum(member.file_size for member in archive.infolist())
            if most_unpacked is not None and unpacked > most_unpacked:
                raise exceeds(path, f"{unpacked} bytes when unpacked", "unpacked_bytes")
            yield archive


class _ShortReads:
    """A file that refuses long reads until `largest` is None: zipfile reads an archive's directory at once."""

    def __init__(self, file: BinaryIO, *, path: Path) -> None:
        self._file, self._path = file, path
        self.largest: int | None = _LONGEST_DIRECTORY
        self.seek, self.tell = file.seek, file.tell
        self.seekable = file.seekable

    def read(self, size: int = -1) -> bytes:
        if self.largest is not None and size > self.largest:
            raise BadInput(f"{self._path}: its list of files has {size} bytes; at most {self.largest} are accepted")
        return self._file.read(size)


def open_lines(path: str | os.PathLike[str], *, accepted: str) -> BinaryIO:
    """Open a file of lines; one whose name ends in .gz is unpacked, up to `Limits.unpacked_bytes`."""
    file = open_untrusted(path, accepted=accepted)
    return cast(BinaryIO, _Unpacked(file, path)) if os.fspath(path).endswith(".gz") else file


class _Unpacked:
    """The lines of a gzip file; the size that it would have is unknown until it is read."""

    def __init__(self, file: BinaryIO, path: object) -> None:
        self._file, self._lines, self._path, self._num_bytes = file, gzip.GzipFile(fileobj=file), path, 0

    def __enter__(self) -> "_Unpacked":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def readline(self, size: int) -> bytes:
        try:
            line = self._lines.readline(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadInput(f"{self._path}: cannot be unpacked ({error}); expected a whole gzip file") from None
        self._num_bytes += len(line)
        if self._num_bytes > read_limits().unpacked_bytes:
            raise exceeds(self._path, f"more than {read_limits().unpacked_bytes} bytes when unpacked", "unpacked_bytes")
        return line


def iterate_lines(file: BinaryIO, path: object, *, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers from 1."""
    meter = Meter(path)
    for number, line in enumerate(iter(lambda: file.readline(most_bytes), b""), start=1):
        if len(line) < most_bytes and line.isspace():
            meter.add_row(0, blank=True)
        else:
            yield number, line


class Meter:
    """Counts the rows and cells of a table while it is read, and refuses a table above `Limits`."""

    def __init__(self, path: object) -> None:
        self._path, self._limits = path, read_limits()
        self._num_rows = self._num_blank = self._num_cells = self._num_ticks = 0
        self._start = time.monotonic()

    def add_row(self, num_cells: int, *, blank: bool) -> None:
        """Count a row."""
        self._num_rows += 1
        self._num_blank += blank
        if self._num_rows > self._limits.rows:
            raise exceeds(self._path, f"more than {self._limits.rows} rows", "rows")
        if self._num_blank > self._limits.blank_rows:
            raise exceeds(self._path, f"more than {self._limits.blank_rows} blank rows", "blank_rows")
        if num_cells > self._limits.columns:
            raise exceeds(self._path, f"row {self._num_rows} has {num_cells} cells", "columns")
        self.add_cells(num_cells)

    def add_cells(self, number: int) -> None:
        """Count cells."""
        self._num_cells += number
        if self._num_cells > self._limits.cells:
            raise exceeds(self._path, f"more than {self._limits.cells} cells", "cells")
        self.tick()

    def tick(self) -> None:
        """Check the time limit, once every 1,024 calls."""
        self._num_ticks += 1
        if self._num_ticks % _BETWEEN_CLOCKS == 0 and time.monotonic() - self._start > self._limits.seconds:
            raise exceeds(self._path, f"not read after {self._limits.seconds} seconds", "seconds")
