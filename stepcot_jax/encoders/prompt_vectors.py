"""Deterministic vectors for prompts, where no pretrained text encoder is given."""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def encode_prompts(prompts: Sequence[str], width: int) -> Float[np.ndarray, "step width"]:
    """A fixed random vector for each prompt, with mean 0 and variance 1 like the LayerNorm output of a BERT.

    The vector is a function of the text alone (SHA-256 seeds the draw): equal prompts have equal vectors, and other
    prompts independent ones, on every machine. It tells steps apart and carries no meaning beyond that.

    Args:
      prompts: one text a step.
      width: size of a vector.

    Returns:
      float32 [step, width].
    """
    vectors = []
    for prompt in prompts:
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest(), "big")
        vector = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
        vectors.append((vector - vector.mean()) / max(vector.std(), 1e-6))
    return np.stack(vectors).astype(np.float32)
