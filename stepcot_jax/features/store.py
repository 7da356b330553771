"""A folder of features by key, written in shards by any number of processes and read without a lock.

The folder holds `store.json` (see `spec`) and shards (see `shards`). A process killed at any moment leaves complete
shards and at most a hidden partial file, which is never read. A reader takes the union of the shards; a key in two
of them is harmless, since a key determines its value.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepcot_jax.features.keys import KEY_BYTES
from stepcot_jax.features.shards import SUFFIX, BadShard, Shard, open_shard, remove_stale_partials, write_shard
from stepcot_jax.features.spec import StoreSpec, open_spec
from stepcot_jax.host.errors import BadInput

MAX_BYTES = 1 << 30
"""Default memory limit for features: half a million cases of width 512."""

_LOGGER = logging.getLogger(__name__)
BAD_SUFFIX = ".bad"


class FeatureStore:
    """Features by key in a folder.

    Args:
      indexed: whether to read the shards; False for a process that only writes to the store.

    Attributes:
      saved: called with the path of every shard that this object has written; None if nothing is to be done.
    """

    def __init__(self, folder: Path, spec: StoreSpec | None = None, *, indexed: bool = True) -> None:
        self.folder, self._indexed = Path(folder), indexed
        self.saved: Callable[[Path], None] | None = None
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
        self._places: dict[bytes, tuple[int, int]] = {}
        self.refresh()

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        """Add the shards that any process has completed; bad ones are logged and renamed to `*.bad`."""
        if not self._indexed:
            return
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
        """Write features as one shard, readable by any process when this returns.

        Args:
          patches: [case, patch, width] if the store has patch tokens.
        """
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
            self.saved(path)
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
            by_shard.setdefault(self._places[key][0], []).append(position)
        for number, positions in by_shard.items():
            try:
                found = self._shards[number].read(name, [self._places[keys[position]][1] for position in positions])
            except OSError as error:
                raise BadInput(
                    f"{self._shards[number].path}: can no longer be read ({error.strerror}); shards must not change "
                    "during a run"
                ) from error
            for position, row in zip(positions, found, strict=True):
                rows[position] = row
        return rows

    def check_present(self, keys: Sequence[bytes]) -> None:
        """Check that no key is missing."""
        num_missing = sum(key not in self._places for key in keys)
        if num_missing:
            raise BadInput(
                f"{self.folder}: {num_missing} of {len(keys)} features are missing; encode these images or texts with "
                f"{self.spec.encoder!r} (digest {self.spec.digest[:16]})"
            )

    def _add(self, shard: Shard) -> None:
        if self._patch_dtype is not None and self._shards:
            found, expected = shard.arrays["patches"].shape, self._shards[0].arrays["patches"].shape
            if found != expected:
                raise BadShard(f"patch tokens have shape {found}, those of {self._shards[0].path.name} {expected}")
        for row, key in enumerate(shard.read_keys()):
            self._places.setdefault(key, (len(self._shards), row))
        self._shards.append(shard)

    def _set_aside(self, path: Path, reason: str) -> None:
        _LOGGER.warning("%s: %s; renamed to *.bad, its features will be computed again", path, reason)
        try:
            path.rename(path.with_name(path.name + BAD_SUFFIX))
            self._seen.discard(path.name)  # whoever computes the features again writes the same name
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
        """Return features float32 [..., width] for an index, a slice or an array of indices."""
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
