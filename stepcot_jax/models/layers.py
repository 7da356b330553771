"""Graph attention on the complete graph of steps and memory node (paper: Eq. 1, 2 and 9 to 11)."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

# Dropout with masks drawn in advance.
#
# A pass of the teacher has dozens of dropout sites. Drawing all masks in one call compiles faster. The position of
# a case in the global batch seeds its masks, so that they do not depend on the number of devices.


def draw_keeps(
    key: Array,
    *,
    cases: Int[Array, "case"],
    leading: tuple[int, ...] = (),
    sites: Mapping[str, tuple[tuple[int, ...], float]],
) -> dict[str, Bool[Array, "..."]]:
    """Draw the dropout masks of several sites at once.

    Args:
      key: random key.
      cases: [case], position of each case in the global batch.
      leading: axes of all masks before the case axis, such as (step,).
      sites: name -> (axes of the mask after the case axis, dropout rate, 0 to 1).

    Returns:
      name -> bool [*leading, case, *axes]; True keeps the value.
    """
    sizes = [int(np.prod(axes)) for axes, _ in sites.values()]

    def draw(case: Array) -> Array:
        return jax.random.bits(jax.random.fold_in(key, case), (*leading, sum(sizes)), jnp.uint32)

    bits = jax.vmap(draw, out_axes=len(leading))(cases)
    parts = jnp.split(bits, np.cumsum(sizes)[:-1], axis=-1)
    return {
        name: (part >= np.uint32(min(round(rate * 2**32), 2**32 - 1))).reshape(*leading, len(cases), *axes)
        for part, (name, (axes, rate)) in zip(parts, sites.items(), strict=True)
    }


def drop(values: Float[Array, "*shape"], *, keep: Bool[Array, "*shape"] | None, rate: float) -> Float[Array, "*shape"]:
    """Apply a dropout mask: zero the dropped values and scale the others by 1 / (1 - rate); no mask, no change."""
    if keep is None or rate == 0.0:
        return values
    scale = 0.0 if rate == 1.0 else 1.0 / (1.0 - rate)
    return jnp.where(keep, values * scale, jnp.zeros_like(values))


# The paper's projection block: Linear, LayerNorm, ReLU, Dropout.


LAYER_NORM_EPSILON = 1e-5
"""PyTorch's default, used by the authors' code; Flax's default is 1e-6."""


def layer_norm(*, dtype: DTypeLike, name: str | None = None) -> nn.LayerNorm:
    """Return a LayerNorm with the authors' epsilon and the two-pass variance, which avoids cancellation."""
    return nn.LayerNorm(epsilon=LAYER_NORM_EPSILON, use_fast_variance=False, dtype=dtype, name=name)


class Projection(nn.Module):
    """Linear, LayerNorm, ReLU, Dropout (paper: Appendix D.2 and D.3).

    Attributes:
      width: size of the output.
      dropout_rate: dropout rate of the outputs, 0 to 1.
      dtype: compute dtype; parameters stay float32.
    """

    width: int
    dropout_rate: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, features: Float[Array, "*case width"], keep: Bool[Array, "*case out"] | None = None
    ) -> Float[Array, "*case out"]:
        """Project `features` [*case, width] to [*case, out]; `keep` [*case, out] is the dropout mask."""
        hidden = nn.Dense(self.width, dtype=self.dtype, name="linear")(features)
        hidden = nn.relu(layer_norm(dtype=self.dtype, name="norm")(hidden))
        return drop(hidden, keep=keep, rate=self.dropout_rate)


