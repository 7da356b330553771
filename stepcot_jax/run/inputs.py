"""Inputs of a run: cases, prompt vectors, and image features or an encoder that is trained with the networks."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset, HeldOut
from stepcot_jax.encoders.prompts import hash_prompts, write_prompts
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.settings import Settings, load_settings

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
    settings: Settings, workdir: pathlib.Path, terminal: Terminal, *, map_blocks: MapBlocks | None = None
) -> Inputs:
    """Return the data, with the encoders loaded and the features of frozen ones computed."""
    image_encoder: nn.Module | None = None
    prepare, digest = select_entries, ""
    if settings.image_encoder.is_frozen:
        from stepcot_jax.run.frozen_features import load_features  # stores, which a trained encoder never needs

        dataset, digest, encoder = load_features(settings, workdir, terminal, map_blocks)
        prepare = select_entries if encoder is None else functools.partial(_encode, encoder)
    else:
        image_encoder = make_resnet(settings.image_encoder.name)
        dataset = load_dataset(settings, preprocessing=trained_preprocessing(settings), progress=terminal.watch)
    dataset = choose_supervision(settings, dataset)
    text = jax.device_put(encode_prompts(settings, terminal, dataset.chain)) if settings.reads_prompts else None
    return Inputs(dataset, text, image_encoder, prepare, digest)


def choose_supervision(settings: Settings, dataset: Dataset) -> Dataset:
    """Return the cases and labels of a run: of some origins, fewer training cases, labels withheld or shuffled."""
    from stepcot_jax.data.supervision import keep_training_cases, shuffle_chains, withhold  # most runs learn from all

    data = settings.data
    if data.origins:
        dataset = dataset.with_origins(data.origins)
    if data.num_train:
        dataset = keep_training_cases(dataset, data.num_train, seed=data.split_seed)
    if hides_steps(settings):
        dataset = dataset.with_last_step_alone()
    elif _supervises(settings, "shuffled"):
        dataset = shuffle_chains(dataset, seed=data.split_seed)
    if data.withhold_chains or data.withhold_answers:
        dataset = withhold(dataset, chains=data.withhold_chains, answers=data.withhold_answers, seed=data.split_seed)
    return dataset


def describe_supervision(settings: Settings) -> str:
    """Return which training labels are withheld or of other cases, in one line; "" for none."""
    what = {
        "last": "trained and scored on the last step alone",
        "shuffled": "trained with the earlier answers of other cases with the same last answer",
    }
    parts = [f"config.baseline.steps={steps!r}: {what[steps]}" for steps in what if _supervises(settings, steps)]
    shares = {name: getattr(settings.data, name) for name in ("withhold_chains", "withhold_answers")}
    return "; ".join(parts + [f"config.data.{name}={share:g}, in training" for name, share in shares.items() if share])


def _supervises(settings: Settings, steps: str) -> bool:
    return settings.job == "baseline" and settings.baseline.steps == steps


def hides_steps(settings: Settings) -> bool:
    """Return whether a run trains and scores the last step alone."""
    return _supervises(settings, "last")


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
    return choose_supervision(settings, load_dataset(settings, preprocessing=trained_preprocessing(settings)))


def select_entries(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a batch of the pipeline that an update reads."""
    return {name: batch[name] for name in ("images", "image_features", "labels") if name in batch}


def _encode(encoder: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with features, encoded every time, as augmented images differ."""
    encoded = {"image_features": np.asarray(encoder.encode(batch["images"]))}
    return encoded | {name: rows for name, rows in select_entries(batch).items() if name != "images"}


def encode_prompts(settings: Settings, terminal: Terminal, chain: Chain) -> np.ndarray:
    """Return the vector of each step's prompt, float32 [step, width]."""
    if settings.prompts.encoder == "hashed":
        return hash_prompts(write_prompts(chain, settings.prompts.template), settings.prompts.width)
    from stepcot_jax.run.frozen_features import read_prompts

    return read_prompts(settings, terminal, chain)
