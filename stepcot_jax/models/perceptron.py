"""Baseline: a two-layer perceptron on pooled image and text embeddings (paper: Table 3)."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.models.student import pad_answers


class Baseline(nn.Module):
    """Concatenated image and prompt embeddings -> Linear, ReLU, Linear -> logits of each step.

    All steps share the first layer and are distinguished by their prompts; each step has its own second layer. Sharing
    lets the supervision of intermediate steps reach the last one.

    Attributes:
      answers_per_step: number of answers of each step.
      hidden: size of the first layer (768 in the paper).
      dtype: compute dtype of the first layer; logits are float32.
    """

    answers_per_step: Sequence[int]
    hidden: int = 768
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, *, image_features: Float[Array, "case image_width"], text_features: Float[Array, "step text_width"]
    ) -> Float[Array, "case step answer"]:
        """Answer every step of a batch independently.

        Args:
          image_features: [case, image width], pooled.
          text_features: [step, text width], one pooled prompt per step.

        Returns:
          Logits float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.

        Raises:
          ValueError: `text_features` does not have one row per step.
        """
        num_cases, num_steps = image_features.shape[0], len(self.answers_per_step)
        if text_features.shape[0] != num_steps:
            raise ValueError(f"text_features must have shape [{num_steps}, width]; got {text_features.shape}")
        pairs = jnp.concatenate(
            [
                jnp.broadcast_to(image_features[:, None], (num_cases, num_steps, image_features.shape[-1])),
                jnp.broadcast_to(text_features[None], (num_cases, *text_features.shape)),
            ],
            axis=-1,
        )
        hidden = nn.relu(nn.Dense(self.hidden, dtype=self.dtype, name="hidden")(pairs)).astype(jnp.float32)
        logits = [
            pad_answers(nn.Dense(num_answers, name=f"head_{step}")(hidden[:, step]), max(self.answers_per_step))
            for step, num_answers in enumerate(self.answers_per_step)
        ]
        return jnp.stack(logits, axis=1)