class GraphAttention(nn.Module):
    """One multi-head graph-attention layer (Velickovic et al., 2018) on a complete graph with self loops.

    For destination i and source j of one head: score_ij = LeakyReLU(a_dst . W x_i + a_src . W x_j), softmax
    over j, dropout, and the weighted sum of W x_j. The heads are concatenated and a bias is added.

    Attributes:
      num_heads: number of heads.
      head_width: output size of a head; the layer's output has num_heads * head_width.
      negative_slope: slope of the LeakyReLU below zero.
      dropout_rate: dropout rate of the attention weights.
      dtype: compute dtype; scores and softmax stay float32.
    """

    num_heads: int
    head_width: int
    negative_slope: float = 0.2
    dropout_rate: float = 0.1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        nodes: Float[Array, "*case node width"],
        *,
        node_mask: Bool[Array, "*#case node"] | None = None,
        keep: Bool[Array, "case head node node"] | None = None,
    ) -> tuple[Float[Array, "*out_case node out"], Float[Array, "*case head node node"]]:
        """Attend from every node to all allowed nodes.

        Args:
          nodes: [*case, node, width]; without a case axis if all cases share their nodes.
          node_mask: True where a node may be attended to; a node without any source gets only the bias.
          keep: [case, head, node i, node j], dropout mask of the attention weights. Nodes shared by all cases are
            still projected once.

        Returns:
          Nodes [*case, node, out], with a case axis if `nodes` or `keep` has one, and attention weights before dropout
          [*case, head, node i, node j].
        """
        heads = (self.num_heads, self.head_width)
        width = self.num_heads * self.head_width
        projected = nn.Dense(width, use_bias=False, dtype=self.dtype, name="linear")(nodes)
        projected = projected.reshape(*projected.shape[:-1], *heads)
        initializer = nn.initializers.glorot_uniform()
        source = jnp.einsum("...jhd,hd->...hj", projected, self.param("source", initializer, heads).astype(self.dtype))
        target = jnp.einsum("...ihd,hd->...hi", projected, self.param("target", initializer, heads).astype(self.dtype))
        scores = (target[..., :, None] + source[..., None, :]).astype(jnp.float32)
        allowed = None if node_mask is None else node_mask[..., None, None, :]
        attention = masked_softmax(nn.leaky_relu(scores, self.negative_slope), allowed=allowed)
        weights = attention if keep is None else jnp.broadcast_to(attention, keep.shape)
        weights = drop(weights, keep=keep, rate=self.dropout_rate).astype(self.dtype)
        mixed = jnp.einsum("...hij,...jhd->...ihd", weights, projected)
        mixed = mixed.reshape(*mixed.shape[:-2], self.num_heads * self.head_width)
        bias = self.param("bias", nn.initializers.zeros, (self.num_heads * self.head_width,))
        return mixed + jnp.broadcast_to(bias.astype(self.dtype), mixed.shape), attention


def masked_softmax(
    scores: Float[Array, "*shape answer"], *, allowed: Bool[Array, "*#shape answer"] | None
) -> Float[Array, "*shape answer"]:
    """Return the softmax over the allowed entries of the last axis; zeros if none is allowed, never NaN.

    >>> masked_softmax(jnp.zeros((1, 2)), allowed=jnp.array([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    if allowed is None:
        return jax.nn.softmax(scores, axis=-1)
    # The inner where keeps a fully masked row finite, so that its gradient is zero instead of NaN.
    any_allowed = jnp.any(allowed, axis=-1, keepdims=True)
    filled = jnp.where(allowed, scores, jnp.where(any_allowed, -jnp.inf, 0.0))
    return jnp.where(allowed, jax.nn.softmax(filled, axis=-1), 0.0)


class GraphAttentionStack(nn.Module):
    """Layers of graph attention, each with a linear residual, LayerNorm and ELU (paper: Appendix D.2).

    Attributes:
      num_layers: number of layers.
      num_heads: heads of each layer.
      width: size of a node; a head has width / num_heads.
      negative_slope: slope of the LeakyReLU below zero.
      dropout_rate: dropout of the attention weights.
      dtype: compute dtype.
    """

    num_layers: int
    num_heads: int
    width: int
    negative_slope: float = 0.2
    dropout_rate: float = 0.1
    dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        if self.num_layers < 1 or self.num_heads < 1 or self.width % self.num_heads:
            raise ValueError(
                "num_layers must be at least 1 and num_heads a divisor of width; got "
                f"{self.num_layers}, {self.num_heads} and {self.width}"
            )
        super().__post_init__()

    @nn.compact
    def __call__(
        self,
        nodes: Float[Array, "*case node width"],
        *,
        node_mask: Bool[Array, "*#case node"] | None = None,
        keep: Bool[Array, "case layer head node node"] | None = None,
    ) -> tuple[Float[Array, "*out_case node width"], list[Float[Array, "*_ head node node"]]]:
        """Return nodes [*case, node, width] after all layers, and each layer's attention [*case, head, node i, node j].

        Arguments as for `GraphAttention`; `keep` has a mask per layer.
        """
        attentions = []
        for layer in range(self.num_layers):
            residual = nn.Dense(self.width, dtype=self.dtype, name=f"residual_{layer}")(nodes)
            attended, attention = GraphAttention(
                num_heads=self.num_heads,
                head_width=self.width // self.num_heads,
                negative_slope=self.negative_slope,
                dropout_rate=self.dropout_rate,
                dtype=self.dtype,
                name=f"attention_{layer}",
            )(nodes, node_mask=node_mask, keep=None if keep is None else keep[:, layer])
            if attended.ndim > residual.ndim:
                residual = residual[None]
            nodes = nn.elu(layer_norm(dtype=self.dtype, name=f"norm_{layer}")(attended + residual))
            attentions.append(attention)
        return nodes, attentions


# Given answers, hard or soft, that replace a network's predictions.


GivenAnswers = Int[Array, "case step"] | Float[Array, "case step answer"]
"""Labels, -1 to predict; or soft answers: distributions over a step's answers, zeros to predict."""

