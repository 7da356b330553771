"""Images and texts through a frozen encoder into a store: each distinct one once, whatever is stored is read."""

import collections
import concurrent.futures
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.features.keys import prompt_key
from stepcot_jax.features.protocol import FrozenImageEncoder, FrozenTextEncoder, as_features
from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput

Progress = Callable[[Sequence["ImageItem"], str], Iterable["ImageItem"]]
"""Wraps a sequence with a description, as progress bars do."""

_LOGGER = logging.getLogger(__name__)
_MAX_SHARD_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class ImageItem:
    """An image to encode.

    Attributes:
      key: from `keys.image_key`.
      read: gives its pixels, uint8 [size, size, 3] at the encoder's size; called in another thread, and not at all
        where the feature is stored.
      name: its case, for messages.
    """

    key: bytes
    read: Callable[[], np.ndarray]
    name: str


@dataclasses.dataclass(frozen=True)
class EncodeCounts:
    """How many distinct features were made and how many the store had."""

    encoded: int
    read: int

    def describe(self, what: str) -> str:
        """One line for the log."""
        return f"{what}: {self.encoded} encoded, {self.read} read from the store"


class _ShardBuffer:
    """Gathers rows and writes a shard when there are enough of them, or too many bytes."""

    def __init__(self, store: FeatureStore, shard_size: int) -> None:
        self._store, self._shard_size = store, shard_size
        self._keys: list[bytes] = []
        self._features: list[np.ndarray] = []
        self._patches: list[np.ndarray] = []

    def add(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None) -> None:
        self._keys += keys
        # Copies: a row of a batch would keep the whole of it, padding included.
        self._features.append(features.copy())
        if patches is not None:
            self._patches.append(patches.astype(self._store.spec.patches))
        num_bytes = sum(rows.nbytes for rows in (*self._features, *self._patches))
        if len(self._keys) >= self._shard_size or num_bytes >= _MAX_SHARD_BYTES:
            self.flush()

    def flush(self) -> None:
        keys, features, patches = self._keys, self._features, self._patches
        self._keys, self._features, self._patches = [], [], []
        if keys:
            self._store.write(keys, np.concatenate(features), np.concatenate(patches) if patches else None)


def encode_images(
    encoder: FrozenImageEncoder,
    items: Iterable[ImageItem],
    store: FeatureStore,
    *,
    batch_size: int = 32,
    shard_size: int = 512,
    num_threads: int = 2,
    progress: Progress | None = None,
) -> EncodeCounts:
    """Make the features that the store does not have; log how many were made and how many read.

    Args:
      encoder: frozen; every batch has the same shape, so that it compiles once.
      items: the images; of those with the same key the first is encoded.
      store: of `describe_image_store(encoder)`; keeps patch tokens if its spec says so.
      batch_size: images encoded at a time; a shorter last batch is filled up and the filling dropped.
      shard_size: images after which a shard is written: at most so many are encoded again after a kill.
      num_threads: images read at the same time.
      progress: watches the images that are not stored yet.

    Returns:
      The counts of distinct images.

    Raises:
      BadInput: an image cannot be read or its feature is not finite; names the case. What was encoded before it is
        written.
    """
    if store.spec.digest != encoder.digest:
        raise ValueError(f"the store {store.folder} is of another encoder than {encoder.name}")
    by_key: dict[bytes, ImageItem] = {}
    for item in items:
        by_key.setdefault(item.key, item)
    store.refresh()
    missing = [item for key, item in by_key.items() if key not in store]
    num_read, num_encoded = len(by_key) - len(missing), 0
    buffer = _ShardBuffer(store, shard_size)
    watched: Iterable[ImageItem] = missing if progress is None or not missing else progress(missing, "encoding images")
    # Another process may have filled some in since: not encoded again.
    wanted = (item for item in watched if item.key not in store)
    try:
        for batch in _batched(_read_ahead(wanted, num_threads=num_threads, num_ahead=batch_size), batch_size):
            batch = [(item, pixels) for item, pixels in batch if item.key not in store]
            if batch:
                keys = [item.key for item, _ in batch]
                buffer.add(keys, *_encode_batch(encoder, batch, store, batch_size=batch_size))
                num_encoded += len(batch)
    finally:
        buffer.flush()
    counts = EncodeCounts(encoded=num_encoded, read=num_read + len(missing) - num_encoded)
    _LOGGER.info("%s", counts.describe("images"))
    return counts


