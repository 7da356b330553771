"""The prompt of each step, and fixed random prompt vectors for runs without a pretrained text encoder."""

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
    """Return one prompt per step.

    Args:
      chain: the steps.
      template: text with any of the fields {name}, {question}, {options}.

    Raises:
      BadInput: the template has an unknown field, or none (all steps would have the same prompt).

    >>> from stepcot_jax.chain import Step
    >>> write_prompts(Chain((Step("Size", "How large?", ("Small", "Large")),)), "{question} {options}")
    ('How large? A. Small; B. Large',)
    """
    expected = f"expected text with fields among {', '.join(f'{{{field}}}' for field in FIELDS)}"
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        prompts = tuple(
            template.format(name=step.name, question=step.question, options="; ".join(step.lettered_options))
            for step in chain.steps
        )
    except (ValueError, LookupError, AttributeError) as error:
        raise BadInput(f"config.prompts.template: {template!r} is not a template ({error}); {expected}") from None
    if not found or not found <= set(FIELDS):
        raise BadInput(f"config.prompts.template: {template!r} is not a template; {expected}")
    return prompts


def hash_prompts(prompts: Sequence[str], width: int) -> Float[np.ndarray, "step width"]:
    """Return a fixed random vector per prompt, with mean 0 and variance 1 like BERT's LayerNorm output.

    SHA-256 of the prompt seeds the generator: equal prompts have equal vectors on every machine, different prompts have
    independent ones. The vectors identify the steps and carry no meaning.

    Args:
      prompts: one prompt per step.
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
