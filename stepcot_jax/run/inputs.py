"""Inputs of a run: cases, prompt vectors, and image features or an encoder that is trained with the networks."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset, HeldOut
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.encoders.text_encoder import hash_prompts, write_prompts
from stepcot_jax.features import encode
from stepcot_jax.features.encode import ALONE, Processes, encode_in_blocks, encode_together
from stepcot_jax.features.store import (
    FeatureStore,
    FrozenImageEncoder,
    StoreSpec,
    describe_image_store,
    describe_text_store,
    digest_pixels,
    open_features,
)
from stepcot_jax.host.download import find_path, is_address, open_remote
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.files import wait_for_lock
from stepcot_jax.host.machine import release_freed_memory
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.fields import naming
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.networks import load_frozen_encoder, trained_preprocessing
from stepcot_jax.run.settings import Settings, load_settings


@contextlib.contextmanager
def open_run_store(
    settings: Settings, workdir: pathlib.Path, spec: StoreSpec, terminal: Terminal, processes: Processes = ALONE
) -> Iterator[tuple[FeatureStore, Processes]]:
    """Open the feature store of a run for writing within the context, with the processes that share it."""
    folder = settings.features.folder
    if not is_address(folder):
        yield (
            FeatureStore((pathlib.Path(folder) if folder else workdir / "features") / spec.folder_name, spec),
            processes,
        )
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


Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Chosen = TypeVar("Chosen")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Data and encoders of a run."""

    dataset: Dataset  # with features if a frozen encoder computed them
    text_features: jax.Array | None  # float32 [step, width]
    image_encoder: nn.Module | None  # trained with the networks; None if the batches have features
    prepare: Prepare  # a batch of the pipeline -> the input of an update, still on the host
    encoder_digest: str = ""  # of the frozen encoder's weights

    def hold_out(self) -> "tuple[Inputs, HeldOut[Inputs]]":
        """Return the inputs without the test split's labels and pictures, and held-out ones with them."""
        view, _ = self.dataset.hold_out()
        return dataclasses.replace(self, dataset=view), HeldOut(self)

    def choose_then_open(self, choose: Callable[["Inputs"], Chosen]) -> "tuple[Chosen, Inputs]":
        """Return what a function makes of the inputs without the test split, all that it sees, and the whole ones."""
        view, held_out = self.hold_out()
        return choose(view), held_out.open_test()

    @functools.cached_property
    def example(self) -> dict[str, np.ndarray]:
        """One row of a prepared batch, for its shapes; computed on first use, as only training has targets."""
        with jax.ensure_compile_time_eval():
            return jax.device_get(self._make_example())

    def _make_example(self) -> dict[str, jax.Array]:
        dataset = self.dataset
        batch = {"labels": dataset.labels[:1]}
        if dataset.features is not None:
            features = jnp.zeros((1, dataset.features.shape[1]))
            return {"image_features": features, **{name: jnp.asarray(rows) for name, rows in batch.items()}}
        images = np.zeros((1, *[dataset.preprocessing.size] * 2, 3), np.float32)
        return jax.device_put(self.prepare({"images": images, **batch}))


def load_inputs(
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
    *,
    processes: Processes = ALONE,
    map_blocks: MapBlocks | None = None,
) -> Inputs:
    """Return the data, with the encoders loaded and the features of frozen ones computed."""
    image_encoder: nn.Module | None = None
    encoder_digest = ""
    prepare: Prepare = select_entries
    if settings.image_encoder.name == "imported":
        dataset = _with_imported_features(settings, terminal)
    elif settings.image_encoder.name == "pretrained":
        encoder = load_frozen_encoder(settings)
        terminal.say(f"image encoder: {encoder.name}, {encoder.width} features, frozen")
        encoder_digest = encoder.digest
        if settings.features.store:
            dataset = _with_stored_features(settings, workdir, terminal, encoder, processes, map_blocks)
            del encoder  # before the text encoder is loaded: each takes half a gigabyte
            release_freed_memory()
        else:
            dataset = load_dataset(settings, preprocessing=encoder.preprocessing, progress=terminal.watch)
            prepare = functools.partial(_encode, encoder)
    else:
        image_encoder = make_resnet(settings.image_encoder.name)
        dataset = load_dataset(settings, preprocessing=trained_preprocessing(settings), progress=terminal.watch)
    if settings.data.origins:
        dataset = dataset.with_origins(settings.data.origins)
    if hides_steps(settings):
        dataset = dataset.with_last_step_alone()
    text = jax.device_put(encode_prompts(settings, workdir, terminal, dataset.chain)) if settings.teacher.text else None
    return Inputs(dataset, text, image_encoder, prepare, encoder_digest)


