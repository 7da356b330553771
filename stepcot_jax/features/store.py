"""A folder of features by key, written in shards by any number of processes and read without a lock.

Readers see the union of complete shards; a key in two of them is harmless, since it determines its value.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import safetensors.numpy

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host import files
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import sync_folder, write_whole
from stepcot_jax.host.own_folder import load, save

# A key is the SHA-256 of a canonical JSON text of named fields. The fields include the kind and version of the key, so
# that different ingredients never give the same text.

KEY_BYTES = 32
DECODING_VERSION = 2  # version of the pixels that `data.images` decodes; a new version gives every image a new key
_VERSION = 1


def digest_fields(kind: str, /, **fields: Any) -> bytes:
    """Return the SHA-256 of named values, 32 bytes."""
    text = json.dumps(["stepcot_jax", _VERSION, kind, fields], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_file(path: Path) -> str:
    """Return "file:" and the SHA-256 of a file in hex."""
    try:
        return f"file:{files.digest_file(path)[1]}"
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error


def digest_pixels(pixels: np.ndarray) -> str:
    """Return "pixels:" and the SHA-256 of an array's type, shape and values in hex, for images without a file."""
    pixels = np.asarray(pixels)
    pixels = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False))
    digest = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode("ascii"))
    digest.update(pixels.data)
    return f"pixels:{digest.hexdigest()}"


def describe_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a preprocessing as JSON values, for keys and store descriptions."""
    return {
        "size": int(preprocessing.size),
        "mean": [float(value) for value in preprocessing.mean],
        "std": [float(value) for value in preprocessing.std],
        "fit": str(preprocessing.fit),
        **preprocessing.unusual,
        "decoding_version": DECODING_VERSION,
    }


# Shards of a feature store: safetensors files, verified to the last byte when opened.

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
        array, row_bytes = self.arrays[name], self.arrays[name].row_bytes
        with self.path.open("rb", buffering=0) as file:
            contents = [os.pread(file.fileno(), row_bytes, array.offset + row * row_bytes) for row in rows]
        if any(len(content) != row_bytes for content in contents):
            raise OSError(None, "the file shrank", str(self.path))
        return [np.frombuffer(content, array.dtype).reshape(array.shape) for content in contents]


def write_shard(
    folder: Path, *, store_digest: str, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None
) -> Path:
    """Write a new shard atomically and return its path, which depends on its content alone."""
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
    metadata = dict(sorted(header.pop("__metadata__").items()))
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":"))
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
        stored_dtype = arrays["patches"].dtype if "patches" in arrays else None
        if stored_dtype != patch_dtype or len({rows.num_rows for rows in arrays.values()}) != 1:
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
    """Remove partial files of killed processes; files younger than an hour may belong to a running process."""
    for path in folder.glob(".*.partial"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
        except OSError:
            _LOGGER.debug("%s: not removed", path)


# Frozen encoders as protocols, and the description of the store that holds their features (`store.json`).

DESCRIPTION_FILE = "store.json"
Kind = Literal["image", "text", "imported images", "imported prompts"]
Patches = Literal["none", "float16", "float32"]


class _FrozenEncoder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    @property
    def digest(self) -> str: ...


@runtime_checkable
class FrozenImageEncoder(_FrozenEncoder, Protocol):
    """Frozen image encoder; `preprocessing` is of the images given to `encode`."""

    @property
    def preprocessing(self) -> Preprocessing: ...  # noqa: D102

    def encode(self, images: Any) -> Any:
        """Return features [case, width] of normalised images float32 [case, height, width, 3]."""

    def encode_patches(self, images: Any) -> tuple[Any, Any]:
        """Return features [case, width] and patch tokens [case, patch, channel] of normalised images."""

    def patch_shape(self) -> tuple[int, int]:
        """Return the number of patches of an image and their channels."""


@runtime_checkable
class FrozenTextEncoder(_FrozenEncoder, Protocol):
    """Frozen text encoder; `max_tokens` is the length at which texts are truncated."""

    @property
    def max_tokens(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str], *, pooling: Any) -> Any:
        """Return features [text, width]."""


@dataclasses.dataclass(frozen=True)
class StoreSpec:
    """Origin of the features of a store."""

    kind: Kind
    encoder: str  # name for messages; the same weights under another name are the same encoder
    digest: str  # of the encoder's weights, or of the files of imported features
    width: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # preprocessing of images, or pooling of texts
    patches: Patches = "none"  # dtype of the patch tokens stored with the features, or "none"

    def __post_init__(self) -> None:
        # Lists for tuples, as JSON returns them, so that written and requested specs compare equal.
        object.__setattr__(self, "details", json.loads(json.dumps(dict(self.details))))

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that processes sharing a store must agree on."""
        fields = dataclasses.asdict(self)
        del fields["encoder"]
        return fields

    @property
    def identity_digest(self) -> str:
        """Hex digest of `identity`."""
        return digest_fields("store", **self.identity).hex()

    @property
    def folder_name(self) -> str:
        """Folder name for the store, unique to this spec."""
        return f"{self.kind.replace(' ', '-')}-{self.identity_digest[:16]}"


