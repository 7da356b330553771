"""Files of an export: compared with their digests, JSON, tensors. Needs numpy alone; load.py imports it.

Every export has a copy of this file.

Every file is compared with SHA256SUMS before it is used, which detects damage. An attacker could change both: use only
exports from sources whose programs you would run.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import stat
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

SUMS = "SHA256SUMS"
_MOST_SUMS_BYTES = 2**16
_MOST_JSON_BYTES, _MOST_HEADER_BYTES = 2**26, 2**24
_DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I32": np.int32, "U8": np.uint8}


class RefusedExport(ValueError):
    """An export that is incomplete or changed, or that this loader cannot read."""


class Files:
    """The files of an export, compared with their digests."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        lines = _read_text(folder / SUMS, most=_MOST_SUMS_BYTES).splitlines()
        self._digests: dict[str, str] = {}
        for line in lines:
            digest, _, name = line.partition("  ")
            if len(digest) != 64 or not name or pathlib.PurePath(name).name != name or "\\" in name:
                raise RefusedExport(f"{folder / SUMS}: {line[:100]!r} is not a digest and a file's name")
            self._digests[name] = digest
        self._contents = {name: self._compare(name) for name in self._digests}

    def __contains__(self, name: str) -> bool:
        """Whether the export has a file of this name."""
        return name in self._contents

    def read(self, name: str) -> memoryview:
        """Return the content of a verified file."""
        if name not in self._contents:
            raise RefusedExport(f"{self._folder / SUMS} has no digest of {name}")
        return self._contents[name]

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        content = self.read(name)
        if len(content) > _MOST_JSON_BYTES:
            raise RefusedExport(f"{self._folder / name}: {len(content)} bytes; at most {_MOST_JSON_BYTES} are accepted")
        with self.expecting(name, "JSON"):
            return json.loads(bytes(content))

    def read_tensors(self, name: str) -> dict[str, np.ndarray]:
        """Return the tensors of a .safetensors file."""
        with self.expecting(name, "a complete .safetensors file"):
            return dict(read_safetensors(self.read(name)))

    @contextlib.contextmanager
    def expecting(self, name: str, kind: str) -> Iterator[None]:
        """Name a file where its content is not of the expected kind."""
        try:
            yield
        except RefusedExport as error:
            names_file = str(self._folder) in str(error)
            raise RefusedExport(str(error) if names_file else f"{self._folder / name}: {error}") from None
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError, StopIteration) as error:
            reason = f"{type(error).__name__}: {str(error)[:80]}"
            raise RefusedExport(f"{self._folder / name} cannot be used ({reason}); expected {kind}") from None

    def _compare(self, name: str) -> memoryview:
        path = self._folder / name
        try:
            _require_regular(path)
            content: Any = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise RefusedExport(f"{path} has changed since the export: its digest is not that of {SUMS}")
        return memoryview(content)


def _require_regular(path: pathlib.Path) -> os.stat_result:
    """Refuse a pipe, a device or a folder, which could block a reader; return the file's status."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")
    return status


def _read_text(path: pathlib.Path, *, most: int) -> str:
    try:
        if (size := _require_regular(path).st_size) > most:
            raise ValueError(f"{size} bytes, more than {most}")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None


def read_safetensors(content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a .safetensors file by name, as views of its content."""
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > len(content) - 8:
            raise ValueError("its header is longer than the file")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes; at most {_MOST_HEADER_BYTES} are accepted")
        header = json.loads(bytes(content[8 : 8 + length]))
        data = content[8 + length :]
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            (first, last), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype(_DTYPES[entry["dtype"]])
            if not 0 <= first <= last <= len(data) or math.prod(shape) * dtype.itemsize != last - first:
                raise ValueError(f"{name} does not fit its offsets")
            yield name, np.frombuffer(data[first:last], dtype).reshape(shape)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error)[:200]
        raise RefusedExport(f"the tensors cannot be read ({reason}); expected a complete .safetensors file") from None