def hides_steps(settings: Settings) -> bool:
    """Return whether a run trains and scores the last step alone."""
    return settings.job == "baseline" and settings.baseline.steps == "last"


def load_cases(config: str | pathlib.Path | Mapping[str, Any], **overrides: Any) -> Any:
    """Return the dataset of a config, without a workdir and without precomputed features.

    Args:
      config: name of a shipped config, path of a config file, or a nested mapping.
      **overrides: full names of settings without "config." -> values, such as `**{"data.root": "FOLDER"}`.

    Returns:
      A `Dataset`; for a config that trains a policy a `VqaDataset`.

    Raises:
      BadInput: a setting or the data cannot be used.
    """
    settings = load_settings(config, **overrides)
    if settings.trains_policy:
        from stepcot_jax.run.loading_questions import load_vqa_dataset

        return load_vqa_dataset(settings)
    return load_dataset(settings, preprocessing=trained_preprocessing(settings))


def _load_in_worker(settings: Settings) -> FrozenImageEncoder:
    """Return the encoder, in a process of another machine; download the images there if `data.root` is an address."""
    find_path(settings.data.root, "config.data.root")
    return load_frozen_encoder(settings)


def select_entries(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a batch of the pipeline that an update reads."""
    return {name: batch[name] for name in ("images", "image_features", "labels") if name in batch}


def _encode(encoder: FrozenImageEncoder, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with features, encoded every time, as augmented images differ."""
    encoded = {"image_features": np.asarray(encoder.encode(batch["images"]))}
    return encoded | {name: rows for name, rows in select_entries(batch).items() if name != "images"}


def _with_stored_features(
    settings: Settings,
    workdir: pathlib.Path,
    terminal: Terminal,
    encoder: FrozenImageEncoder,
    processes: Processes,
    map_blocks: MapBlocks | None,
) -> Dataset:
    """Return the cases with the features of a frozen encoder; images with stored features are only hashed."""
    spec = describe_image_store(encoder, patches=settings.features.patches)
    options: dict[str, Any] = {
        "batch_size": settings.features.batch_size,
        "num_threads": settings.data.num_threads,
        "progress": terminal.watch,
    }
    with open_run_store(settings, workdir, spec, terminal, processes) as (store, sharing):

        def is_known(sha256: str) -> bool:
            # A file has the same features wherever it is stored; see `keys.digest_file`.
            return encode.image_keys(encoder, [f"file:{sha256}"])[0] in store

        preprocessing = encoder.preprocessing
        dataset = load_dataset(settings, preprocessing=preprocessing, is_known=is_known, progress=terminal.watch)
        keys = encode.image_keys(encoder, _digest_images(dataset))
        if map_blocks is not None:
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
    from stepcot_jax.features import importing

    store, keys = importing.open_imported_images(_find_imported(settings), dataset.cases)
    terminal.say(f"images: 0 encoded, {len(set(keys))} read from {settings.image_encoder.weights}")
    return dataclasses.replace(dataset, features=open_features(store, keys))


def _find_imported(settings: Settings) -> pathlib.Path:
    return find_path(settings.image_encoder.weights, "config.image_encoder.weights")


def encode_prompts(settings: Settings, workdir: pathlib.Path, terminal: Terminal, chain: Chain) -> np.ndarray:
    """Return the vector of each step's prompt, float32 [step, width]."""
    prompts = settings.prompts
    if prompts.encoder == "imported":
        folder = _find_imported(settings)
        from stepcot_jax.features import importing

        imported = importing.open_imported_prompts(folder, num_steps=chain.num_steps)
        if imported is None:
            raise BadInput(
                f"{folder}: no imported prompt features (expected an array prompt_features in the imported file)"
            )
        store, keys = imported
        return store.read(keys)
    texts = write_prompts(chain, prompts.template)
    if prompts.encoder == "hashed":
        return hash_prompts(texts, prompts.width)
    dtype = jnp.dtype(settings.image_encoder.dtype)
    from stepcot_jax.encoders.load import load_text_encoder

    encoder = load_text_encoder(prompts.weights, dtype=dtype, max_tokens=prompts.max_tokens)
    spec = describe_text_store(encoder, pooling=prompts.pooling)
    with open_run_store(settings, workdir, spec, terminal) as (store, _):
        counts = encode.encode_prompts(encoder, texts, store, pooling=prompts.pooling)
    terminal.say(f"text encoder: {encoder.name}, {encoder.num_parameters:,} parameters, frozen")
    terminal.say(counts.describe("prompts"))
    return store.read(encode.prompt_keys(encoder, texts, pooling=prompts.pooling))
