"""Networks that answer every question at once: features -> one linear head a question, or a hidden layer before it."""

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
        return split_answers(logits, self.answers_per_step)


class LinearHeads(nn.Module):
    """One linear head a step on the image features, and nothing else: logits[s] = W_s x + b_s.

    With an image encoder trained along this is the plain network, the rival of teacher and student: no prompts, no
    memory, no answer passed on. The heads are one matrix, as a `FormReader`'s.

    Attributes:
      answers_per_step: number of answers of each step.
    """

    answers_per_step: Sequence[int]

    @nn.compact
    def __call__(self, image_features: Float[Array, "case width"]) -> Float[Array, "case step answer"]:
        """Answer every step of a batch independently.

        Args:
          image_features: [case, width], pooled.

        Returns:
          Logits float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.
        """
        logits = nn.Dense(int(sum(self.answers_per_step)), name="answers")(image_features.astype(jnp.float32))
        return split_answers(logits, self.answers_per_step)


def split_answers(
    logits: Float[Array, "case answers"], answers_per_step: Sequence[int]
) -> Float[Array, "case step answer"]:
    """Return the logits of all steps, which stand one after another, by step; `ABSENT_LOGIT` beyond a step's own."""
    numbers = np.asarray(answers_per_step)
    answers = np.arange(numbers.max())
    starts = np.cumsum(numbers) - numbers
    offered = answers < numbers[:, None]
    return jnp.where(offered, logits[:, np.where(offered, starts[:, None] + answers, 0)], ABSENT_LOGIT)
