"""Load a frozen image encoder by its weights."""

import jax.numpy as jnp

from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.features import transformers_encoder
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.features.transformers_encoder import TRANSFORMERS


def load_encoder(weights: str, dtype: str) -> FrozenImageEncoder:
    """Load an encoder of this package, or with the prefix "transformers:" one of transformers in PyTorch."""
    if weights.startswith(TRANSFORMERS):
        return transformers_encoder.load_transformers_encoder(weights.removeprefix(TRANSFORMERS))
    return load_image_encoder(weights, dtype=jnp.dtype(dtype))
