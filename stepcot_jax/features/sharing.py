"""Divide the encoding of images among the processes of a run."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from stepcot_jax.features.encode import EncodeCounts, ImageItem, encode_images
from stepcot_jax.features.store import FeatureStore, FrozenImageEncoder


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run."""

    index: int = 0  # of this process, from 0
    count: int = 1
    wait: Callable[[str], None] = lambda name: None  # noqa: ARG005

    def has(self, key: bytes) -> bool:
        """Return whether this process encodes the image of a key; independent of the stored features."""
        return int.from_bytes(key[:8], "big") % self.count == self.index


ALONE = Processes()  # a run of one process


def encode_together(
    encoder: FrozenImageEncoder,
    items: Sequence[ImageItem],
    store: FeatureStore,
    processes: Processes = ALONE,
    *,
    say: Callable[[str], None],
    **options: Any,
) -> EncodeCounts:
    """Encode the images without a stored feature, each in one process; return when all are stored."""
    if processes.count > 1:
        counts = encode_images(encoder, [item for item in items if processes.has(item.key)], store, **options)
        say(counts.describe(f"images of process {processes.index} of {processes.count}"))
        processes.wait("features")
    # A network file system may show the others' features late; any still missing are encoded here.
    return encode_images(encoder, items, store, **options)