def describe_image_store(encoder: FrozenImageEncoder, *, patches: Patches = "none") -> StoreSpec:
    """Return the spec of a store for an image encoder's features."""
    details = describe_preprocessing(encoder.preprocessing)
    if patches != "none":
        details["patch_shape"] = list(encoder.patch_shape())
    return StoreSpec("image", encoder.name, encoder.digest, encoder.width, details, patches)


def describe_text_store(encoder: FrozenTextEncoder, *, pooling: str) -> StoreSpec:
    """Return the spec of a store for a text encoder's features."""
    width = getattr(encoder, "projected_width", 0) if pooling == "projected" else encoder.width
    details = {"pooling": pooling, "max_tokens": int(encoder.max_tokens)}
    return StoreSpec("text", encoder.name, encoder.digest, width, details)


def open_spec(folder: Path, spec: StoreSpec | None) -> StoreSpec:
    """Return the spec of a store's folder, and write it if the folder is new."""
    path = folder / DESCRIPTION_FILE
    if spec is not None and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        strangers = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
        if strangers and not path.exists():
            raise BadInput(
                f"{folder}: contains {sorted(strangers)[0]!r} and no {DESCRIPTION_FILE} (expected a new or empty "
                "folder, or a feature store)"
            )
        _write_once(path, spec)
    stored = load(path, StoreSpec)
    if spec is None:
        return stored
    differing = [name for name, value in spec.identity.items() if stored.identity[name] != value]
    if differing:
        raise BadInput(
            f"{path}: the store holds features of {stored.encoder!r} with {_list_fields(stored, differing)}; expected "
            f"{_list_fields(spec, differing)} (use another folder)"
        )
    return spec


