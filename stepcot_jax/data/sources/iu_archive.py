"""Read the report files of the IU X-Ray collection from its archive or a folder, without trusting either.

Nothing is written to disk. Names of archive entries appear only in messages, so they cannot lead out of a folder.
"""

import gzip
import io
import itertools
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

MAX_REPORT_BYTES = 1_000_000
"""Largest report file that is read; the released ones have at most 9 thousand bytes."""

MAX_REPORTS = 100_000
"""Most entries of an archive or a folder; the released one has 3,955."""

MAX_ARCHIVE_BYTES = 1_000_000_000
"""Most bytes of an unpacked archive; the released one has 20 million."""

_MAX_HEADER_BYTES = 100_000
_EXPECTED = "expected the collection's archive (.tgz, .tar.gz, .tar) or a folder with its XML files"
_NUM_SHOWN = 80


ReportFile = tuple[str, bytes | str]
"""Name of a report file, for messages only, and its content, or as text why it cannot be read."""


def iterate_files(source: Path) -> Iterator[ReportFile]:
    """Yield the XML files of an archive (in its order) or of a folder (by name), one at a time.

    A link, a device or a file above `MAX_REPORT_BYTES` comes with the reason instead of its content. Folders and files
    without the suffix .xml are skipped.
    """
    source = Path(source)
    try:
        if source.is_dir():
            with os.scandir(source) as entries:
                names = [entry.name for entry in itertools.islice(entries, MAX_REPORTS + 1)]
            _check_count(len(names), source=source)
            for name in sorted(filter(_is_report_name, names)):
                yield name, _read_file(source / name)
        else:
            yield from _iterate_archive(source)
    except (OSError, ValueError, EOFError, zlib.error, tarfile.TarError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)[:_NUM_SHOWN]
        raise BadInput(f"{source}: cannot be read as report files ({found}); {_EXPECTED}") from None


def _read_file(path: Path) -> bytes | str:
    try:
        with open_untrusted(path, accepted="an XML file", follow=False) as file:
            content = file.read(MAX_REPORT_BYTES + 1)
    except BadInput:
        return "is a link or not an ordinary file; expected an XML file"
    except OSError as error:
        return f"is a link or cannot be read ({error.strerror}); expected an XML file"
    return content if len(content) <= MAX_REPORT_BYTES else f"has more than {MAX_REPORT_BYTES} bytes"


def _iterate_archive(source: Path) -> Iterator[ReportFile]:
    with open_untrusted(source, accepted="an archive") as file:
        start = file.read(2)
        file.seek(0)
        unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=file) if start == b"\x1f\x8b" else file)
        limited = _LimitedReader(unpacked, source=source)
        # "r:" and not "r|": a tar stream would hide from the reader how much is read at once.
        with tarfile.open(fileobj=limited, mode="r:") as archive:
            num_entries = 0
            while (entry := archive.next()) is not None:
                num_entries += 1
                _check_count(num_entries, source=source)
                # Otherwise the archive keeps every entry and every global header in memory.
                archive.members = []  # type: ignore[attr-defined]
                archive.pax_headers = {}
                if _is_report_name(entry.name) and not entry.isdir():
                    yield entry.name, _read_entry(archive, entry, limited)
            # tarfile takes a broken header for the end of the archive.
            if limited.last.strip(b"\0") or 0 < len(limited.last) < tarfile.BLOCKSIZE:
                raise BadInput(f"{source}: breaks off after {num_entries} entries; {_EXPECTED}")
            # Reading to the end verifies the checksum of gzip.
            while limited.read(_MAX_HEADER_BYTES):
                limited.seek(limited.tell())


def _read_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, limited: "_LimitedReader") -> bytes | str:
    if not entry.isreg() or entry.issparse():
        return "is a link, a device or a sparse file; expected an ordinary XML file"
    if entry.size > MAX_REPORT_BYTES:
        return f"has {entry.size} bytes, more than {MAX_REPORT_BYTES}"
    limited.largest = MAX_REPORT_BYTES
    file = archive.extractfile(entry)
    content = file.read() if file else b""
    limited.largest = _MAX_HEADER_BYTES
    if len(content) != entry.size:
        raise BadInput(f"{limited.source}: ends within {entry.name[:_NUM_SHOWN]!r}; {_EXPECTED}")
    return content


def _is_report_name(name: str) -> bool:
    # macOS archives have a file "._1.xml" for each file "1.xml".
    last = name.rpartition("/")[2]
    return last.lower().endswith(".xml") and not last.startswith("._")


def _check_count(num_entries: int, *, source: Path) -> None:
    if num_entries > MAX_REPORTS:
        raise BadInput(f"{source}: has more than {MAX_REPORTS} entries; {_EXPECTED}")


class _LimitedReader(io.RawIOBase):
    """A forward-only file that limits the bytes of one read, to `largest`, and of the whole file."""

    def __init__(self, file: BinaryIO, *, source: Path) -> None:
        self._file = file
        self.source, self.largest, self.last = source, _MAX_HEADER_BYTES, b""

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes and keep them as `last`."""
        if not 0 <= size <= self.largest:
            raise BadInput(f"{self.source}: has a header of {size} bytes; {_EXPECTED}")
        self.last = self._file.read(size)
        return self.last

    def tell(self) -> int:
        """Position in bytes."""
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move forward to a position from the start."""
        if whence != os.SEEK_SET or offset < self._file.tell():
            raise BadInput(f"{self.source}: has an entry that points backwards; {_EXPECTED}")
        if offset > MAX_ARCHIVE_BYTES:
            raise BadInput(f"{self.source}: has more than {MAX_ARCHIVE_BYTES} bytes unpacked; {_EXPECTED}")
        return self._file.seek(offset)
