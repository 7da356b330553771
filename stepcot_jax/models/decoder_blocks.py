"""Blocks of a causal decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, cached keys and values.

They are those of Qwen2 (Yang et al., 2024): only the projections to queries, keys and values have biases.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.cached_attention import KeyValues, Prefix, attend


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
        scaled = wide * inverse * jnp.expand_dims(scale.astype(jnp.float32), tuple(range(hidden.ndim - 1)))
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
        prefix: Prefix | None,
    ) -> tuple[Float[Array, "rollout token width"], KeyValues]:
        """Attend to the tokens, and to those in the cache; arguments as for `decoder.Decoder`."""
        sizes = self.sizes
        queries, keys, values = (
            nn.DenseGeneral((number, sizes.head_width), dtype=self.dtype, name=name)(hidden)
            for name, number in (("query", sizes.num_heads), ("key", sizes.num_kv_heads), ("value", sizes.num_kv_heads))
        )
        cosine, sine = angles
        queries, keys = rotate(queries, cosine=cosine, sine=sine), rotate(keys, cosine=cosine, sine=sine)
        keys, values = (each.reshape(*each.shape[:2], -1) for each in (keys, values))
        if cache is not None:
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
                for old, new in zip(cache, (keys, values), strict=True)
            )
        own = KeyValues(keys.astype(self.dtype), values.astype(self.dtype))
        mixed = attend(queries, own=own, visible=visible, prefix=prefix)
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
        prefix: Prefix | None,
    ) -> tuple[Float[Array, "rollout token width"], KeyValues]:
        """Return the output and the layer's keys and values; arguments as for `decoder.Decoder`."""
        sizes = self.sizes
        attention = GroupedAttention(sizes, self.dtype, name="attention")
        normed = RMSNorm(sizes.epsilon, name="attention_norm")(hidden)
        mixed, cache = attention(normed, angles, visible, cache, start, prefix)
        hidden = hidden + mixed
        normed = RMSNorm(sizes.epsilon, name="mlp_norm")(hidden)
        gate, up = (
            nn.Dense(sizes.mlp_width, use_bias=False, dtype=self.dtype, name=name)(normed) for name in ("gate", "up")
        )
        down = nn.Dense(sizes.width, use_bias=False, dtype=self.dtype, name="down")
        return hidden + down(nn.silu(gate) * up), cache
