"""The chain student: one feature vector that each answer updates for the next step (paper: Appendix D.3)."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from stepcot_jax.models.dropout import draw_keeps
from stepcot_jax.models.projection import Projection

ABSENT_LOGIT = -1e9
"""Logit of an answer that a step does not have: its probability is exactly 0 and no gradient passes."""


def pad_answers(
    logits: Float[Array, "*case answer"], num_answers: int, value: float = ABSENT_LOGIT
) -> Float[Array, "*case padded"]:
    """`logits` [*case, answer] widened to `num_answers` with `value`."""
    widths = [(0, 0)] * (logits.ndim - 1) + [(0, num_answers - logits.shape[-1])]
    return jnp.pad(logits, widths, constant_values=value)


class StudentReading(flax.struct.PyTreeNode):
    """What the student makes of a batch.

    Attributes:
      logits: float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.
      image_features: [case, width], before any answer; what channel alignment compares.
    """

    logits: Any
    image_features: Any


class Student(nn.Module):
    """Image feature -> answers of all steps: logits_s = head_s(f), then f = f + tanh(logits_s @ head weight).

    Attributes:
      answers_per_step: number of answers of each step.
      width: size of the feature vector (512 in the paper).
      dropout_rate: dropout of the image projection.
      dtype: compute dtype of the projection; logits are float32.
    """

    answers_per_step: Sequence[int]
    width: int = 512
    dropout_rate: float = 0.3
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        *,
        image_features: Float[Array, "case image_width"],
        deterministic: bool,
        first_case: Int[Array, ""] | int = 0,
    ) -> StudentReading:
        """Read a batch.

        Args:
          image_features: [case, image width], from a frozen or separately trained encoder.
          deterministic: switches dropout off; otherwise an rng named "dropout" is needed.
          first_case: position in the whole batch of the first case; dropout's masks belong to positions.

        Returns:
          The reading, see `StudentReading`.
        """
        keep = None
        if not deterministic:
            places = {"image": ((self.width,), self.dropout_rate)}
            cases = first_case + jnp.arange(len(image_features))
            keep = draw_keeps(self.make_rng("dropout"), cases=cases, places=places)["image"]
        projection = Projection(self.width, self.dropout_rate, self.dtype, name="image_projection")
        feature = projection(image_features, keep).astype(jnp.float32)
        heads = [nn.Dense(num_answers, name=f"head_{step}") for step, num_answers in enumerate(self.answers_per_step)]
        for head in heads:
            head(feature[:1])  # declares the parameters; the result is not used
        logits = self._answer(feature, [head.variables["params"] for head in heads])
        return StudentReading(logits=logits, image_features=feature)

    def _answer(self, feature: Float[Array, "case width"], heads: Sequence[Any]) -> Float[Array, "case step answer"]:
        """Logits of all steps, in a scan over heads that are padded to one size, which compiles once for all."""
        most = max(self.answers_per_step)
        kernels = jnp.stack([pad_answers(head["kernel"], most, 0.0) for head in heads])
        biases = jnp.stack([pad_answers(head["bias"], most, 0.0) for head in heads])

        def answer(feature: Array, head: tuple[Array, Array]) -> tuple[Array, Array]:
            kernel, bias = head
            logits = feature @ kernel + jnp.broadcast_to(bias, (feature.shape[0], most))
            return feature + jnp.tanh(logits @ kernel.T), logits  # padding is 0 in both, and adds nothing

        _, logits = jax.lax.scan(answer, feature, (kernels, biases))
        own = np.arange(most) < np.array(self.answers_per_step)[:, None]
        return jnp.where(own, jnp.swapaxes(logits, 0, 1), ABSENT_LOGIT)
