"""Transformer blocks shared by CLIP's towers, timm's vision transformer and BERT.

The layers are a Python loop instead of a scan over stacked parameters. A scan copies each layer's weights on every
call, a third of the time for one image on a CPU; the loop compiles in about a second.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float


def quick_gelu(hidden: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """CLIP's approximation of GELU: x * sigmoid(1.702 x)."""
    return hidden * jax.nn.sigmoid(hidden * jnp.asarray(1.702, hidden.dtype))


def exact_gelu(hidden: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """GELU with the error function, as BERT and timm compute it."""
    return jax.nn.gelu(hidden, approximate=False)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({"quick_gelu": quick_gelu, "gelu": exact_gelu})
"""Activations by their names in config.json."""


class TextOutput(NamedTuple):
    """Output of a text network, all float32; XLA drops the fields that the caller does not use.

    Attributes:
      hidden: [case, token, width], last hidden states.
      cls: [case, width], hidden state of BERT's first token or CLIP's end token.
      mean: [case, width], average over all tokens but padding.
      projected: [case, projected_width], or None without a projection.
    """

    hidden: Float[Array, "case token width"]
    cls: Float[Array, "case width"]
    mean: Float[Array, "case width"]
    projected: Float[Array, "case feature"] | None = None


@dataclasses.dataclass(frozen=True)
class TransformerSizes:
    """Sizes and arithmetic of a stack of blocks.

    Attributes:
      width: size of a token's vector.
      num_heads: attention heads, a divisor of `width`.
      mlp_width: hidden size of a block's MLP.
      norm_first: True: LayerNorm before attention and MLP (CLIP, timm); False: after each sum (BERT).
    """

    width: int
    num_layers: int
    num_heads: int
    mlp_width: int
    activation: str
    epsilon: float
    norm_first: bool


class LayerNorm(nn.Module):
    """LayerNorm in float32, with the two-pass variance, which avoids cancellation."""

    epsilon: float

    @nn.compact
    def __call__(self, hidden: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Return `hidden` [*token, width] of any float dtype, normalised, as float32."""
        scale = self.param("scale", nn.initializers.ones, hidden.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, hidden.shape[-1:])
        hidden = hidden.astype(jnp.float32)
        centred = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        axes = tuple(range(hidden.ndim - 1))
        return centred * inverse * jnp.expand_dims(scale, axes) + jnp.expand_dims(bias, axes)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values.

    Attributes:
      num_heads: a divisor of the width.
      dtype: compute dtype; scores and softmax stay float32.
    """

    num_heads: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None
    ) -> Float[Array, "case token width"]:
        """Attend among the tokens of each case.

        Args:
          visible: [case, token, key], True where a token sees a key; None: every token sees every other.
        """
        num_cases, num_tokens, width = hidden.shape
        head_width = width // self.num_heads
        # One matmul [width, 3 * width] instead of three: the same arithmetic in larger pieces.
        fused = nn.Dense(3 * width, dtype=self.dtype, name="qkv")(hidden)
        fused = fused.reshape(num_cases, num_tokens, 3, self.num_heads, head_width)
        query, key, value = fused[:, :, 0], fused[:, :, 1], fused[:, :, 2]
        query = query * jnp.asarray(head_width**-0.5, query.dtype)
        # query [case, token, head, width], key [case, key, head, width] -> scores [case, head, token, key]
        scores = jnp.einsum("cthw,ckhw->chtk", query, key, preferred_element_type=jnp.float32)
        if visible is not None:
            scores = jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        # weights [case, head, token, key], value [case, key, head, width] -> mixed [case, token, head, width]
        mixed = jnp.einsum("chtk,ckhw->cthw", weights, value)
        return nn.Dense(width, dtype=self.dtype, name="out")(mixed.reshape(num_cases, num_tokens, width))


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer MLP, each with a residual sum and a LayerNorm."""

    sizes: TransformerSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None
    ) -> Float[Array, "case token width"]:
        """Return the output [case, token, width]; arguments as for `SelfAttention`."""
        attention = SelfAttention(self.sizes.num_heads, self.dtype, name="attention")
        attention_norm = LayerNorm(self.sizes.epsilon, name="attention_norm")
        mlp_norm = LayerNorm(self.sizes.epsilon, name="mlp_norm")
        if self.sizes.norm_first:
            hidden = hidden + attention(attention_norm(hidden).astype(self.dtype), visible)
            return hidden + self._mlp(mlp_norm(hidden).astype(self.dtype))
        hidden = attention_norm(hidden + attention(hidden, visible)).astype(self.dtype)
        return mlp_norm(hidden + self._mlp(hidden)).astype(self.dtype)

    def _mlp(self, hidden: Float[Array, "case token width"]) -> Float[Array, "case token width"]:
        hidden = nn.Dense(self.sizes.mlp_width, dtype=self.dtype, name="up")(hidden)
        hidden = ACTIVATIONS[self.sizes.activation](hidden)
        return nn.Dense(self.sizes.width, dtype=self.dtype, name="down")(hidden)


class Transformer(nn.Module):
    """A stack of blocks."""

    sizes: TransformerSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None = None
    ) -> Float[Array, "case token width"]:
        """Return the output [case, token, width]; arguments as for `SelfAttention`."""
        for layer in range(self.sizes.num_layers):
            hidden = TransformerBlock(self.sizes, self.dtype, name=f"layer_{layer}")(hidden, visible)
        return hidden


def average_tokens(
    hidden: Float[Array, "case token width"], attended: Bool[Array, "case token"]
) -> Float[Array, "case width"]:
    """Return the mean of `hidden` [case, token, width] over `attended` tokens [case, token]; zeros without any."""
    weights = attended.astype(hidden.dtype)[:, :, None]
    return jnp.sum(hidden * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)
