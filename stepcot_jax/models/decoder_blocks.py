"""Blocks of a causal decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, cached keys and values.

They are those of Qwen2 (Yang et al., 2024): only the projections to queries, keys and values have biases.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a decoder.

    Attributes:
      width: of a token's vector.
      num_layers: number of blocks.
      num_heads: query heads.
      num_kv_heads: heads of keys and values, a divisor of `num_heads`.
      head_width: of a head, even.
      mlp_width: hidden size of SwiGLU.
      num_words: size of the vocabulary.
      is_tied: whether the embedding is the head too.
      theta: base of the rotary frequencies.
      epsilon: of every RMSNorm.
      sections: number of frequencies that turn by each axis of the positions; () for all by the first axis.
    """

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    mlp_width: int
    num_words: int
    is_tied: bool = True
    theta: float = 1e6
    epsilon: float = 1e-6
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: {self.num_kv_heads} is not a divisor of num_heads ({self.num_heads})")
        if self.head_width % 2 or (self.sections and sum(self.sections) != self.head_width // 2):
            raise ValueError(f"sections {self.sections} must add up to half of the even head_width {self.head_width}")


class KeyValues(NamedTuple):
    """Keys and values of one layer; a slot without a token holds zeros.

    Attributes:
      keys: [rollout, slot, kv_head, head_width], already rotated.
      values: [rollout, slot, kv_head, head_width].
    """

    keys: Float[Array, "rollout slot head width"]
    values: Float[Array, "rollout slot head width"]


def rotary_angles(
    positions: Int[Array, "axis rollout token"], sizes: DecoderSizes
) -> tuple[Float[Array, "rollout token half"], Float[Array, "rollout token half"]]:
    """Return cosine and sine of each frequency's angle, float32.

    Frequency i of head_width / 2 is theta^(-2 i / head_width). With `sections` each frequency turns by its own axis of
    the positions: time, height and width of Qwen2.5-VL (Bai et al., 2025: M-RoPE).
    """
    num_frequencies = sizes.head_width // 2
    frequencies = sizes.theta ** (-jnp.arange(num_frequencies, dtype=jnp.float32) / num_frequencies)
    sections = sizes.sections or (num_frequencies,)
    axis_of = jnp.repeat(jnp.arange(len(sections)), jnp.array(sections), total_repeat_length=num_frequencies)
    chosen = jnp.moveaxis(positions.astype(jnp.float32), 0, -1)[:, :, axis_of]
    angles = chosen * frequencies[None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    heads: Float[Array, "rollout token head width"],
    *,
    cosine: Float[Array, "rollout token half"],
    sine: Float[Array, "rollout token half"],
) -> Float[Array, "rollout token head width"]:
    """Rotate the first half of each head against its second half by the positions' angles, in float32."""
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cosine, sine = cosine[:, :, None], sine[:, :, None]
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(heads.dtype)


class RMSNorm(nn.Module):
    """Division by the root mean square, in float32.

    Attributes:
      epsilon: added to the mean square.
    """

    epsilon: float

    @nn.compact
    def __call__(self, hidden: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Return `hidden` normalised and scaled, in its own dtype."""
        scale = self.param("scale", nn.initializers.ones, hidden.shape[-1:])
        wide = hidden.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        scaled = wide * inverse * jnp.expand_dims(scale, tuple(range(hidden.ndim - 1)))
        return scaled.astype(hidden.dtype)


class GroupedAttention(nn.Module):
    """Causal attention whose query heads share heads of keys and values (Ainslie et al., 2023).

    Attributes:
      sizes: see `DecoderSizes`.
      dtype: compute dtype; scores and softmax stay float32.
    """

    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "rollout token width"],
        angles: tuple[Float[Array, "rollout token half"], Float[Array, "rollout token half"]],
        visible: Bool[Array, "#rollout token slot"],
        cache: KeyValues | None,
        start: int | Int[Array, ""],
    ) -> tuple[Float[Array, "rollout token width"], KeyValues]:
        """Attend to the tokens, and to those in the cache; arguments as for `decoder.Decoder`."""
        sizes = self.sizes
        queries, keys, values = (
            nn.DenseGeneral((number, sizes.head_width), dtype=self.dtype, name=name)(hidden)
            for name, number in (("query", sizes.num_heads), ("key", sizes.num_kv_heads), ("value", sizes.num_kv_heads))
        )
        cosine, sine = angles
        queries, keys = rotate(queries, cosine=cosine, sine=sine), rotate(keys, cosine=cosine, sine=sine)
        if cache is not None:
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
                for old, new in zip(cache, (keys, values), strict=True)
            )
        group = sizes.num_heads // sizes.num_kv_heads
        # queries [rollout, token, kv_head, group, width], keys [rollout, slot, kv_head, width]
        queries = queries.reshape(*queries.shape[:2], sizes.num_kv_heads, group, sizes.head_width)
        scores = jnp.einsum("rtkgw,rskw->rkgts", queries, keys, preferred_element_type=jnp.float32)
        scores = scores * jnp.float32(sizes.head_width**-0.5)
        # Slots that a token does not see get a weight of exactly 0, whatever they hold.
        scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        # weights [rollout, kv_head, group, token, slot], values [rollout, slot, kv_head, width]
        mixed = jnp.einsum("rkgts,rskw->rtkgw", weights, values.astype(self.dtype))
        mixed = mixed.reshape(*mixed.shape[:2], sizes.num_heads, sizes.head_width)
        out = nn.DenseGeneral(sizes.width, axis=(-2, -1), use_bias=False, dtype=self.dtype, name="out")(mixed)
        return out, KeyValues(keys, values)


class DecoderBlock(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm and added to its input.

    Attributes:
      sizes: see `DecoderSizes`.
      dtype: compute dtype.
    """

    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "rollout token width"],
        angles: tuple[Float[Array, "rollout token half"], Float[Array, "rollout token half"]],
        visible: Bool[Array, "#rollout token slot"],
        cache: KeyValues | None,
        start: int | Int[Array, ""],
    ) -> tuple[Float[Array, "rollout token width"], KeyValues]:
        """Return the output and the layer's keys and values; arguments as for `decoder.Decoder`."""
        sizes = self.sizes
        attend = GroupedAttention(sizes, self.dtype, name="attention")
        mixed, cache = attend(RMSNorm(sizes.epsilon, name="attention_norm")(hidden), angles, visible, cache, start)
        hidden = hidden + mixed
        normed = RMSNorm(sizes.epsilon, name="mlp_norm")(hidden)
        gate, up = (
            nn.Dense(sizes.mlp_width, use_bias=False, dtype=self.dtype, name=name)(normed) for name in ("gate", "up")
        )
        down = nn.Dense(sizes.width, use_bias=False, dtype=self.dtype, name="down")
        return hidden + down(nn.silu(gate) * up), cache
