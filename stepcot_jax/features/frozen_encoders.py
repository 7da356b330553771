"""Load the frozen image encoder that settings name; apart from `inputs`, which imports the whole data pipeline."""

import jax.numpy as jnp

from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.features import transformers_encoder
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.sections import TRANSFORMERS


def load_frozen_encoder(settings: Settings) -> FrozenImageEncoder:
    """Load the encoder that `image_encoder.weights` names: of this package, or of transformers in PyTorch."""
    return load_encoder(settings.image_encoder.weights, settings.image_encoder.dtype)


def load_encoder(weights: str, dtype: str) -> FrozenImageEncoder:
    """Load a frozen encoder by its weights, as `load_frozen_encoder`."""
    if weights.startswith(TRANSFORMERS):
        return transformers_encoder.load_transformers_encoder(weights.removeprefix(TRANSFORMERS))
    return load_image_encoder(weights, dtype=jnp.dtype(dtype))
