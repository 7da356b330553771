"""Several processes that fill one store together: each encodes its share of the images."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from stepcot_jax.features.encode import EncodeCounts, ImageItem, encode_images
from stepcot_jax.features.protocol import FrozenImageEncoder
from stepcot_jax.features.store import FeatureStore


def _go_on(name: str) -> None:
    del name


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run.

    Attributes:
      index: which this is, from 0.
      count: how many there are.
      wait: name -> returns when every process has called it.
    """

    index: int = 0
    count: int = 1
    wait: Callable[[str], None] = _go_on

    def has(self, key: bytes) -> bool:
        """Whether the feature of a key is for this process to make; it does not depend on what is stored already."""
        return int.from_bytes(key[:8], "big") % self.count == self.index


ALONE = Processes()
"""One process, which has everything to do."""


def encode_together(
    encoder: FrozenImageEncoder,
    items: Sequence[ImageItem],
    store: FeatureStore,
    processes: Processes = ALONE,
    *,
    say: Callable[[str], None],
    **options: Any,
) -> EncodeCounts:
    """Make the features that the store does not have, each in one of the processes; return when all are there.

    Args:
      encoder: see `encode_images`, as for `store`.
      items: the images, the same in every process.
      store: of the run, in a folder that all processes share.
      processes: who shares.
      say: told what this process did of the work that was shared.
      **options: of `encode_images`.

    Returns:
      The counts of distinct images; where the work was shared, of what was left to make after it.

    Raises:
      BadInput: see `encode_images`.
    """
    if processes.count > 1:
        counts = encode_images(encoder, [item for item in items if processes.has(item.key)], store, **options)
        say(counts.describe(f"images of process {processes.index} of {processes.count}"))
        processes.wait("features")
    # A file system over the network may show the others' features late; what is missing then is made here too.
    return encode_images(encoder, items, store, **options)
