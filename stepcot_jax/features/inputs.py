"""Inputs of a run: cases, prompt vectors, and image features or an encoder that is trained with the networks."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.loading import load_dataset
from stepcot_jax.encoders.load import load_image_encoder, load_text_encoder
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.encoders.text_encoder import hash_prompts, write_prompts
from stepcot_jax.features import encode, importing, transformers_encoder
from stepcot_jax.features.keys import digest_pixels
from stepcot_jax.features.sharing import ALONE, Processes, encode_together
from stepcot_jax.features.spec import FrozenImageEncoder, describe_image_store, describe_text_store
from stepcot_jax.features.store import FeatureStore, open_features
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.process_memory import release_freed_memory
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings, load_settings

Prepare = Callable[[dict[str, Any]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Data and encoders of a run.

    Attributes:
      dataset: the cases, with features if a frozen encoder computed them ahead.
      text_features: float32 [step, width]; None without text.
      image_encoder: module that is trained; None if the batches have features.
      prepare: converts a batch of the pipeline to the input of an update ("images" or "image_features", and "labels"),
        not yet on the devices.
      example: one row of a prepared batch, for the shapes.
      encoder_digest: of the frozen encoder's weights; "" without one.
    """

    dataset: Dataset
    text_features: jax.Array | None
    image_encoder: nn.Module | None
    prepare: Prepare
    example: dict[str, jax.Array]
    encoder_digest: str = ""


def load_inputs(
    settings: Settings, workdir: pathlib.Path, terminal: Terminal, *, processes: Processes = ALONE
) -> Inputs:
    """Read the data, load the encoders, and compute the features of frozen ones.

    Args:
      settings: of the run.
      workdir: of the run; features are stored below it unless `features.folder` names a folder to share.
      terminal: shows progress and how many images and prompts were encoded or read.
      processes: of the run; each encodes its share of the images.

    Raises:
      BadInput: data, weights or features cannot be used.
    """
    image_encoder: nn.Module | None = None
    encoder_digest = ""
    prepare: Prepare = _select
    if settings.image_encoder.name == "imported":
        dataset = _with_imported_features(settings, terminal)
    elif settings.image_encoder.name == "pretrained":
        encoder = load_frozen_encoder(settings)
        terminal.say(f"image encoder: {encoder.name}, {encoder.width} features, frozen")
        encoder_digest = encoder.digest
        if settings.features.store:
            dataset = _with_stored_features(settings, workdir, terminal, encoder, processes)
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
    if settings.job == "baseline" and settings.baseline.steps == "last":
        dataset = dataset.with_last_step_alone()
    text = (
        jax.device_put(_prompt_features(settings, workdir, terminal, dataset.chain)) if settings.teacher.text else None
    )
    return Inputs(dataset, text, image_encoder, prepare, _example(dataset, prepare), encoder_digest)


def load_cases(config: str | pathlib.Path | Mapping[str, Any], **overrides: Any) -> Dataset:
    """Load the dataset of a config, without a workdir and without features made ahead.

    Args:
      config: name of a shipped config, path of a config file, or a nested mapping.
      **overrides: full names of settings without "config." -> values, such as `**{"data.root": "FOLDER"}`.

    Raises:
      BadInput: a setting or the data cannot be used.
    """
    settings = load_settings(config, **overrides)
    return load_dataset(settings, preprocessing=trained_preprocessing(settings))


def load_frozen_encoder(settings: Settings) -> FrozenImageEncoder:
    """Load the encoder that `image_encoder.weights` names: of this package, or of transformers in PyTorch.

    Raises:
      BadInput: there are no such weights, or they have no image encoder.
    """
    return load_encoder(settings.image_encoder.weights, settings.image_encoder.dtype)


def load_encoder(weights: str, dtype: str) -> FrozenImageEncoder:
    """Load a frozen encoder by its weights, as `load_frozen_encoder`."""
    if weights.startswith(transformers_encoder.PREFIX):
        return transformers_encoder.load_transformers_encoder(weights.removeprefix(transformers_encoder.PREFIX))
    return load_image_encoder(weights, dtype=jnp.dtype(dtype))


def _select(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: batch[name] for name in ("images", "image_features", "labels") if name in batch}


def _encode(encoder: FrozenImageEncoder, batch: dict[str, Any]) -> dict[str, Any]:
    """Encode a batch anew, since augmented images differ every time."""
    return {"image_features": np.asarray(encoder.encode(batch["images"])), "labels": batch["labels"]}


