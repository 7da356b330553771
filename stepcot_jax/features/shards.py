"""One shard of a feature store: a safetensors file that is whole and verified, or not taken for a shard at all.

A shard holds `keys` uint8 [case, 32], `features` float32 [case, width] and, where asked for, `patches`
[case, patch, width]. Its header names the store it belongs to and the SHA-256 of its content. It never changes after it
got its name, hence readers need no lock. Any safetensors library can read it.

Rows are read at their place in the file rather than through a memory map, which is three times as fast (0.1 ms for 32
features instead of 0.3) but keeps a file open for every shard, counts as resident memory, and ends the process where a
file becomes shorter.
"""

import dataclasses
import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from stepcot_jax.features.keys import KEY_BYTES

SUFFIX = ".safetensors"
PARTIAL_SUFFIX = ".partial"

_DTYPES: dict[str, np.dtype] = {"U8": np.dtype("u1"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_TENSORS = ("keys", "features", "patches")
_MAX_HEADER_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20


class BadShard(ValueError):
    """A file that is not a whole shard of this store; its message says why, without the file's name."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where one array of a shard lies in its file.

    Attributes:
      offset: of the first byte.
      shape: of a row.
      dtype: of a value.
      num_rows: number of rows.
    """

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
    """A verified shard: its file and where its arrays lie."""

    path: Path
    arrays: dict[str, Rows]

    def read(self, name: str, rows: Sequence[int]) -> list[np.ndarray]:
        """Rows of one array, in the order asked for.

        Raises:
          OSError: the file cannot be read any more.
        """
        place, row_bytes = self.arrays[name], self.arrays[name].row_bytes
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            contents = [os.pread(descriptor, row_bytes, place.offset + row * row_bytes) for row in rows]
        finally:
            os.close(descriptor)
        if any(len(content) != row_bytes for content in contents):
            raise OSError(None, "shorter than when it was opened", str(self.path))
        return [np.frombuffer(content, place.dtype).reshape(place.shape) for content in contents]

    def read_keys(self) -> list[bytes]:
        """The key of every row."""
        return [key.tobytes() for key in self.read("keys", range(self.arrays["keys"].num_rows))]


def write_shard(
    folder: Path, *, store_digest: str, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None
) -> Path:
    """Write a new shard, whole or not at all.

    Args:
      folder: the store's folder.
      store_digest: of the store's description; a shard of another is refused.
      keys: one a row.
      features: float32 [case, width].
      patches: float16 or float32 [case, patch, width], or None.

    Returns:
      The shard's path; no two writers use the same.
    """
    tensors = {"keys": np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_BYTES), "features": features}
    if patches is not None:
        tensors["patches"] = patches
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    digest = hashlib.sha256()
    for name in tensors:
        digest.update(tensors[name].data)
    content = safetensors.numpy.save(tensors, metadata={"store": store_digest, "sha256": digest.hexdigest()})
    # Drawn anew for every shard: processes that were forked from one another would share any counter.
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
    partial = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
    try:
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(folder)
    return path


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_shard(path: Path, *, store_digest: str, width: int, patch_dtype: np.dtype | None) -> Shard:
    """A shard whose every byte has been verified.

    Args:
      path: the file.
      store_digest: of the description of the store it must belong to.
      width: of a feature.
      patch_dtype: of its patches, None where it must have none.

    Raises:
      BadShard: the file is truncated, changed, not a shard, or one of another store.
      OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        metadata, arrays = _read_header(file.fileno(), size)
        if metadata.get("store") != store_digest:
            raise BadShard("found a shard of another store")
        expected = {"keys": ((KEY_BYTES,), np.dtype("u1")), "features": ((width,), np.dtype("<f4"))}
        for name, (shape, dtype) in expected.items():
            if name not in arrays or (arrays[name].shape, arrays[name].dtype) != (shape, dtype):
                raise BadShard(f"found no {name} of {shape} {dtype} a row")
        found_dtype = arrays["patches"].dtype if "patches" in arrays else None
        if found_dtype != patch_dtype or len({rows.num_rows for rows in arrays.values()}) != 1:
            raise BadShard("found arrays other than this store has")
        digest = hashlib.sha256()
        for name in _TENSORS:
            if name in arrays:
                _update(digest, file.fileno(), arrays[name])
    if metadata.get("sha256") != digest.hexdigest():
        raise BadShard("found content that does not agree with its checksum")
    return Shard(path, arrays)


def _read_header(descriptor: int, size: int) -> tuple[dict[str, Any], dict[str, Rows]]:
    """The metadata and the places of the arrays, which fill the file without gap or overlap."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        raise BadShard(f"found {size} bytes without a header")
    try:
        header = json.loads(os.pread(descriptor, length, 8))
        metadata = dict(header.pop("__metadata__"))
        arrays, end_of_last = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            num_rows, *shape = (int(side) for side in entry["shape"])
            begin, end = entry["data_offsets"]
            rows = Rows(8 + length + begin, tuple(shape), _DTYPES[entry["dtype"]], num_rows)
            if (
                name not in _TENSORS
                or begin != end_of_last
                or end - begin != num_rows * rows.row_bytes
                or min(shape) < 1
            ):
                raise BadShard(f"found an unexpected array {name[:40]!r} in its header")
            arrays[name], end_of_last = rows, end
    except BadShard:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadShard("found a header that cannot be read") from error
    if 8 + length + end_of_last != size:
        raise BadShard(f"found {size} bytes, its header promises {8 + length + end_of_last}")
    return metadata, arrays


def _update(digest: Any, descriptor: int, rows: Rows) -> None:
    position, end = rows.offset, rows.offset + rows.num_rows * rows.row_bytes
    while position < end:
        piece = os.pread(descriptor, min(_CHUNK_BYTES, end - position), position)
        if not piece:
            raise BadShard("found an end before its content is complete")
        digest.update(piece)
        position += len(piece)
