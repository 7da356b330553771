"""Features of frozen encoders: encoded once into the run's store, or imported; images, prompts and patches."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.encoders.prompts import write_prompts
from stepcot_jax.features import encode
from stepcot_jax.features.encode import ImageItem, Processes, encode_in_blocks, encode_together
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.features.store import (
    FeatureStore,
    FrozenImageEncoder,
    StoreSpec,
    describe_image_store,
    digest_pixels,
    open_features,
)
from stepcot_jax.host.download import find_path, is_address, open_remote
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.files import wait_for_lock
from stepcot_jax.host.machine import map_in_threads, release_freed_memory
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.fields import naming
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.networks import load_frozen_encoder, trained_preprocessing
from stepcot_jax.run.settings import Settings
from stepcot_jax.training.processes import wait_for_all


def _all_processes() -> Processes:
    return Processes(jax.process_index(), jax.process_count(), wait_for_all)


@contextlib.contextmanager
def open_run_store(
    settings: Settings, workdir: pathlib.Path, spec: StoreSpec, terminal: Terminal
) -> Iterator[tuple[FeatureStore, Processes]]:
    """Open the feature store of a run for writing within the context, with the processes that share it."""
    folder, processes = settings.features.folder, _all_processes()
    if not is_address(folder):
        parent = pathlib.Path(folder) if folder else workdir / "features"
        yield FeatureStore(parent / spec.folder_name, spec), processes
        return
    remote = open_remote(f"{folder.rstrip('/')}/{spec.folder_name}", say=terminal.say, only_adds=True)

    def download() -> None:
        def say() -> None:
            terminal.say(f"{folder}: another process is downloading it")

        with naming("config.features.folder"), wait_for_lock(remote.folder / ".lock", say=say):
            remote.start()

    def wait(name: str) -> None:
        processes.wait(name)
        download()

    def send() -> None:
        with naming("config.features.folder"):
            remote.saved()

    download()
    store = FeatureStore(remote.folder, spec)
    send()  # shards that an earlier start did not upload
    store.saved = send
    try:
        yield store, dataclasses.replace(processes, wait=wait)
    finally:
        store.saved = None  # readers in other processes get a copy of the store


def load_features(
    settings: Settings, workdir: pathlib.Path, terminal: Terminal, map_blocks: MapBlocks | None
) -> tuple[Dataset, str, FrozenImageEncoder | None]:
    """Return the cases with features, the digest of their encoder, and the encoder if it encodes every batch anew."""
    if settings.image_encoder.name == "imported":
        return _with_imported_features(settings, terminal), "", None
    encoder = load_frozen_encoder(settings)
    terminal.say(f"image encoder: {encoder.name}, {encoder.width} features, frozen")
    if not settings.features.store:
        dataset = load_dataset(settings, preprocessing=encoder.preprocessing, progress=terminal.watch)
        return dataset, encoder.digest, encoder
    digest, dataset = encoder.digest, _with_stored_features(settings, workdir, terminal, encoder, map_blocks)
    del encoder  # before the text encoder is loaded: each takes half a gigabyte
    release_freed_memory()
    return dataset, digest, None


def _load_in_worker(settings: Settings) -> FrozenImageEncoder:
    """Return the encoder, in a process of another machine; download the images there if `data.root` is an address."""
    find_path(settings.data.root, "config.data.root")
    return load_frozen_encoder(settings)


def _with_stored_features(
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
    encoder: FrozenImageEncoder,
    map_blocks: MapBlocks | None,
) -> Dataset:
    """Return the cases with the features of a frozen encoder; images with stored features are only hashed."""
    spec = describe_image_store(encoder)
    options: dict[str, Any] = {
        "batch_size": settings.features.batch_size,
        "num_threads": settings.data.decoding_threads,
        "progress": terminal.watch,
    }
    with open_run_store(settings, workdir, spec, terminal) as (store, sharing):

        def is_known(sha256: str) -> bool:
            # A file has the same features wherever it is stored; see `keys.digest_file`.
            return encode.image_keys(encoder, [f"file:{sha256}"])[0] in store

        preprocessing = encoder.preprocessing
        dataset = load_dataset(settings, preprocessing=preprocessing, is_known=is_known, progress=terminal.watch)
        keys = encode.image_keys(encoder, _digest_images(dataset))
        if map_blocks is not None:
            options["num_threads"] = settings.data.batching_threads
            load = functools.partial(_load_in_worker, settings)
            counts = encode_in_blocks(load, dataset, keys, store, map_blocks, **options)
        else:
            items = list(encode.image_items(dataset, keys))
            counts = encode_together(encoder, items, store, sharing, say=terminal.say, **options)
    terminal.say(counts.describe("images"))
    return dataclasses.replace(dataset, features=open_features(store, keys))


def _digest_images(dataset: Dataset) -> list[str]:
    """Return the digest of each case's image, reading only images without a known digest."""
    indices, images = range(len(dataset.cases)), dataset.images
    if images is None:
        return [digest_pixels(dataset.pixels[index]) for index in indices]
    return [f"file:{dataset.digests.get(index) or digest_content(images, index)}" for index in indices]


