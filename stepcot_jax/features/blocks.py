"""Encode images in the processes of an engine, in blocks of one shard each.

A block is a shard of the local engine, so both write the same shards; a block is stored completely or not at all.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stepcot_jax.data.columns import TextColumn
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.features.encode import EncodeCounts, Progress, encode_images, image_item
from stepcot_jax.features.store import FeatureStore, FrozenImageEncoder, StoreSpec
from stepcot_jax.host.extras import MapBlocks

SHARD_SIZE = 512
Block: TypeAlias = list[tuple[int, bytes]]  # index of the case and key of each image
Rows: TypeAlias = tuple[Sequence[bytes], np.ndarray, np.ndarray | None]  # keys, features and patches of a shard


class _Kept:
    """Shards that `encode_images` writes, kept in memory instead of a store."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec, self.folder, self.shards = spec, Path(), list[Rows]()

    def __contains__(self, key: bytes) -> bool:
        return False

    def refresh(self) -> None:
        pass

    def write(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None = None) -> None:
        self.shards.append((keys, features, patches))


@dataclasses.dataclass(frozen=True)
class BlockEncoder:
    """Makes the function with which a process of an engine encodes a block."""

    load: Callable[[], FrozenImageEncoder]  # returns the encoder; called once in each process
    spec: StoreSpec
    pixels: Callable[[int], np.ndarray]  # returns uint8 [size, size, 3] of a case
    names: Sequence[str] | TextColumn  # image path of each case, for messages
    batch_size: int
    num_threads: int

    def __call__(self) -> Callable[[Block], list[Rows]]:
        """Return the function that encodes a block and returns its shards."""
        encoder = self.load()

        def encode(block: Block) -> list[Rows]:
            items = [image_item(index, key, pixels=self.pixels, name=self.names[index]) for index, key in block]
            kept: Any = _Kept(self.spec)
            # One shard for the block, unless it exceeds 64 MiB.
            sizes: dict[str, Any] = {"batch_size": self.batch_size, "shard_size": len(items) + 1}
            encode_images(encoder, items, kept, **sizes, num_threads=self.num_threads)
            return kept.shards

        return encode


def encode_in_blocks(
    load: Callable[[], FrozenImageEncoder],
    dataset: Dataset,
    keys: Sequence[bytes],
    store: FeatureStore,
    map_blocks: MapBlocks,
    *,
    batch_size: int,
    shard_size: int = SHARD_SIZE,
    num_threads: int = 2,
    progress: Progress | None = None,
) -> EncodeCounts:
    """Encode the images without a stored feature in the processes of an engine; return when all are stored."""
    store.refresh()
    blocks = cut_blocks(keys, size=batch_size * math.ceil(shard_size / batch_size))
    missing = [[(index, key) for index, key in block if key not in store] for block in blocks]
    work = [block for block in missing if block]
    names = dataset.cases.image_paths
    make = BlockEncoder(load, store.spec, dataset.pixels.__getitem__, names, batch_size, num_threads)
    watched: Iterable[Any] = work
    if progress is not None and work:
        watched = progress(work, "encoding blocks of images")
    # `map_blocks` comes first in the zip: the last result arrives before the bar ends.
    for (_, shards), _ in zip(map_blocks(work, make), watched, strict=True):
        for shard in shards:
            store.write(*shard)
    store.check_present(keys)
    num_encoded = sum(map(len, work))
    return EncodeCounts(encoded=num_encoded, read=sum(map(len, blocks)) - num_encoded)


def cut_blocks(keys: Sequence[bytes], *, size: int) -> list[Block]:
    """Return the distinct images in order, in blocks of `size`; a block depends on the keys alone, not on the store."""
    first: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
    distinct = [(index, key) for key, index in first.items()]
    return [distinct[start : start + size] for start in range(0, len(distinct), size)]
