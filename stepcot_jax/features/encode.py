"""Encode distinct images and texts once with a frozen encoder, into a store."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.features.keys import image_key, prompt_key
from stepcot_jax.features.spec import FrozenImageEncoder, FrozenTextEncoder
from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.threads import map_in_threads

Progress = Callable[[Sequence["ImageItem"], str], Iterable["ImageItem"]]
"""Wraps a sequence with a description, like a progress bar."""

_LOGGER = logging.getLogger(__name__)
_MAX_SHARD_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class ImageItem:
    """An image to encode.

    Attributes:
      key: from `keys.image_key`.
      read: returns pixels uint8 [size, size, 3] at the encoder's size; called in a thread, and only for images without
        a stored feature.
      name: of the case, for messages.
    """

    key: bytes
    read: Callable[[], np.ndarray]
    name: str


@dataclasses.dataclass(frozen=True)
class EncodeCounts:
    """Numbers of distinct features encoded and read from the store."""

    encoded: int
    read: int

    def describe(self, what: str) -> str:
        """Return one line for the log."""
        return f"{what}: {self.encoded} encoded, {self.read} read from the store"


class _ShardBuffer:
    """Collects rows and writes a shard at `shard_size` rows or 64 MiB."""

    def __init__(self, store: FeatureStore, shard_size: int) -> None:
        self._store, self._shard_size = store, shard_size
        self._keys: list[bytes] = []
        self._features: list[np.ndarray] = []
        self._patches: list[np.ndarray] = []

    def add(self, keys: Sequence[bytes], features: np.ndarray, patches: np.ndarray | None) -> None:
        self._keys += keys
        # Copies: a slice would keep the whole batch in memory, padding included.
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
    """Encode the images without a stored feature, and log the counts.

    Args:
      encoder: frozen; all batches have one shape, so that it compiles once.
      items: the images; of several with one key the first is encoded.
      store: of `describe_image_store(encoder)`; its spec decides about patch tokens.
      batch_size: images per batch; the last batch is padded.
      shard_size: images per shard, the most that are encoded again after a kill.
      num_threads: threads that read images.
      progress: watches the images that are not stored.

    Returns:
      The counts of distinct images.

    Raises:
      BadInput: an image cannot be read or its feature is not finite. Features encoded before it are stored.
    """
    if store.spec.digest != encoder.digest:
        raise ValueError(f"the store {store.folder} belongs to another encoder than {encoder.name}")
    by_key: dict[bytes, ImageItem] = {}
    for item in items:
        by_key.setdefault(item.key, item)
    store.refresh()
    missing = [item for key, item in by_key.items() if key not in store]
    num_read, num_encoded = len(by_key) - len(missing), 0
    buffer = _ShardBuffer(store, shard_size)
    watched: Iterable[ImageItem] = missing if progress is None or not missing else progress(missing, "encoding images")
    # Another process may have stored some in the meantime.
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
    """Return features [case, width] and patch tokens [case, patch, width] of a batch, without padding."""
    pixels = np.stack([rows for _, rows in batch])
    padding = np.repeat(pixels[-1:], batch_size - len(batch), axis=0)
    images = normalise(np.concatenate([pixels, padding]), encoder.preprocessing)
    patches = None
    if store.spec.patches == "none":
        found = encoder.encode(images)
    else:
        found, tokens = encoder.encode_patches(images)
        patches = np.asarray(tokens)[: len(batch)]
    features = _as_features(found, num_rows=batch_size, width=store.spec.width)[: len(batch)]
    for (item, _), row in zip(batch, features, strict=True):
        if not np.all(np.isfinite(row)):
            raise BadInput(f"{item.name}: its feature from {encoder.name} is not finite (check the encoder's weights)")
    return features, patches


def _read_ahead(
    items: Iterable[ImageItem], *, num_threads: int, num_ahead: int
) -> Iterator[tuple[ImageItem, np.ndarray]]:
    """Yield each item with its pixels, in order, reading at most `num_ahead` images ahead."""

    def read(item: ImageItem) -> np.ndarray:
        try:
            return item.read()
        except BadInput as error:
            raise BadInput(f"{item.name}: cannot be encoded: {error}") from error

    return map_in_threads(read, items, num_threads=num_threads, num_ahead=num_ahead)


def _batched(items: Iterable[tuple[ImageItem, np.ndarray]], size: int) -> Iterator[list[tuple[ImageItem, np.ndarray]]]:
    iterator = iter(items)
    try:
        while batch := list(itertools.islice(iterator, size)):
            yield batch
    finally:
        if hasattr(iterator, "close"):
            iterator.close()  # stops the reading threads now, not at garbage collection


def encode_prompts(
    encoder: FrozenTextEncoder,
    texts: Sequence[str],
    store: FeatureStore,
    *,
    pooling: str,
    batch_size: int = 32,
    shard_size: int = 512,
) -> EncodeCounts:
    """Encode the texts without a stored feature, and log the counts.

    Args as for `encode_images`; `pooling` is that of the store, `describe_text_store(encoder, pooling=pooling)`.
    """
    if store.spec.digest != encoder.digest or store.spec.details.get("pooling") != pooling:
        raise ValueError(
            f"the store {store.folder} belongs to another encoder or pooling than {encoder.name}, {pooling}"
        )
    store.refresh()
    by_key = dict(zip(prompt_keys(encoder, texts, pooling=pooling), texts, strict=True))
    missing = [(key, text) for key, text in by_key.items() if key not in store]
    buffer = _ShardBuffer(store, shard_size)
    size = min(batch_size, max(1, len(missing)))
    try:
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            filled = [text for _, text in batch] + [batch[-1][1]] * (size - len(batch))
            features = _as_features(encoder.encode(filled, pooling=pooling), num_rows=size, width=store.spec.width)
            for (_, text), row in zip(batch, features, strict=False):
                if not np.all(np.isfinite(row)):
                    raise BadInput(f"text {text[:80]!r}: its feature from {encoder.name} is not finite")
            buffer.add([key for key, _ in batch], features[: len(batch)], None)
    finally:
        buffer.flush()
    counts = EncodeCounts(encoded=len(missing), read=len(by_key) - len(missing))
    _LOGGER.info("%s", counts.describe("prompts"))
    return counts


def _as_features(found: Any, *, num_rows: int, width: int) -> np.ndarray:
    """Return an encoder's output as float32 [case, width], with its shape checked."""
    features = np.asarray(found).astype(np.float32, copy=False)
    if features.shape != (num_rows, width):
        raise ValueError(f"features must have shape ({num_rows}, {width}); the encoder returned {features.shape}")
    return features


def image_keys(encoder: FrozenImageEncoder, contents: Sequence[str]) -> list[bytes]:
    """Return the key of each image's feature; `contents` are digests from `keys.digest_file` or `digest_pixels`."""
    return [
        image_key(encoder_digest=encoder.digest, preprocessing=encoder.preprocessing, content=content)
        for content in contents
    ]


def image_items(dataset: Dataset, keys: Sequence[bytes]) -> Iterator[ImageItem]:
    """Yield the cases' images for `encode_images`; the dataset's preprocessing must be the encoder's."""
    for index, (case, key) in enumerate(zip(dataset.cases, keys, strict=True)):
        yield ImageItem(
            key, lambda index=index: dataset.pixels[index], f"case {index} (image_path {case.image_path!r})"
        )


def prompt_keys(encoder: FrozenTextEncoder, texts: Sequence[str], *, pooling: str) -> list[bytes]:
    """Return the key of each text, in order."""
    return [
        prompt_key(encoder_digest=encoder.digest, pooling=pooling, max_tokens=encoder.max_tokens, text=text)
        for text in texts
    ]
