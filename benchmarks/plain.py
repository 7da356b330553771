"""A straightforward teacher: seven step models in a Python loop, and a dropout layer at every place.

The reference for compile time, together with optax's AdamW, array by array. It has the same layers and results as
`stepcot_jax.models.teacher.Teacher` and `training.optimizers`.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from stepcot_jax.models.layers import GraphAttentionStack, MemoryCell, layer_norm
from stepcot_jax.models.student import pad_answers
from stepcot_jax.models.teacher import TeacherReading


def make_plain_optimizer(*, learning_rate: float) -> optax.GradientTransformation:
    """Return gradient clipping and AdamW at the published rates."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(learning_rate, weight_decay=0.01))


class Block(nn.Module):
    """Linear, LayerNorm, ReLU, Dropout."""

    width: int
    dropout_rate: float

    @nn.compact
    def __call__(self, values: Array, *, deterministic: bool) -> Array:
        """Project `values` [case, width]."""
        hidden = nn.relu(layer_norm(dtype=jnp.float32)(nn.Dense(self.width)(values)))
        return nn.Dropout(self.dropout_rate)(hidden, deterministic=deterministic)


class StepModel(nn.Module):
    """One step's image projection, fusion and classifier."""

    num_answers: int
    width: int

    @nn.compact
    def __call__(self, image: Array, context: Array, *, deterministic: bool) -> tuple[Array, Array, Array]:
        """Return logits, the step's image feature, and the classifier's kernel."""
        feature = Block(self.width, 0.3)(image, deterministic=deterministic)
        hidden = jnp.concatenate([feature, context], axis=-1)
        for _ in range(2):
            hidden = Block(self.width, 0.3)(hidden, deterministic=deterministic)
        classifier = nn.Dense(self.num_answers)
        return classifier(hidden), feature, classifier.variables["params"]["kernel"]


class PlainTeacher(nn.Module):
    """The published teacher, step after step."""

    answers_per_step: Sequence[int]
    width: int = 768
    num_layers: int = 2
    num_heads: int = 4

    @nn.compact
    def __call__(
        self,
        *,
        image_features: Float[Array, "case width"],
        text_features: Any,
        deterministic: bool,
        given_answers: None = None,  # noqa: ARG002 - as published: none is given
        first_case: Any = 0,  # noqa: ARG002 - dropout masks ignore the position in the global batch
    ) -> TeacherReading:
        """Read a batch; see `Teacher`."""
        num_cases, num_steps = image_features.shape[0], len(self.answers_per_step)
        graph_attention = GraphAttentionStack(self.num_layers, self.num_heads, self.width)
        context_block, conclusion, cell = Block(self.width, 0.2), nn.Dense(self.width), MemoryCell()
        start = self.param("memory_start", nn.initializers.zeros, (self.width,))
        memory = jnp.broadcast_to(start, (num_cases, self.width))
        nodes = jnp.broadcast_to(text_features, (num_cases, *text_features.shape))
        nodes = jnp.concatenate([nodes, memory[:, None]], axis=1)
        logits, features = [], []
        for step, num_answers in enumerate(self.answers_per_step):
            keep = None
            if not deterministic:
                shape = (num_cases, self.num_layers, self.num_heads, num_steps + 1, num_steps + 1)
                keep = jax.random.bernoulli(self.make_rng("dropout"), 0.9, shape)
            nodes, _ = graph_attention(nodes, node_mask=None, keep=keep)
            source = jnp.concatenate([nodes[:, step], nodes[:, -1]], axis=-1)
            context = context_block(source, deterministic=deterministic)
            model = StepModel(num_answers, self.width, name=f"step_{step}")
            answer, feature, kernel = model(image_features, context, deterministic=deterministic)
            memory = cell(conclusion(jax.nn.softmax(answer) @ kernel.T), nodes[:, -1])
            nodes = jnp.concatenate([nodes[:, :-1], memory[:, None]], axis=1)
            logits.append(pad_answers(answer, max(self.answers_per_step)))
            features.append(feature)
        return TeacherReading(jnp.stack(logits, axis=1), jnp.stack(features, axis=1), None, None)