def _with_imported_features(settings: Settings, terminal: Terminal) -> Dataset:
    preprocessing = trained_preprocessing(settings)
    dataset = load_dataset(settings, preprocessing=preprocessing, require_images=False, progress=terminal.watch)
    from stepcot_jax.features import importing  # which most frozen encoders never need

    features = importing.read_imported_images(_find_imported(settings), dataset.cases)
    terminal.say(f"images: 0 encoded, {len(features)} read from {settings.image_encoder.weights}")
    return dataclasses.replace(dataset, features=features)


def _find_imported(settings: Settings) -> pathlib.Path:
    return find_path(settings.image_encoder.weights, "config.image_encoder.weights")


def read_prompts(settings: Settings, terminal: Terminal, chain: Chain) -> np.ndarray:
    """Return the vector of each step's prompt, float32 [step, width], of a frozen text encoder or imported."""
    prompts = settings.prompts
    if prompts.encoder == "imported":
        folder = _find_imported(settings)
        from stepcot_jax.features import importing

        imported = importing.read_imported_prompts(folder)
        if imported is None or len(imported) != chain.num_steps:
            raise BadInput(
                f"{folder}: no imported prompt features of {chain.num_steps} steps (expected an array prompt_features "
                "in the imported file)"
            )
        return imported
    texts = write_prompts(chain, prompts.template)
    dtype = jnp.dtype(settings.image_encoder.dtype)
    from stepcot_jax.encoders.load import load_text_encoder

    encoder = load_text_encoder(prompts.weights, dtype=dtype, max_tokens=prompts.max_tokens)
    terminal.say(f"text encoder: {encoder.name}, {encoder.num_parameters:,} parameters, frozen")
    return encode.encode_prompts(encoder, texts, pooling=prompts.pooling)


def store_patches(
    patches: PatchInput,
    dataset: VqaDataset,
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
) -> PatchInput:
    """Encode each picture of a dataset once into the run's feature store; return the patches with that store."""
    if not settings.features.store:
        return patches
    num_threads = settings.data.decoding_threads
    indices = terminal.watch(range(dataset.num_images), "reading pictures")
    keys = map_in_threads(lambda index: patches.key(dataset.pixels[index]), indices, num_threads=num_threads)
    items = [
        ImageItem(key, functools.partial(dataset.pixels.__getitem__, index), f"picture {index}") for index, key in keys
    ]
    spec = describe_image_store(patches.encoder, patches=patches.dtype)  # type: ignore[arg-type]
    with open_run_store(settings, workdir, spec, terminal) as (store, sharing):
        counts = encode_together(
            patches.encoder,
            items,
            store,
            sharing,
            say=terminal.say,
            batch_size=settings.features.batch_size,
            num_threads=num_threads,
            progress=terminal.watch,
        )
        store.refresh()
    store.check_present([item.key for item in items])
    terminal.say(counts.describe("pictures"))
    return dataclasses.replace(patches, store=store)
