"""A folder of features by key: written in whole shards, by any number of processes, read without a lock.

The folder holds `store.json`, which says what made the features, and shards (see `shards`). A process killed at any
moment leaves whole shards and at most a hidden partial file, which nobody reads. A reader takes the union of the
shards; a key in two of them is harmless, since a key stands for one value.

Why not ArrayRecord: of 10,000 features of 512, 100,000 reads in random batches of 32 take eleven times as long through
Grain's ArrayRecordDataSource (one by one as long as here), and a truncated file opens there as one of no records.
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepcot_jax.features.keys import KEY_BYTES
from stepcot_jax.features.shards import PARTIAL_SUFFIX, SUFFIX, BadShard, Shard, open_shard, write_shard
from stepcot_jax.features.spec import DESCRIPTION_FILE, StoreSpec, list_fields, read_spec, write_once
from stepcot_jax.host.errors import BadInput

_LOGGER = logging.getLogger(__name__)
_BAD_SUFFIX = ".bad"
_STALE_SECONDS = 3600.0


class FeatureStore:
    """Features by key in a folder.

    Args:
      folder: made if missing; each spec needs its own, `spec.folder_name` is a fitting name.
      spec: what makes the features; None takes what an existing store says.

    Raises:
      BadInput: the folder holds a store of another spec or version, or something else, or cannot be used.
    """

    def __init__(self, folder: Path, spec: StoreSpec | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.spec = self._describe(spec)
            self._remove_stale_partials()
        except OSError as error:
            raise BadInput(
                f"{self.folder}: cannot hold features ({error.strerror}), accepted is a folder that can be written"
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
        """Take in the shards that this or another process has finished; bad ones are named and set aside."""
        names = {path.name for path in self.folder.iterdir() if path.name.endswith(SUFFIX)}
        for name in sorted(name for name in names - self._seen if not name.startswith(".")):
            self._seen.add(name)
            path = self.folder / name
            try:
                shard = open_shard(
                    path,
                    store_digest=self.spec.identity_digest,
                    width=self.spec.width,
                    patch_dtype=self._patch_dtype,
                )
                self._check_patches(shard)
                self._take(shard, shard.read_keys())
            except FileNotFoundError:  # another process has set it aside
                continue
            except BadShard as error:
                self._set_aside(path, str(error))
            except OSError as error:  # may pass, hence no reason to give up a good shard
                _LOGGER.warning(
                    "%s: cannot be read (%s); left out, its features will be made anew", path, error.strerror
                )

    def write(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None = None) -> None:
        """Write features as one shard; they can be read, by any process, when this returns.

        Args:
          keys: one a row, 32 bytes each.
          features: [case, width], finite.
          patches: [case, patch, width] where the store keeps patch tokens.

        Raises:
          BadInput: the folder cannot be written.
        """
        features = np.asarray(features, "<f4")
        if features.shape != (len(keys), self.spec.width) or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"features {features.shape} for {len(keys)} keys of a store of width {self.spec.width}")
        if (patches is None) != (self._patch_dtype is None):
            raise ValueError(f"a store with patches={self.spec.patches!r} was given other rows")
        if not keys:
            return
        patches = None if patches is None else np.asarray(patches).astype(self._patch_dtype)
        try:
            path = write_shard(
                self.folder,
                store_digest=self.spec.identity_digest,
                keys=keys,
                features=features,
                patches=patches,
            )
        except OSError as error:
            raise BadInput(
                f"{self.folder}: features cannot be written ({error.strerror}), accepted is a folder with room "
                "that can be written; what was written before stays"
            ) from error
        self._seen.discard(path.name)
        self.refresh()

    def read(self, keys: Sequence[bytes]) -> np.ndarray:
        """Features float32 [case, width] in the keys' order.

        Raises:
          BadInput: a key is missing, or a shard cannot be read any more.
        """
        return self._read("features", keys, (self.spec.width,), np.dtype(np.float32))

    def read_patches(self, keys: Sequence[bytes]) -> np.ndarray:
        """Patch tokens [case, patch, width] of the store's type, in the keys' order.

        Raises:
          BadInput: the store keeps none, a key is missing, or a shard cannot be read any more.
        """
        if self._patch_dtype is None or not self._shards:
            raise BadInput(f"{self.folder}: found no patch tokens, accepted is a store that was filled with them")
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
                    f"{self._shards[number].path}: cannot be read any more ({error.strerror}), accepted are shards "
                    "that stay as they were while a run reads them"
                ) from error
            for position, row in zip(positions, found, strict=True):
                rows[position] = row
        return rows

    def check_present(self, keys: Sequence[bytes]) -> None:
        """Refuse if a key is missing.

        Raises:
          BadInput: with the number of missing keys.
        """
        num_missing = sum(key not in self._places for key in keys)
        if num_missing:
            raise BadInput(
                f"{self.folder}: {num_missing} of {len(keys)} features are missing, accepted is a store that has been "
                f"filled with {self.spec.encoder!r} (digest {self.spec.digest[:16]}) for these images or texts"
            )

    def _take(self, shard: Shard, keys: Sequence[bytes]) -> None:
        self._shards.append(shard)
        number = len(self._shards) - 1
        for row, key in enumerate(keys):
            self._places.setdefault(key, (number, row))

    def _check_patches(self, shard: Shard) -> None:
        if self._patch_dtype is not None and self._shards:
            found, expected = shard.arrays["patches"].shape, self._shards[0].arrays["patches"].shape
            if found != expected:
                raise BadShard(f"found patch tokens of {found} a case, {self._shards[0].path.name} has {expected}")

    def _set_aside(self, path: Path, reason: str) -> None:
        _LOGGER.warning("%s: %s; set aside, its features will be made anew", path, reason)
        try:
            path.rename(path.with_name(path.name + _BAD_SUFFIX))
        except OSError:  # another process was first, or the folder cannot be written: it is not read in any case
            _LOGGER.debug("%s: not renamed", path)

    def _describe(self, spec: StoreSpec | None) -> StoreSpec:
        """The spec of the folder: what it says, or, of a new one, what is asked for."""
        path = self.folder / DESCRIPTION_FILE
        if spec is not None and not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            strangers = [entry.name for entry in self.folder.iterdir() if not entry.name.startswith(".")]
            if strangers and not path.exists():
                raise BadInput(
                    f"{self.folder}: found {sorted(strangers)[0]!r} and no {DESCRIPTION_FILE}, accepted is a folder "
                    "that is new, empty or a feature store"
                )
            write_once(path, spec)
        found = read_spec(path)
        if spec is None:
            return found
        differing = [name for name, value in spec.identity.items() if found.identity[name] != value]
        if differing:
            raise BadInput(
                f"{path}: found the features of {found.encoder!r} with {list_fields(found, differing)}, "
                f"accepted is {list_fields(spec, differing)} (or another folder)"
            )
        return spec

    def _remove_stale_partials(self) -> None:
        for path in self.folder.glob(f".*{PARTIAL_SUFFIX}"):
            try:
                # No write takes an hour; younger ones may be another process's.
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()
            except OSError:
                _LOGGER.debug("%s: not removed", path)
