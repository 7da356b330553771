"""A network that answers every question of a form at once: features -> hidden layer -> logits of all answers."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float

from stepcot_jax.models.student import ABSENT_LOGIT


class FormReader(nn.Module):
    """LayerNorm, Linear, ReLU, one Linear to the answers of all steps: logits[s] = W_s ReLU(W LayerNorm(x) + b) + b_s.

    The last layer is one matrix for all steps: a form has a thousand and more, too many for a layer each. Steps share
    the hidden layer; the answers to earlier questions decide which are asked (`chain.Chain.close`), not how.

    Attributes:
      answers_per_step: number of answers of each step.
      hidden: size of the hidden layer.
      dtype: compute dtype of the hidden layer; logits are float32.
    """

    answers_per_step: Sequence[int]
    hidden: int = 768
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, image_features: Float[Array, "case width"]) -> Float[Array, "case step answer"]:
        """Answer every step of a batch independently.

        Args:
          image_features: [case, width], pooled features of a picture, or of a text.

        Returns:
          Logits float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.
        """
        features = nn.LayerNorm(name="norm")(image_features.astype(jnp.float32))
        hidden = nn.relu(nn.Dense(self.hidden, dtype=self.dtype, name="hidden")(features)).astype(jnp.float32)
        logits = nn.Dense(int(sum(self.answers_per_step)), name="answers")(hidden)
        numbers = np.asarray(self.answers_per_step)
        answers = np.arange(numbers.max())
        starts = np.cumsum(numbers) - numbers
        offered = answers < numbers[:, None]
        return jnp.where(offered, logits[:, np.where(offered, starts[:, None] + answers, 0)], ABSENT_LOGIT)
