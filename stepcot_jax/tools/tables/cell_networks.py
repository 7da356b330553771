"""Load the networks of a finished cell, and predict with them on other data.

`reading.trained_model` serves reading images and refuses runs that cannot; tables also read stored and imported
features, and baselines.
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32, Int32

from stepcot_jax.chain import Chain
from stepcot_jax.data.batches import evaluation_batches, iterate
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.evaluation.predictions import SplitPredictions, collect
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.run.networks import make_networks
from stepcot_jax.run.results import with_facts
from stepcot_jax.run.settings import Settings, read_settings
from stepcot_jax.run.stored import read_reading
from stepcot_jax.systems.networks import Networks, encode_images, make_predict
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.state import Params


@dataclasses.dataclass(frozen=True)
class Weights:
    """Networks with weights."""

    settings: Settings
    chain: Chain
    networks: Networks  # the modules; without an image encoder where that is frozen
    params: dict[str, Params]  # by network, the full parameter tree at its best update
    text_features: jax.Array | None  # float32 [step, width]; None without text


def load_weights(folder: pathlib.Path, names: tuple[str, ...]) -> Weights:
    """Load the best weights of a finished run."""
    settings, stored = read_settings(folder / "settings.json"), read_reading(folder)
    along = None if settings.image_encoder.is_frozen else make_resnet(settings.image_encoder.name)
    latest, best = read_best(folder / "checkpoints")
    params = {}
    for name in names:
        tree = restore_params(folder / "checkpoints", best[name].step if name in best else latest)
        if name not in tree:
            raise BadInput(f"{folder}: network {name!r} is not one of {', '.join(sorted(tree))}")
        params[name] = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    text = None if stored.text_features is None else jnp.asarray(stored.text_features)
    return Weights(settings, stored.chain, make_networks(settings, stored.chain, along), params, text)


def read_cases(trained: Weights, inputs: Inputs, split: str, settings: Settings) -> SplitPredictions:
    """Predict on a split, or on all cases; each network has its own best weights, encoder included."""
    names = tuple(trained.params)
    compiled = {name: make_predict(trained.networks, trained.text_features, (name,)) for name in names}

    def predict(batch: dict[str, Any]) -> dict[str, Any]:
        batch = inputs.prepare(batch)
        return {name: one(trained.params[name], batch)[name] for name, one in compiled.items()}

    dataset = inputs.dataset
    if split == "all":
        indices = tuple(sorted(itertools.chain.from_iterable(dataset.splits.by_name().values())))
        dataset, split = dataclasses.replace(dataset, splits=Splits(train=(), val=(), test=indices)), "test"
    with _read_batches(dataset, split, settings) as batches:
        return with_facts(dataset, split, collect(predict, batches))


@contextlib.contextmanager
def _read_batches(dataset: Dataset, split: str, settings: Settings) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    batches = evaluation_batches(dataset, split, batch_size=settings.evaluation.batch_size)
    with contextlib.closing(iterate(batches, num_threads=settings.data.batching_threads)) as read:
        yield read


def read_features(
    trained: Weights, name: str, inputs: Inputs, split: str
) -> tuple[Float32[np.ndarray, "case width"], Int32[np.ndarray, "case step"], np.ndarray]:
    """Return image features, labels and patients of a split, from the encoder of a network's weights."""
    encode = jax.jit(lambda params, batch: encode_images(trained.networks, params, batch))
    features, labels, index = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    with _read_batches(inputs.dataset, split, trained.settings) as batches:
        for batch in batches:
            present = np.asarray(batch["present"], bool)
            features.append(np.asarray(encode(trained.params[name], inputs.prepare(batch)))[present])
            labels.append(batch["labels"][present])
            index.append(batch["index"][present])
    order = np.argsort(np.concatenate(index))
    members = inputs.dataset.splits.by_name()[split]
    patients = np.array([str(inputs.dataset.cases[member].patient or "") for member in members])
    return np.concatenate(features)[order], np.concatenate(labels)[order], patients
