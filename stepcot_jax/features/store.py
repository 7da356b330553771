"""A folder of features by key, written in shards by any number of processes and read without a lock.

Readers see the union of complete shards; a key in two of them is harmless, since it determines its value.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import safetensors
import safetensors.numpy

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host import files
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import sync_folder, write_whole
from stepcot_jax.host.own_folder import load, save

# A key is the SHA-256 of a canonical JSON text of named fields. The fields include the kind and version of the key, so
# that different ingredients never give the same text.

_LOGGER = logging.getLogger(__name__)

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


# Frozen encoders as protocols, and the description of the store that holds their features (`store.json`).

DESCRIPTION_FILE = "store.json"
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
    """Frozen image encoder; `preprocessing` is of the images given to `encode`.

    Images are normalised float32, or uint8 pixels, which the encoder normalises on its device, bit for bit.
    """

    @property
    def preprocessing(self) -> Preprocessing: ...  # noqa: D102

    @property
    def batch_size(self) -> int:
        """Number of images of a batch that keeps its devices busy."""

    def encode(self, images: Any) -> Any:
        """Return features [case, width] of images [case, height, width, 3]; they may still be computed."""

    def encode_patches(self, images: Any) -> tuple[Any, Any]:
        """Return features [case, width] and patch tokens [case, patch, channel] of images."""

    def patch_shape(self) -> tuple[int, int]:
        """Return the number of patches of an image and their channels."""


@runtime_checkable
class FrozenTextEncoder(_FrozenEncoder, Protocol):
    """Frozen text encoder."""

    def encode(self, texts: Sequence[str], *, pooling: Any) -> Any:
        """Return features [text, width]."""


@dataclasses.dataclass(frozen=True)
class StoreSpec:
    """Origin of the features of a store."""

    encoder: str  # name for messages; the same weights under another name are the same encoder
    digest: str  # of the encoder's weights
    width: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # preprocessing of images
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
        return f"image-{self.identity_digest[:16]}"


def describe_image_store(encoder: FrozenImageEncoder, *, patches: Patches = "none") -> StoreSpec:
    """Return the spec of a store for an image encoder's features."""
    details = describe_preprocessing(encoder.preprocessing)
    if patches != "none":
        details["patch_shape"] = list(encoder.patch_shape())
    return StoreSpec(encoder.name, encoder.digest, encoder.width, details, patches)


SUFFIX = ".safetensors"
MAX_BYTES = 1 << 30  # default memory limit for features: half a million cases of width 512


class FeatureStore:
    """Features by key in a folder, in shards: safetensors files, each named by its store and its digest."""

    def __init__(self, folder: Path, spec: StoreSpec) -> None:
        self.folder, self.spec = Path(folder), spec
        self.saved: Callable[[], None] | None = None  # called after each write
        path = self.folder / DESCRIPTION_FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                save(path, spec)  # of two processes with other specs one finds the other's below
        except OSError as error:
            raise BadInput(
                f"{self.folder}: cannot be used as a feature store ({error.strerror}); expected a writable folder"
            ) from error
        if (stored := load(path, StoreSpec)).identity != spec.identity:
            raise BadInput(f"{path}: holds features of {stored.identity}; expected {spec.identity} (another folder)")
        self._name = self.spec.identity_digest[:16]
        self._seen: set[str] = set()
        self._places: dict[bytes, tuple[Path, int]] = {}  # shard and row of each key
        self.refresh()

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        """Add the shards that any process has completed; a bad one is passed over, and its features made anew."""
        for path in sorted(self.folder.glob(f"[!.]*{SUFFIX}")):
            if path.name in self._seen:
                continue
            self._seen.add(path.name)
            try:
                problem = self._add(path)
            except OSError as error:  # which may be temporary
                problem = f"cannot be read ({error.strerror})"
            if problem:
                _LOGGER.warning("%s: %s; its features will be computed again", path, problem)

    def _add(self, path: Path) -> str:
        """Add the keys of a shard whose bytes have the digest of its name; return why it is none of this store's."""
        owner, _, digest = path.stem.partition("-")
        if owner != self._name:
            return "shard of another store"
        if files.digest_file(path)[1] != digest:
            return "its content does not match its name"
        with safetensors.safe_open(path, "numpy") as shard:
            for row, key in enumerate(shard.get_tensor("keys")):
                self._places.setdefault(key.tobytes(), (path, row))
        return ""

    def write(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None = None) -> None:
        """Write features as one shard, readable by any process when this returns; the same rows make the same file."""
        features = np.asarray(features, "<f4")
        if features.shape != (len(keys), self.spec.width) or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"features must have shape ({len(keys)}, {self.spec.width}) and keys {KEY_BYTES} bytes")
        if (patches is None) != (self.spec.patches == "none"):
            raise ValueError(f"patches do not match the store's patches={self.spec.patches!r}")
        if not keys:
            return
        tensors = {"keys": np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), KEY_BYTES), "features": features}
        if patches is not None:
            tensors["patches"] = np.asarray(patches).astype(self.spec.patches)
        content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
        path = self.folder / f"{self._name}-{hashlib.sha256(content).hexdigest()}{SUFFIX}"
        try:
            write_whole(path, content)
            sync_folder(self.folder)
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
        return self._read("features", keys, np.empty((len(keys), self.spec.width), np.float32))

    def read_patches(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return patch tokens [case, patch, width] of the store's dtype, in the keys' order."""
        return self._read("patches", keys, np.empty((len(keys), *self.spec.details["patch_shape"]), self.spec.patches))

    def _read(self, name: str, keys: Sequence[bytes], rows: np.ndarray) -> np.ndarray:
        """Fill rows, each from its shard: rows of large shards are read alone, and no shard stays open."""
        self.check_present(keys)
        by_shard: dict[Path, list[int]] = {}
        for position, key in enumerate(keys):
            by_shard.setdefault(self._places[key][0], []).append(position)
        for path, positions in by_shard.items():
            with safetensors.safe_open(path, "numpy") as shard:
                stored = shard.get_slice(name)
                for position in positions:
                    rows[position] = stored[self._places[keys[position]][1]]
        return rows

    def check_present(self, keys: Sequence[bytes]) -> None:
        """Check that no key is missing."""
        num_missing = sum(key not in self._places for key in keys)
        if num_missing:
            raise BadInput(
                f"{self.folder}: {num_missing} of {len(keys)} features are missing; encode these images or texts with "
                f"{self.spec.encoder!r} (digest {self.spec.digest[:16]})"
            )


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
