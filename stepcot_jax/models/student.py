"""Chain student: each answer updates one feature vector for the next step (paper: Appendix D.3)."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from stepcot_jax.models.deferred_gradients import steps_at_once
from stepcot_jax.models.layers import GivenAnswers, Projection, draw_keeps, given_distributions, given_logits, is_given

ABSENT_LOGIT = -1e9
"""Logit of an answer that a step does not have: probability exactly 0, no gradient."""


def pad_answers(
    logits: Float[Array, "*case answer"], num_answers: int, value: float = ABSENT_LOGIT
) -> Float[Array, "*case padded"]:
    """Pad `logits` [*case, answer] to `num_answers` with `value`."""
    widths = [(0, 0)] * (logits.ndim - 1) + [(0, num_answers - logits.shape[-1])]
    return jnp.pad(logits, widths, constant_values=value)


def stack_heads(heads: Sequence[Any], *, absent_bias: float) -> dict[str, Array]:
    """Stack linear heads, padded to one size: kernel [step, width, answer] and bias [step, answer].

    Args:
      heads: parameters of each step's head.
      absent_bias: bias of the answers that a step does not have; their kernel is 0.
    """
    most = max(head["bias"].shape[-1] for head in heads)
    return {
        "kernel": jnp.stack([pad_answers(head["kernel"], most, 0.0) for head in heads]),
        "bias": jnp.stack([pad_answers(head["bias"], most, absent_bias) for head in heads]),
    }


class StudentReading(flax.struct.PyTreeNode):
    """The student's output for a batch.

    Attributes:
      logits: float32 [case, step, answer]; `ABSENT_LOGIT` where a step has fewer answers.
      image_features: [case, width], before any answer; input of channel alignment.
    """

    logits: Any
    image_features: Any


class Student(nn.Module):
    """Image feature -> answers of all steps: logits_s = head_s(f), then f = f + tanh(logits_s @ head weight).

    A given answer replaces the logits that are passed on, which is ours (docs/departures.md).

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
        given_answers: GivenAnswers | None = None,
        deterministic: bool,
        first_case: Int[Array, ""] | int = 0,
    ) -> StudentReading:
        """Read a batch.

        Args:
          image_features: [case, image width], from a frozen or separately trained encoder.
          given_answers: labels [case, step], -1 to predict, or soft answers [case, step, answer], zeros to predict. A
            given answer is passed on instead of the step's logits (`layers.given_logits`), which stay the prediction.
          deterministic: disables dropout; otherwise an rng named "dropout" is required.
          first_case: position of the first case in the global batch, which seeds the dropout masks.
        """
        keep = None
        if not deterministic:
            sites = {"image": ((self.width,), self.dropout_rate)}
            cases = first_case + jnp.arange(len(image_features))
            keep = draw_keeps(self.make_rng("dropout"), cases=cases, sites=sites)["image"]
        projection = Projection(self.width, self.dropout_rate, self.dtype, name="image_projection")
        feature = projection(image_features, keep).astype(jnp.float32)
        heads = [nn.Dense(num_answers, name=f"head_{step}") for step, num_answers in enumerate(self.answers_per_step)]
        for head in heads:
            head(feature[:1])  # declares the parameters
        given = given_distributions(given_answers, num_answers=max(self.answers_per_step))
        logits = self._answer(feature, [head.variables["params"] for head in heads], given)
        return StudentReading(logits=logits, image_features=feature)

    def _answer(
        self,
        feature: Float[Array, "case width"],
        heads: Sequence[Any],
        given: Float[Array, "step case answer"] | None,
    ) -> Float[Array, "case step answer"]:
        """Return the logits of all steps, in a scan over heads padded to one size, which compiles once."""
        most = max(self.answers_per_step)
        available = np.arange(most) < np.array(self.answers_per_step)[:, None]

        def answer(feature: Array, inputs: Any) -> tuple[Array, Array]:
            head, given, available = inputs
            logits = feature @ head["kernel"] + jnp.broadcast_to(head["bias"], (feature.shape[0], most))
            passed = logits
            if given is not None:
                passed = jnp.where(is_given(given)[:, None], given_logits(given, available=available), logits)
            return feature + jnp.tanh(passed @ head["kernel"].T), logits  # padding is 0 in both and adds nothing

        inputs = (stack_heads(heads, absent_bias=0.0), given, available)
        _, logits = jax.lax.scan(answer, feature, inputs, unroll=steps_at_once())
        return jnp.where(available, jnp.swapaxes(logits, 0, 1), ABSENT_LOGIT)


# Baseline: a two-layer perceptron on pooled image and text embeddings (paper: Table 3).


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