def _list_fields(spec: StoreSpec, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={json.dumps(spec.identity[name])[:200]}" for name in names)


def _write_once(path: Path, spec: StoreSpec) -> None:
    """Write a store's description atomically unless it exists; several processes may do so at once."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    save(partial, spec)
    try:
        path.hardlink_to(partial)  # unlike a rename, fails if another process was first
    except FileExistsError:
        return
    except OSError:  # a file system without links
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


MAX_BYTES = 1 << 30  # default memory limit for features: half a million cases of width 512
BAD_SUFFIX = ".bad"


class FeatureStore:
    """Features by key in a folder."""

    def __init__(self, folder: Path, spec: StoreSpec | None = None) -> None:
        self.folder = Path(folder)
        self.saved: Callable[[], None] | None = None
        try:
            self.spec = open_spec(self.folder, spec)
            remove_stale_partials(self.folder)
        except OSError as error:
            raise BadInput(
                f"{self.folder}: cannot be used as a feature store ({error.strerror}); expected a writable folder"
            ) from error
        self._patch_dtype = None if self.spec.patches == "none" else np.dtype(self.spec.patches).newbyteorder("<")
        self._shards: list[Shard] = []
        self._seen: set[str] = set()
        self._positions: dict[bytes, tuple[int, int]] = {}
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def refresh(self) -> None:
        """Add the shards that any process has completed; bad ones are logged and renamed to `*.bad`."""
        names = {path.name for path in self.folder.iterdir() if path.name.endswith(SUFFIX)}
        for name in sorted(name for name in names - self._seen if not name.startswith(".")):
            self._seen.add(name)
            path = self.folder / name
            try:
                digest = self.spec.identity_digest
                shard = open_shard(path, store_digest=digest, width=self.spec.width, patch_dtype=self._patch_dtype)
                self._add(shard)
            except FileNotFoundError:  # another process has renamed it
                continue
            except BadShard as error:
                self._set_aside(path, str(error))
            except OSError as error:  # may be temporary: the shard stays
                _LOGGER.warning("%s: cannot be read (%s); its features will be computed again", path, error.strerror)

    def write(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None = None) -> None:
        """Write features as one shard, readable by any process when this returns."""
        features = np.asarray(features, "<f4")
        if features.shape != (len(keys), self.spec.width) or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"features must have shape ({len(keys)}, {self.spec.width}) and keys {KEY_BYTES} bytes")
        if (patches is None) != (self._patch_dtype is None):
            raise ValueError(f"patches do not match the store's patches={self.spec.patches!r}")
        if not keys:
            return
        patches = None if patches is None else np.asarray(patches).astype(self._patch_dtype)
        try:
            digest = self.spec.identity_digest
            path = write_shard(self.folder, store_digest=digest, keys=keys, features=features, patches=patches)
        except OSError as error:
            raise BadInput(
                f"{self.folder}: features cannot be written ({error.strerror}); earlier features are kept"
            ) from error
        if self.saved is not None:
            self.saved()
        self._seen.discard(path.name)
        self.refresh()

    def read(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return features float32 [case, width] in the keys' order."""
        return self._read("features", keys, (self.spec.width,), np.dtype(np.float32))

    def read_patches(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return patch tokens [case, patch, width] of the store's dtype, in the keys' order."""
        if self._patch_dtype is None or not self._shards:
            raise BadInput(f"{self.folder}: the store has no patch tokens (set config.features.patches when encoding)")
        return self._read("patches", keys, self._shards[0].arrays["patches"].shape, np.dtype(self.spec.patches))

    def _read(self, name: str, keys: Sequence[bytes], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        self.check_present(keys)
        rows = np.empty((len(keys), *shape), dtype)
        by_shard: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            by_shard.setdefault(self._positions[key][0], []).append(position)
        for number, positions in by_shard.items():
            try:
                wanted = [self._positions[keys[position]][1] for position in positions]
                contents = self._shards[number].read(name, wanted)
            except OSError as error:
                raise BadInput(
                    f"{self._shards[number].path}: can no longer be read ({error.strerror}); shards must not change "
                    "during a run"
                ) from error
            for position, row in zip(positions, contents, strict=True):
                rows[position] = row
        return rows

    def check_present(self, keys: Sequence[bytes]) -> None:
        """Check that no key is missing."""
        num_missing = sum(key not in self._positions for key in keys)
        if num_missing:
            raise BadInput(
                f"{self.folder}: {num_missing} of {len(keys)} features are missing; encode these images or texts with "
                f"{self.spec.encoder!r} (digest {self.spec.digest[:16]})"
            )

    def _add(self, shard: Shard) -> None:
        if self._patch_dtype is not None and self._shards:
            shape, expected = shard.arrays["patches"].shape, self._shards[0].arrays["patches"].shape
            if shape != expected:
                raise BadShard(f"patch tokens have shape {shape}, those of {self._shards[0].path.name} {expected}")
        for row, key in enumerate(shard.read("keys", range(shard.arrays["keys"].num_rows))):
            self._positions.setdefault(key.tobytes(), (len(self._shards), row))
        self._shards.append(shard)

    def _set_aside(self, path: Path, reason: str) -> None:
        _LOGGER.warning("%s: %s; renamed to *.bad, its features will be computed again", path, reason)
        try:
            path.rename(path.with_name(path.name + BAD_SUFFIX))
            self._seen.discard(path.name)  # a process that computes the features again writes the same name
        except OSError:  # another process was first, or the folder is read-only
            _LOGGER.debug("%s: not renamed", path)


class StoredFeatures:
    """Features on disk, read when indexed like an array [case, width]."""

    def __init__(self, store: FeatureStore, keys: Sequence[bytes]) -> None:
        store.check_present(keys)
        self._store, self._keys = store, tuple(keys)
        self.shape = (len(self._keys), store.spec.width)
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            index = np.arange(len(self._keys))[index]
        positions = np.asarray(index)
        if positions.dtype == bool or (positions.size and not np.issubdtype(positions.dtype, np.integer)):
            raise IndexError(f"indices must be whole numbers or slices; got {positions.dtype}")
        rows = self._store.read([self._keys[position] for position in positions.ravel().tolist()])
        return rows.reshape(*positions.shape, self.shape[1])


def open_features(
    store: FeatureStore, keys: Sequence[bytes], *, max_bytes: int = MAX_BYTES
) -> np.ndarray | StoredFeatures:
    """Return features in the keys' order: in memory up to `max_bytes`, else read when indexed."""
    store.refresh()
    num_bytes = 4 * len(keys) * store.spec.width
    return store.read(keys) if num_bytes <= max_bytes else StoredFeatures(store, keys)
