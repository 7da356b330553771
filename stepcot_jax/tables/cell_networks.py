"""The networks of a finished cell with their best weights, whatever their job and wherever their features come from.

`trained.load_trained` is for reading images and refuses runs that cannot; tables also read stored and imported
features, and baselines.
"""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp

from stepcot_jax.chain import Chain
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.stored_reading import read_reading
from stepcot_jax.settings.run_settings import Settings, read_settings
from stepcot_jax.systems.networks import Networks, make_networks
from stepcot_jax.training.state import Params
from stepcot_jax.training.stored_params import read_best, restore_params


@dataclasses.dataclass(frozen=True)
class Weights:
    """Networks with weights.

    Attributes:
      settings: of the run.
      chain: the steps.
      networks: the modules; without an image encoder where that is frozen.
      params: by network, the whole parameter tree at its best step.
      text_features: float32 [step, width]; None without text.
    """

    settings: Settings
    chain: Chain
    networks: Networks
    params: dict[str, Params]
    text_features: jax.Array | None


def load_weights(folder: pathlib.Path, names: tuple[str, ...]) -> Weights:
    """The weights of a finished run.

    Args:
      folder: its workdir.
      names: of the networks, such as "teacher" or "baseline".

    Raises:
      BadInput: something of the workdir is missing or damaged, or the run has no such network.
    """
    settings, stored = read_settings(folder / "settings.json"), read_reading(folder)
    along = None if settings.image_encoder.is_frozen else make_resnet(settings.image_encoder.name)
    latest, best = read_best(folder / "checkpoints")
    params = {}
    for name in names:
        tree = restore_params(folder / "checkpoints", best[name].step if name in best else latest)
        if name not in tree:
            raise BadInput(f"{folder}: found no network {name!r}, accepted are {', '.join(sorted(tree))}")
        params[name] = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    text = None if stored.text_features is None else jnp.asarray(stored.text_features)
    return Weights(settings, stored.chain, make_networks(settings, stored.chain, along), params, text)