_LEAST = 0.01
"""Least probability in a given answer that a student passes on; 0.001 works alike, 0.1 worse (docs/results)."""


def given_distributions(
    given_answers: GivenAnswers | None, *, num_answers: int
) -> Float[Array, "step case answer"] | None:
    """Return given answers as distributions by step, zeros where a step is to be predicted; None for None.

    Args:
      given_answers: labels [case, step], -1 to predict, or soft answers [case, step, answer], zeros to predict.
      num_answers: number of padded answers.
    """
    if given_answers is None:
        return None
    if given_answers.ndim == 2:
        given_answers = jax.nn.one_hot(given_answers, num_answers)
    return jnp.swapaxes(given_answers, 0, 1)


def is_given(distributions: Float[Array, "*shape answer"]) -> Bool[Array, "*shape"]:
    """Return True for each given distribution, which is not all zeros."""
    return distributions.sum(axis=-1) > 0


def given_logits(
    distribution: Float[Array, "case answer"], *, available: Bool[Array, " answer"]
) -> Float[Array, "case answer"]:
    """Return logits whose softmax is a given distribution, with every answer at `_LEAST` or more.

    They are centred, so that only differences between answers are passed on; 0 for answers that the step does not have.

    Args:
      distribution: over the padded answers.
      available: True for the answers that the step has.
    """
    logits = jnp.where(available, jnp.log(jnp.maximum(distribution, _LEAST)), 0.0)
    return jnp.where(
        available, logits - logits.sum(axis=-1, keepdims=True) / jnp.sum(available, dtype=logits.dtype), 0.0
    )


# Update of the memory node: a gated recurrent unit whose input is the last step's answer.


class MemoryCell(nn.Module):
    """GRU cell with the equations and both bias vectors of PyTorch's GRUCell (paper: Eq. 16).

    reset, update = sigmoid of input + hidden parts; new = tanh(input part + reset * hidden part);
    memory' = (1 - update) * new + update * memory. Flax's own cell lacks two redundant biases that the published
    parameter count and the authors' checkpoints include.

    Attributes:
      dtype: compute dtype.
    """

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, conclusion: Float[Array, "case width"], memory: Float[Array, "case width"]
    ) -> Float[Array, "case width"]:
        """Return the memory [case, width] updated with `conclusion` [case, width]."""
        width = memory.shape[-1]
        from_input = nn.Dense(3 * width, dtype=self.dtype, name="input")(conclusion)
        from_memory = nn.Dense(3 * width, dtype=self.dtype, name="hidden")(memory)
        return gated_update(from_input=from_input, from_memory=from_memory, memory=memory)


def gated_update(
    *,
    from_input: Float[Array, "case gates"],
    from_memory: Float[Array, "case gates"],
    memory: Float[Array, "case width"],
) -> Float[Array, "case width"]:
    """Return the updated memory [case, width]; both parts are [case, 3 * width], ordered reset, update, new."""
    reset_input, update_input, new_input = jnp.split(from_input, 3, axis=-1)
    reset_memory, update_memory, new_memory = jnp.split(from_memory, 3, axis=-1)
    reset = nn.sigmoid(reset_input + reset_memory)
    update = nn.sigmoid(update_input + update_memory)
    new = nn.tanh(new_input + reset * new_memory)
    return (1 - update) * new + update * memory
