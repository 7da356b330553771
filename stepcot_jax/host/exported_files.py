"""The files of an export and SHA256SUMS, their digests: written, compared, read. Needs numpy alone.

The package imports this module, and every export has a copy of it, which load.py imports.

Every file is compared with SHA256SUMS before it is used, which detects damage. An attacker could change both: use only
exports from sources whose programs you would run.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import pathlib
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

if __package__:
    from stepcot_jax.host.errors import BadInput
else:  # in the folder of an export
    BadInput = ValueError  # type: ignore[assignment]

MANIFEST_FILE, SUMS = "export.json", "SHA256SUMS"

READ_SUFFIXES = (".json", ".npz")
"""Suffixes of the files that stepcot-jax reads besides the tensors."""

_MOST_WEIGHTS_BYTES = 2**32
_MOST_SUMS_BYTES = 2**16
_MOST_JSON_BYTES, _MOST_HEADER_BYTES = 2**26, 2**24
_DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I32": np.int32, "U8": np.uint8}


class RefusedExport(BadInput):
    """An export that is incomplete or changed, or that this loader cannot read; commands print it on one line."""


def is_export(folder: pathlib.Path) -> bool:
    """Return whether a folder is an export and not a run's workdir."""
    return (folder / MANIFEST_FILE).is_file() or (folder / SUMS).is_file()


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a file, without a path to another folder."""
    return name not in ("", ".", "..") and pathlib.PurePath(name).name == name and "\\" not in name


def write_sums(folder: pathlib.Path) -> None:
    """Write the digests of all files, in the format of `sha256sum -c SHA256SUMS`."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != SUMS]
    lines = [f"{_digest(path)}  {path.name}\n" for path in paths]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def read_sums(folder: pathlib.Path) -> dict[str, str]:
    """Return the digests of an export's files by name."""
    path = folder / SUMS
    try:
        with _open_regular(path) as file:
            content = file.read(_MOST_SUMS_BYTES + 1)
        if len(content) > _MOST_SUMS_BYTES:
            raise ValueError(f"more than {_MOST_SUMS_BYTES} bytes")
        lines = content.decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None
    digests: dict[str, str] = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not is_file_name(name):
            raise RefusedExport(f"{path}: {line[:100]!r} is not a digest and a file's name")
        digests[name] = digest
    return digests


class Files:
    """The files of an export, compared with their digests; `names` alone, or all."""

    def __init__(self, folder: pathlib.Path, names: Iterable[str] | None = None) -> None:
        self._folder, self._digests = folder, read_sums(folder)
        self._contents = {name: self._compare(name) for name in (self._digests if names is None else names)}

    def __contains__(self, name: str) -> bool:
        """Whether the export has a file of this name."""
        return name in self._contents

    def read(self, name: str) -> memoryview:
        """Return the content of a verified file."""
        if name not in self._contents:
            raise self._miss(name)
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
        if name not in self._digests:
            raise self._miss(name)
        try:
            with _open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                content: Any = np.memmap(file, np.uint8, "r") if file.tell() else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None
        if digest != self._digests[name]:
            raise RefusedExport(f"{path} has changed since the export, or is incomplete: not its digest in {SUMS}")
        return memoryview(content)

    def _miss(self, name: str) -> RefusedExport:
        return RefusedExport(f"{self._folder / SUMS} has no digest of {name[:100]!r}; expected one for each file")


def require_read(folder: pathlib.Path) -> None:
    """Compare all files that stepcot-jax reads besides the tensors with their digests."""
    Files(folder, [name for name in read_sums(folder) if name.endswith(READ_SUFFIXES)])


def read_weights(folder: pathlib.Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the tensors of .safetensors files of an export by name, as float32; stored are float32 and float16."""
    names = list(names)
    for name in names:
        if not is_file_name(name) or not name.endswith(".safetensors"):
            raise RefusedExport(
                f"{folder / MANIFEST_FILE}: {name[:100]!r} is not a .safetensors file of the same folder"
            )
    files = Files(folder, names)
    if (total := sum(len(files.read(name)) for name in names)) > _MOST_WEIGHTS_BYTES:
        raise RefusedExport(f"{folder}: the tensors take {total} bytes; at most {_MOST_WEIGHTS_BYTES} are accepted")
    tensors = {key: tensor for name in names for key, tensor in files.read_tensors(name).items()}
    for key, tensor in tensors.items():
        if tensor.dtype not in (np.float32, np.float16):
            kinds = "float32 or float16"
            raise RefusedExport(f"{folder}: tensor {key[:100]!r} has the type {tensor.dtype}; expected {kinds}")
    return {key: tensor.astype(np.float32) for key, tensor in tensors.items()}  # copies: the files may change


def _digest(path: pathlib.Path) -> str:
    with _open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_regular(path: pathlib.Path) -> io.BufferedReader:
    """Open a file for reading; refuse a pipe, a device or a folder, which could block a reader."""
    _require_regular(path.stat())
    wait_for_none = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait_for_none))  # noqa: SIM115
    try:
        _require_regular(os.fstat(file.fileno()))  # the path may have changed since
    except OSError:
        file.close()
        raise
    return file


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a regular file")


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
        header.pop("__metadata__", None)
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            (first, last), shape, kind = entry["data_offsets"], entry["shape"], entry["dtype"]
            if first != end:
                raise ValueError(f"{name[:80]} starts at byte {first}; expected {end}, where the tensor before it ends")
            end = last
            if kind not in _DTYPES:
                raise ValueError(f"{name[:80]} has the type {str(kind)[:20]}; expected one of {', '.join(_DTYPES)}")
            dtype = np.dtype(_DTYPES[kind])
            if not 0 <= first <= last <= len(data) or math.prod(shape) * dtype.itemsize != last - first:
                raise ValueError(f"{name} does not fit its offsets")
            yield name, np.frombuffer(data[first:last], dtype).reshape(shape)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error)[:200]
        raise RefusedExport(f"the tensors cannot be read ({reason}); expected a complete .safetensors file") from None
