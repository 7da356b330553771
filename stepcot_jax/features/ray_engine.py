"""Encode images on a Ray cluster: the work is cut into blocks of a shard each, whose content names the shard.

A block holds the same images, in the same batches, as a shard of the local engine, so both write the same shards. A
block is stored whole or not at all. One that is done twice, after a worker died, writes the same file again.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from stepcot_jax.data.columns import TextColumn
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.features.encode import EncodeCounts, Progress, encode_images, image_item
from stepcot_jax.features.remote_features import RemoteFeatures, open_for_worker
from stepcot_jax.features.store import FeatureStore, FrozenImageEncoder
from stepcot_jax.host.ray_blocks import Cluster, map_blocks

SHARD_SIZE = 512

Block = list[tuple[int, bytes]]
"""Index of the case and key of each image."""


@dataclasses.dataclass(frozen=True)
class EncoderOfWorker:
    """What a worker needs; the function that it makes encodes a block.

    Attributes:
      load: returns the encoder; called once in each worker.
      open_store: returns the store, which need not read; called once in each worker.
      pixels: returns uint8 [size, size, 3] of a case.
      names: image path of each case, for messages.
    """

    load: Callable[[], FrozenImageEncoder]
    open_store: Callable[[], FeatureStore]
    pixels: Callable[[int], np.ndarray]
    names: Sequence[str] | TextColumn
    batch_size: int
    num_threads: int

    def __call__(self) -> Callable[[Block], int]:
        """Return the function that encodes a block and returns the number of its images."""
        encoder, store = self.load(), self.open_store()

        def encode(block: Block) -> int:
            items = [image_item(index, key, pixels=self.pixels, name=self.names[index]) for index, key in block]
            # No shard ends before the block does.
            encode_images(
                encoder,
                items,
                store,
                batch_size=self.batch_size,
                shard_size=len(items) + 1,
                num_threads=self.num_threads,
            )
            return len(items)

        return encode


def encode_with_ray(
    load: Callable[[], FrozenImageEncoder],
    dataset: Dataset,
    keys: Sequence[bytes],
    store: FeatureStore,
    cluster: Cluster,
    *,
    remote: RemoteFeatures | None = None,
    batch_size: int,
    shard_size: int = SHARD_SIZE,
    num_threads: int = 2,
    progress: Progress | None = None,
) -> EncodeCounts:
    """Encode the images without a stored feature in the workers of a cluster; return when all are stored.

    Args:
      remote: the store's folder on an object store, to which the workers copy their shards.
      shard_size: images of a block and a shard, rounded up to whole batches; the most that a killed worker loses.
    """
    store.refresh()
    blocks = cut_blocks(keys, size=batch_size * math.ceil(shard_size / batch_size))
    missing = [[(index, key) for index, key in block if key not in store] for block in blocks]
    work = [block for block in missing if block]
    open_store = functools.partial(FeatureStore, store.folder.absolute(), store.spec, indexed=False)
    if remote is not None:
        open_store = functools.partial(open_for_worker, remote.address, store.spec)
    make = EncoderOfWorker(
        load,
        open_store,
        dataset.pixels.__getitem__,
        dataset.cases.image_paths,
        batch_size,
        num_threads,
    )
    results = map_blocks(work, make, cluster)
    watched: Iterable[Any] = work
    if progress is not None and work:
        watched = progress(work, "encoding blocks of images")
    # The results come first: the last one is taken before the bar ends.
    num_encoded = sum(number for (_, number), _ in zip(results, watched, strict=True))
    if remote is not None:
        remote.fetch(anew=True)
    store.refresh()
    store.check_present(keys)
    return EncodeCounts(encoded=num_encoded, read=sum(map(len, blocks)) - num_encoded)


def cut_blocks(keys: Sequence[bytes], *, size: int) -> list[Block]:
    """Return the distinct images in order, in blocks of `size`; a block depends on the keys alone, not on the store."""
    first: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
    distinct = [(index, key) for key, index in first.items()]
    return [distinct[start : start + size] for start in range(0, len(distinct), size)]
