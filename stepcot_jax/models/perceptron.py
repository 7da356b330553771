"""The baseline: pooled image and text embeddings through a two-layer perceptron (paper: the encoders of Table 3)."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.models.student import pad_answers


class Baseline(nn.Module):
    """Image and prompt embeddings, concatenated -> Linear, ReLU, Linear -> answers of each step.

    All steps share the first layer and tell themselves apart by their prompts; the second layer is each step's own,
    since steps have answers of their own. With a first layer for each step, what the intermediate steps teach could not
    reach the last one.

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
        """Read a batch, every step by itself.

        Args:
          image_features: [case, image width], pooled.
          text_features: [step, text width], one pooled prompt a step.

        Returns:
          Logits float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.

        Raises:
          ValueError: there is not one prompt a step.
        """
        num_cases, num_steps = image_features.shape[0], len(self.answers_per_step)
        if text_features.shape[0] != num_steps:
            raise ValueError(f"found text features of shape {text_features.shape}, accepted are [{num_steps}, width]")
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
