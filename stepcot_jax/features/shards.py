"""Shards of a feature store: safetensors files, verified to the last byte when opened.

A shard holds `keys` uint8 [case, 32], `features` float32 [case, width] and optionally `patches` [case, patch, width].
Its header has the digest of its store and the SHA-256 of its content. It never changes, so readers need no lock. Any
safetensors library can read it.

Rows are read with `pread`. `safe_open().get_slice` is three times as fast (0.1 instead of 0.3 ms for 32 features), but
its memory map keeps every shard open, counts as resident memory, and kills the process with SIGBUS if a file shrinks.
ArrayRecord is eleven times as slow for random batches of 32, and opens a truncated file as an empty one.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from stepcot_jax.features.keys import KEY_BYTES
from stepcot_jax.host.files import sync_folder, write_whole

SUFFIX = ".safetensors"

_DTYPES: dict[str, np.dtype] = {"U8": np.dtype("u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_TENSORS = ("keys", "features", "patches")
_MAX_HEADER_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_STALE_SECONDS = 3600.0

_LOGGER = logging.getLogger(__name__)


class BadShard(ValueError):
    """A file is not a valid shard of this store; the message gives the reason, without the file's name."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Position of an array in a shard's file."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype
    num_rows: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Shard:
    """A verified shard: its file and the positions of its arrays."""

    path: Path
    arrays: dict[str, Rows]

    def read(self, name: str, rows: Sequence[int]) -> list[np.ndarray]:
        """Return rows of an array, in the given order."""
        place, row_bytes = self.arrays[name], self.arrays[name].row_bytes
        with self.path.open("rb", buffering=0) as file:
            contents = [os.pread(file.fileno(), row_bytes, place.offset + row * row_bytes) for row in rows]
        if any(len(content) != row_bytes for content in contents):
            raise OSError(None, "the file shrank", str(self.path))
        return [np.frombuffer(content, place.dtype).reshape(place.shape) for content in contents]

    def read_keys(self) -> list[bytes]:
        """Return the key of every row."""
        return [key.tobytes() for key in self.read("keys", range(self.arrays["keys"].num_rows))]


def write_shard(
    folder: Path, *, store_digest: str, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None
) -> Path:
    """Write a new shard atomically and return its path, which depends on its content alone.

    Args:
      patches: float16 or float32 [case, patch, width], or None.
    """
    tensors = {"keys": np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_BYTES), "features": features}
    if patches is not None:
        tensors["patches"] = patches
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(tensors[name].data)
    content = _sort_header(
        safetensors.numpy.save(tensors, metadata={"store": store_digest, "sha256": digest.hexdigest()})
    )
    # Named by its keys and content: writing the same shard twice leaves one file.
    path = folder / f"{digest.hexdigest()[:32]}{SUFFIX}"
    write_whole(path, content)
    sync_folder(folder)
    return path


def _sort_header(content: bytes) -> bytes:
    """Return a safetensors file with sorted metadata, which the library writes in a random order."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    text = json.dumps(
        {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}, separators=(",", ":")
    )
    return content[:8] + text.encode().ljust(end - 8) + content[end:]


def open_shard(path: Path, *, store_digest: str, width: int, patch_dtype: np.dtype | None) -> Shard:
    """Open a shard and verify every byte."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        metadata, arrays = _read_header(file.fileno(), size)
        if metadata.get("store") != store_digest:
            raise BadShard("shard of another store")
        expected = {"keys": ((KEY_BYTES,), np.dtype("u1")), "features": ((width,), np.dtype("<f4"))}
        for name, (shape, dtype) in expected.items():
            if name not in arrays or (arrays[name].shape, arrays[name].dtype) != (shape, dtype):
                raise BadShard(f"no array {name} with rows of {shape} {dtype}")
        found_dtype = arrays["patches"].dtype if "patches" in arrays else None
        if found_dtype != patch_dtype or len({rows.num_rows for rows in arrays.values()}) != 1:
            raise BadShard("unexpected arrays for this store")
        digest = hashlib.sha256()
        for rows in (arrays[name] for name in _TENSORS if name in arrays):
            end = rows.offset + rows.num_rows * rows.row_bytes
            for position in range(rows.offset, end, _CHUNK_BYTES):
                digest.update(os.pread(file.fileno(), min(_CHUNK_BYTES, end - position), position))
    if metadata.get("sha256") != digest.hexdigest():
        raise BadShard("content does not match its checksum")
    return Shard(path, arrays)


def _read_header(descriptor: int, size: int) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the metadata and the positions of the arrays, which must fill the file without gaps or overlaps."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        raise BadShard(f"{size} bytes without a header")
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        metadata = dict(header.pop("__metadata__"))
        arrays, end_of_last = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            num_rows, *shape = (int(side) for side in entry["shape"])
            begin, end = entry["data_offsets"]
            rows = Rows(8 + length + begin, tuple(shape), _DTYPES[entry["dtype"]], num_rows)
            fits = begin == end_of_last and end - begin == num_rows * rows.row_bytes
            if name not in _TENSORS or not fits or min(shape) < 1:
                raise BadShard(f"unexpected array {name[:40]!r} in the header")
            arrays[name], end_of_last = rows, end
    except BadShard:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadShard("unreadable header") from error
    if 8 + length + end_of_last != size:
        raise BadShard(f"{size} bytes instead of {8 + length + end_of_last}")
    return metadata, arrays


def remove_stale_partials(folder: Path) -> None:
    """Remove partial files that killed processes left; younger than an hour they may belong to a running one."""
    for path in folder.glob(".*.partial"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
        except OSError:
            _LOGGER.debug("%s: not removed", path)