def _encode_batch(
    encoder: FrozenImageEncoder,
    batch: Sequence[tuple[ImageItem, np.ndarray]],
    store: FeatureStore,
    *,
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Features [case, width] and patch tokens [case, patch, width] of a batch, without its filling."""
    pixels = np.stack([rows for _, rows in batch])
    filling = np.repeat(pixels[-1:], batch_size - len(batch), axis=0)
    images = normalise(np.concatenate([pixels, filling]), encoder.preprocessing)
    patches = None
    if store.spec.patches == "none":
        found = encoder.encode(images)
    else:
        found, tokens = encoder.encode_patches(images)
        patches = np.asarray(tokens)[: len(batch)]
    features = as_features(found, num_rows=batch_size, width=store.spec.width)[: len(batch)]
    for (item, _), row in zip(batch, features, strict=True):
        if not np.all(np.isfinite(row)):
            raise BadInput(
                f"{item.name}: {encoder.name} makes a feature that is not finite of it, accepted are finite ones "
                "(are the encoder's weights whole?)"
            )
    return features, patches


def _read_ahead(
    items: Iterable[ImageItem], *, num_threads: int, num_ahead: int
) -> Iterator[tuple[ImageItem, np.ndarray]]:
    """Each item with its pixels, in order; at most `num_ahead` images are read before they are asked for."""
    pending: collections.deque[tuple[ImageItem, concurrent.futures.Future[np.ndarray]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for item in items:
            pending.append((item, pool.submit(item.read)))
            if len(pending) > num_ahead:
                yield _finish(*pending.popleft())
        while pending:
            yield _finish(*pending.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _finish(item: ImageItem, result: "concurrent.futures.Future[np.ndarray]") -> tuple[ImageItem, np.ndarray]:
    try:
        return item, result.result()
    except BadInput as error:
        raise BadInput(f"{item.name}: cannot be encoded: {error}") from error


def _batched(items: Iterable[tuple[ImageItem, np.ndarray]], size: int) -> Iterator[list[tuple[ImageItem, np.ndarray]]]:
    iterator = iter(items)
    try:
        while batch := list(itertools.islice(iterator, size)):
            yield batch
    finally:
        if hasattr(iterator, "close"):
            iterator.close()  # stops the reading threads now rather than when it is collected


def encode_prompts(
    encoder: FrozenTextEncoder,
    texts: Sequence[str],
    store: FeatureStore,
    *,
    pooling: str,
    batch_size: int = 32,
    shard_size: int = 512,
) -> EncodeCounts:
    """Make the features of texts that the store does not have; log how many were made and how many read.

    Args:
      encoder: frozen.
      texts: any texts; equal ones are encoded once.
      store: of `describe_text_store(encoder, pooling=pooling)`.
      pooling: how token vectors become one, as the encoder takes it.
      batch_size: texts encoded at a time; fewer are encoded as they are, more in batches of one size.
      shard_size: texts after which a shard is written.

    Returns:
      The counts of distinct texts.
    """
    if store.spec.digest != encoder.digest or store.spec.details.get("pooling") != pooling:
        raise ValueError(f"the store {store.folder} is of another encoder or pooling than {encoder.name}, {pooling}")
    store.refresh()
    by_key = dict(zip(prompt_keys(encoder, texts, pooling=pooling), texts, strict=True))
    missing = [(key, text) for key, text in by_key.items() if key not in store]
    buffer = _ShardBuffer(store, shard_size)
    size = min(batch_size, max(1, len(missing)))
    try:
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            filled = [text for _, text in batch] + [batch[-1][1]] * (size - len(batch))
            features = as_features(encoder.encode(filled, pooling=pooling), num_rows=size, width=store.spec.width)
            for (_, text), row in zip(batch, features, strict=False):
                if not np.all(np.isfinite(row)):
                    raise BadInput(f"{encoder.name} makes a feature that is not finite of the text {text[:80]!r}")
            buffer.add([key for key, _ in batch], features[: len(batch)], None)
    finally:
        buffer.flush()
    counts = EncodeCounts(encoded=len(missing), read=len(by_key) - len(missing))
    _LOGGER.info("%s", counts.describe("prompts"))
    return counts


def prompt_keys(encoder: FrozenTextEncoder, texts: Sequence[str], *, pooling: str) -> list[bytes]:
    """The key of each text, in order."""
    return [
        prompt_key(encoder_digest=encoder.digest, pooling=pooling, max_tokens=encoder.max_tokens, text=text)
        for text in texts
    ]
