"""Encode distinct images and texts once with a frozen encoder, into a store."""

import collections
import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.features.store import (
    FeatureStore,
    FrozenImageEncoder,
    FrozenTextEncoder,
    StoreSpec,
    describe_preprocessing,
    digest_fields,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.machine import count_cores, map_in_threads

Progress = Callable[[Sequence[Any], str], Iterable[Any]]  # wraps a sequence with a description, like a progress bar
_LOGGER = logging.getLogger(__name__)
_MAX_SHARD_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class ImageItem:
    """An image to encode."""

    key: bytes
    read: Callable[[], np.ndarray]  # uint8 [size, size, 3] at the encoder's size; called in a thread if it is needed
    name: str  # name of the case, for messages


@dataclasses.dataclass(frozen=True)
class EncodeCounts:
    """Numbers of distinct features encoded and read from the store."""

    encoded: int
    read: int

    def describe(self, what: str) -> str:
        """Return one line for the log."""
        return f"{what}: {self.encoded} encoded, {self.read} read from the store"


Rows: TypeAlias = tuple[Sequence[bytes], np.ndarray, np.ndarray | None]  # keys, features and patches


def _encode_shards(
    encoder: FrozenImageEncoder,
    items: Iterable[ImageItem],
    spec: StoreSpec,
    *,
    known: Container[bytes],
    write: Callable[[Sequence[bytes], np.ndarray, np.ndarray | None], None],
    batch_size: int,
    shard_size: int,
    num_threads: int,
) -> int:
    """Encode images that are not known, in batches; write shards of `shard_size` rows or 64 MiB; return how many.

    Threads read a batch while the device computes the one before, which is awaited once this one is queued.
    """
    batch_size, num_threads = batch_size or encoder.batch_size, num_threads or count_cores()
    waiting, started, num_encoded = list[Rows](), collections.deque[Callable[[], Rows]](), 0

    def flush() -> None:
        batches = waiting.copy()
        waiting.clear()
        if batches:
            keys, features, patches = zip(*batches, strict=True)
            of_patches = None if patches[0] is None else np.concatenate(patches)
            write([*itertools.chain(*keys)], np.concatenate(features), of_patches)

    def take() -> None:
        nonlocal num_encoded
        try:
            waiting.append(started.popleft()())
        except BaseException:
            started.clear()  # the first error counts
            raise
        num_encoded += len(waiting[-1][0])
        num_bytes = sum(rows.nbytes for _, *both in waiting for rows in both if rows is not None)
        if sum(len(keys) for keys, *_ in waiting) >= shard_size or num_bytes >= _MAX_SHARD_BYTES:
            flush()

    # Another process may have stored some of them in the meantime.
    wanted = (item for item in items if item.key not in known)
    pairs = map_in_threads(_read, wanted, num_threads=num_threads, num_ahead=batch_size)
    try:
        while batch := list(itertools.islice(pairs, batch_size)):
            batch = [(item, pixels) for item, pixels in batch if item.key not in known]
            if batch:
                started.append(_start_batch(encoder, batch, spec, batch_size=batch_size))
            if len(started) > 1:
                take()
    finally:
        pairs.close()  # type: ignore[attr-defined] # stops the reading threads now, not at garbage collection
        try:
            if started:
                take()
        finally:
            flush()
    return num_encoded


def encode_images(
    encoder: FrozenImageEncoder,
    items: Iterable[ImageItem],
    store: FeatureStore,
    *,
    batch_size: int = 0,
    shard_size: int = 512,
    num_threads: int = 0,
    progress: Progress | None = None,
) -> EncodeCounts:
    """Encode the images without a stored feature, and log the counts.

    `batch_size`, `num_threads`: 0 for what suits the encoder's devices, and for this process's cores.
    """
    if store.spec.digest != encoder.digest:
        raise ValueError(f"the store {store.folder} belongs to another encoder than {encoder.name}")
    by_key: dict[bytes, ImageItem] = {}
    for item in items:
        by_key.setdefault(item.key, item)
    store.refresh()
    missing = [item for key, item in by_key.items() if key not in store]
    watched: Iterable[ImageItem] = missing if progress is None or not missing else progress(missing, "encoding images")
    sizes: Any = {"batch_size": batch_size, "shard_size": shard_size, "num_threads": num_threads}
    num_encoded = _encode_shards(encoder, watched, store.spec, known=store, write=store.write, **sizes)
    counts = EncodeCounts(encoded=num_encoded, read=len(by_key) - num_encoded)
    _LOGGER.info("%s", counts.describe("images"))
    return counts


def _start_batch(
    encoder: FrozenImageEncoder, batch: Sequence[tuple[ImageItem, np.ndarray]], spec: StoreSpec, *, batch_size: int
) -> Callable[[], Rows]:
    """Queue a batch, filled up with its last image, at the encoder's devices; return the function that awaits it."""
    items, pixels = zip(*batch, strict=True)
    images = np.stack([*pixels, *pixels[-1:] * (batch_size - len(items))])
    output, tokens = (encoder.encode(images), None) if spec.patches == "none" else encoder.encode_patches(images)

    def take() -> Rows:
        """Return keys, features [case, width] and patch tokens [case, patch, width], without the filling."""
        shape, names, patches = (batch_size, spec.width), [item.name for item in items], None
        if tokens is not None:
            patches = round_patches(np.asarray(tokens)[: len(items)], spec.patches, names=names, encoder=encoder.name)
        features = _check_features(output, names, encoder=encoder.name, shape=shape)
        return [item.key for item in items], features.copy(), patches  # a slice would keep the filling in memory

    return take


def round_patches(patches: np.ndarray, dtype: str, *, names: Sequence[str], encoder: str) -> np.ndarray:
    """Return a copy of patches in the dtype that the store holds."""
    with np.errstate(over="ignore"):
        rounded = patches.astype(dtype)
    for name, rows in zip(names, rounded, strict=True):
        if not np.isfinite(rows).all():
            hint = "; config.features.patches='float32' has the larger range" if dtype == "float16" else ""
            raise BadInput(f"{name}: a patch from {encoder} is not finite as {dtype} (check the weights{hint})")
    return rounded


def _read(item: ImageItem) -> np.ndarray:
    try:
        return item.read()
    except BadInput as error:
        raise BadInput(f"{item.name}: cannot be encoded: {error}") from error


def _check_features(output: Any, names: Sequence[str], *, encoder: str, shape: tuple[int, int]) -> np.ndarray:
    """Return an encoder's output as float32 [case, width] without the padding, with its shape and values checked."""
    features = np.asarray(output).astype(np.float32, copy=False)
    if features.shape != shape:
        raise ValueError(f"features must have shape {shape}; the encoder returned {features.shape}")
    for name, row in zip(names, features, strict=False):
        if not np.all(np.isfinite(row)):
            raise BadInput(f"{name}: its feature from {encoder} is not finite (check the encoder's weights)")
    return features[: len(names)]


def encode_prompts(encoder: FrozenTextEncoder, texts: Sequence[str], *, pooling: str) -> np.ndarray:
    """Return the features of texts, float32 [text, width]."""
    output, names = encoder.encode(texts, pooling=pooling), [f"text {text[:80]!r}" for text in texts]
    return _check_features(output, names, encoder=encoder.name, shape=np.shape(output))


def image_keys(encoder: FrozenImageEncoder, contents: Sequence[str]) -> list[bytes]:
    """Return the key of each image's feature; `contents` are digests from `store.digest_file` or `digest_pixels`."""
    preprocessing = describe_preprocessing(encoder.preprocessing)
    return [
        digest_fields("image", encoder=encoder.digest, preprocessing=preprocessing, content=content)
        for content in contents
    ]


def image_items(dataset: Dataset, keys: Sequence[bytes]) -> Iterator[ImageItem]:
    """Yield the cases' images for `encode_images`; the dataset's preprocessing must be the encoder's."""
    for index, (case, key) in enumerate(zip(dataset.cases, keys, strict=True)):
        yield image_item(index, key, pixels=dataset.pixels.__getitem__, name=case.image)


def image_item(index: int, key: bytes, *, pixels: Callable[[int], np.ndarray], name: str) -> ImageItem:
    """Return the image of a case, by its index, for `encode_images`."""
    return ImageItem(key, functools.partial(pixels, index), f"case {index} (image_path {name!r})")


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes of a run."""

    index: int = 0  # of this process, from 0
    count: int = 1
    wait: Callable[[str], None] = lambda name: None  # noqa: ARG005

    def has(self, key: bytes) -> bool:
        """Return whether this process encodes the image of a key; independent of the stored features."""
        return int.from_bytes(key[:8], "big") % self.count == self.index


def encode_together(
    encoder: FrozenImageEncoder,
    items: Sequence[ImageItem],
    store: FeatureStore,
    processes: Processes,
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


SHARD_SIZE = 512
Block: TypeAlias = list[tuple[int, bytes]]  # index of the case and key of each image


def _make_block_encoder(
    load: Callable[[], FrozenImageEncoder],
    spec: StoreSpec,
    pixels: Callable[[int], np.ndarray],
    names: Sequence[str],
    sizes: Mapping[str, int],
) -> Callable[[Block], list[Rows]]:
    """Return the function with which a process of an engine encodes a block, a shard unless it exceeds 64 MiB."""
    encoder = load()
    sizes = {**sizes, "batch_size": sizes["batch_size"] or min(encoder.batch_size, SHARD_SIZE)}

    def encode(block: Block) -> list[Rows]:
        items, shards = [image_item(*entry, pixels=pixels, name=names[entry[0]]) for entry in block], list[Rows]()
        write = lambda *rows: shards.append(rows)  # noqa: E731
        _encode_shards(encoder, items, spec, known=(), write=write, shard_size=len(items) + 1, **sizes)
        return shards

    return encode


def encode_in_blocks(
    load: Callable[[], FrozenImageEncoder],
    dataset: Dataset,
    keys: Sequence[bytes],
    store: FeatureStore,
    map_blocks: MapBlocks,
    *,
    batch_size: int = 0,
    shard_size: int = SHARD_SIZE,
    num_threads: int = 0,
    progress: Progress | None = None,
) -> EncodeCounts:
    """Encode the images without a stored feature in the processes of an engine; return when all are stored."""
    store.refresh()
    size = batch_size or 1  # workers choose theirs, of at most a shard
    blocks = cut_blocks(keys, size=size * math.ceil(shard_size / size))
    missing = [[(index, key) for index, key in block if key not in store] for block in blocks]
    work = [block for block in missing if block]
    names = dataset.cases.image_paths
    sizes = {"batch_size": batch_size, "num_threads": num_threads}
    make = functools.partial(_make_block_encoder, load, store.spec, dataset.pixels.__getitem__, names, sizes)
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