def _example(dataset: Dataset, prepare: Prepare) -> dict[str, jax.Array]:
    labels = dataset.labels[:1]
    if dataset.features is not None:
        return {"image_features": jnp.zeros((1, dataset.features.shape[1])), "labels": jnp.asarray(labels)}
    images = np.zeros((1, *[dataset.preprocessing.size] * 2, 3), np.float32)
    return jax.device_put(prepare({"images": images, "labels": labels}))


def trained_preprocessing(settings: Settings) -> Preprocessing:
    """Return the preprocessing of images for an encoder that is trained."""
    encoder = settings.image_encoder
    mean, std = encoder.mean, encoder.std
    return Preprocessing(size=encoder.image_size, mean=mean, std=std, fit=encoder.fit)  # type: ignore[arg-type]


def features_folder(settings: Settings, workdir: pathlib.Path) -> pathlib.Path:
    """Return the folder of a run's feature stores."""
    return pathlib.Path(settings.features.folder) if settings.features.folder else workdir / "features"


def _with_stored_features(
    settings: Settings, workdir: pathlib.Path, terminal: Terminal, encoder: FrozenImageEncoder, processes: Processes
) -> Dataset:
    """Load the cases with the features of a frozen encoder; images with a stored feature are hashed, not decoded."""
    spec = describe_image_store(encoder, patches=settings.features.patches)
    store = FeatureStore(features_folder(settings, workdir) / spec.folder_name, spec)

    def is_known(sha256: str) -> bool:
        # A file has the same features wherever it is stored; see `keys.digest_file`.
        return encode.image_keys(encoder, [f"file:{sha256}"])[0] in store

    dataset = load_dataset(settings, preprocessing=encoder.preprocessing, is_known=is_known, progress=terminal.watch)
    keys = encode.image_keys(encoder, _digest_images(dataset))
    counts = encode_together(
        encoder,
        list(encode.image_items(dataset, keys)),
        store,
        processes,
        say=terminal.say,
        batch_size=settings.features.batch_size,
        num_threads=settings.data.num_threads,
        progress=terminal.watch,
    )
    terminal.say(counts.describe("images"))
    return dataclasses.replace(dataset, features=open_features(store, keys))


def _digest_images(dataset: Dataset) -> list[str]:
    """Return the digest of each case's image, reading only images that loading has not digested."""
    indices, images = range(len(dataset.cases)), dataset.images
    if images is None:
        return [digest_pixels(dataset.pixels[index]) for index in indices]
    return [f"file:{dataset.digests.get(index) or digest_content(images, index)}" for index in indices]


def _with_imported_features(settings: Settings, terminal: Terminal) -> Dataset:
    """Load the cases with imported features, without their images."""
    preprocessing = trained_preprocessing(settings)
    dataset = load_dataset(settings, preprocessing=preprocessing, require_images=False, progress=terminal.watch)
    store, keys = importing.open_imported_images(pathlib.Path(settings.image_encoder.weights), dataset.cases)
    terminal.say(f"images: 0 encoded, {len(set(keys))} read from {settings.image_encoder.weights}")
    return dataclasses.replace(dataset, features=open_features(store, keys))


def _prompt_features(settings: Settings, workdir: pathlib.Path, terminal: Terminal, chain: Chain) -> np.ndarray:
    """Return the vector of each step's prompt, float32 [step, width]."""
    prompts = settings.prompts
    if prompts.encoder == "imported":
        folder = pathlib.Path(settings.image_encoder.weights)
        found = importing.open_imported_prompts(folder, num_steps=chain.num_steps)
        if found is None:
            raise BadInput(
                f"{folder}: no imported prompt features (expected an array prompt_features in the imported file)"
            )
        store, keys = found
        return store.read(keys)
    texts = write_prompts(chain, prompts.template)
    if prompts.encoder == "hashed":
        return hash_prompts(texts, prompts.width)
    dtype = jnp.dtype(settings.image_encoder.dtype)
    encoder = load_text_encoder(prompts.weights, dtype=dtype, max_tokens=prompts.max_tokens)
    spec = describe_text_store(encoder, pooling=prompts.pooling)
    store = FeatureStore(features_folder(settings, workdir) / spec.folder_name, spec)
    counts = encode.encode_prompts(encoder, texts, store, pooling=prompts.pooling)
    terminal.say(f"text encoder: {encoder.name}, {encoder.num_parameters:,} parameters, frozen")
    terminal.say(counts.describe("prompts"))
    return store.read(encode.prompt_keys(encoder, texts, pooling=prompts.pooling))
