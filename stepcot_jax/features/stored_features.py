"""Stored features for training: one array where they fit in memory, else read by index."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput

MAX_BYTES = 1 << 30
"""Memory that features may take unless told otherwise: half a million cases of width 512."""


class StoredFeatures:
    """Features that stay on disk and are read when they are indexed, like an array [case, width].

    Args:
      store: where they are; read without a lock, from any thread or process.
      keys: the key of each case.
    """

    def __init__(self, store: FeatureStore, keys: Sequence[bytes]) -> None:
        store.check_present(keys)
        self._store, self._keys = store, tuple(keys)
        self.shape = (len(self._keys), store.spec.width)
        self.dtype = np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Features float32 [..., width] of one index, a slice, or an array of indices."""
        if isinstance(index, slice):
            index = np.arange(len(self._keys))[index]
        positions = np.asarray(index)
        if positions.dtype == bool or (positions.size and not np.issubdtype(positions.dtype, np.integer)):
            raise IndexError(f"found an index of type {positions.dtype}, accepted are whole numbers and slices")
        rows = self._store.read([self._keys[position] for position in positions.ravel().tolist()])
        return rows.reshape(*positions.shape, self.shape[1])


def load_features(store: FeatureStore, keys: Sequence[bytes], *, max_bytes: int = MAX_BYTES) -> np.ndarray:
    """Features float32 [case, width] in the keys' order, in memory.

    Args:
      store: where they are.
      keys: the key of each case; the same key may come several times.
      max_bytes: the most that the array may take.

    Raises:
      BadInput: features are missing (the message has their number), or the array would be too large.
    """
    store.refresh()
    num_bytes = _num_bytes(store, keys)
    if num_bytes > max_bytes:
        raise BadInput(
            f"{store.folder}: found {len(keys)} features of {num_bytes / 1e6:.0f} MB together, accepted in memory are "
            f"{max_bytes / 1e6:.0f} MB"
        )
    return store.read(keys)


def open_features(
    store: FeatureStore, keys: Sequence[bytes], *, max_bytes: int = MAX_BYTES
) -> np.ndarray | StoredFeatures:
    """Features in the keys' order: in memory if they take at most `max_bytes`, else read by index.

    Raises:
      BadInput: features are missing.
    """
    store.refresh()
    return store.read(keys) if _num_bytes(store, keys) <= max_bytes else StoredFeatures(store, keys)


def _num_bytes(store: FeatureStore, keys: Sequence[bytes]) -> int:
    return len(keys) * store.spec.width * np.dtype(np.float32).itemsize
