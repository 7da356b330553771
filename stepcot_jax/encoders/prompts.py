"""Prompts of the steps, and fixed random vectors in place of a text encoder's."""

import hashlib
import string
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput

FIELDS = ("name", "question", "options")
"""Fields of a template: the step's short name, its question, its lettered options."""


def write_prompts(chain: Chain, template: str) -> tuple[str, ...]:
    """Return one prompt per step; the template's fields are `FIELDS`."""
    expected = f"expected text with fields among {', '.join(f'{{{field}}}' for field in FIELDS)}"
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        prompts = tuple(
            template.format(name=step.name, question=step.question, options="; ".join(step.lettered_options))
            for step in chain.steps
        )
    except (ValueError, LookupError, AttributeError) as error:
        raise BadInput(f"config.prompts.template: {template!r} is not a template ({error}); {expected}") from None
    if not fields or not fields <= set(FIELDS):
        raise BadInput(f"config.prompts.template: {template!r} is not a template; {expected}")
    return prompts


def hash_prompts(prompts: Sequence[str], width: int) -> Float[np.ndarray, "step width"]:
    """Return a fixed random vector per prompt, seeded by its SHA-256, with mean 0 and variance 1 like BERT's output."""
    vectors = []
    for prompt in prompts:
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest(), "big")
        vector = np.random.Generator(np.random.PCG64(seed)).standard_normal(width)
        vectors.append((vector - vector.mean()) / max(vector.std(), 1e-6))
    return np.stack(vectors).astype(np.float32)
