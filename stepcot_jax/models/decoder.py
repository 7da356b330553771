"""A causal decoder: vectors of tokens and image patches to scores of the next token.

Layers are a Python loop, as in `encoders.transformer`, or a scan if their parameters are stacked. A cache has one slot
per token. All rollouts have the same slot numbers: shorter prompts are padded, `visible` hides the padding, and
positions continue for each rollout.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.stacked_layers import stacked_variables, take_layer

# Grouped-query attention over cached keys and values, some of which the rollouts of a case share.
#
# A rollout attends to its own slots and, with a prefix, to those of its case: one softmax over both. The prefix is
# stored and read once per case, not once per rollout.


class KeyValues(NamedTuple):
    """Keys and values of one layer; a slot without a token holds zeros.

    With one head of keys they are operands of the matrix products without a transpose. XLA then writes a token in
    place; with a transpose between writing and reading the CPU's programs copy the entire cache at every token.

    Attributes:
      keys: [rollout, slot, kv_head * head_width], already rotated.
      values: [rollout, slot, kv_head * head_width].
    """

    keys: Float[Array, "rollout slot width"]
    values: Float[Array, "rollout slot width"]


class Prefix(NamedTuple):
    """Keys and values of one layer that the rollouts of a case share; rollouts of a case follow each other.

    Attributes:
      layer: [case, slot, kv_head * head_width].
      is_real: [case, slot], which slots the rollouts see; padding is not real.
    """

    layer: KeyValues
    is_real: Bool[Array, "case slot"]


class EmbeddedImages(NamedTuple):
    """Images as their tokens' vectors, which a policy's `embed_images` returns and its `prefill` takes too.

    Attributes:
      vectors: [image, unit, width].
    """

    vectors: Float[Array, "image unit width"]


def attend(
    queries: Float[Array, "rollout token head width"],
    *,
    kv: KeyValues,
    visible: Bool[Array, "#rollout token slot"],
    prefix: Prefix | None = None,
) -> Float[Array, "rollout token head width"]:
    """Return sum_s softmax_s(q k_s / sqrt(width)) v_s over the slots s of `kv` and `prefix`.

    The tokens and query heads that share a head of keys are the rows of one matrix product: those of a rollout with
    `kv`, those of all rollouts of a case with `prefix`. Scores and softmax are float32.

    Args:
      queries: [rollout, token, head, width], rotated.
      kv: of each rollout.
      visible: [rollout, token, slot], which slots of `kv` a token sees, at least one.
      prefix: of each case.
    """
    num_rollouts, num_tokens, num_heads, width = queries.shape
    num_kv = kv.keys.shape[2] // width
    group = num_heads // num_kv
    # Rollouts and heads of keys stay two axes: devices divide both, and would gather a merged one.
    rows = queries.reshape(num_rollouts, num_tokens, num_kv, group, width).swapaxes(1, 2)
    rows = rows.reshape(num_rollouts, num_kv, num_tokens * group, width)
    parts, masks = [kv], [jnp.repeat(visible, group, axis=1)]
    if prefix is not None:
        parts.append(prefix.layer)
        masks.append(jnp.repeat(prefix.is_real, num_rollouts // prefix.is_real.shape[0], axis=0)[:, None])
    scores, heads = [], [KeyValues(*(_by_head(array, num_kv) for array in part)) for part in parts]
    for part, mask in zip(heads, masks, strict=True):
        # A slot that a token does not see gets a weight of exactly 0, whatever it holds.
        scores.append(jnp.where(mask[:, None], _scores(rows, part.keys), jnp.finfo(jnp.float32).min))
    largest = functools.reduce(jnp.maximum, (jnp.max(score, axis=-1, keepdims=True) for score in scores))
    weights = [jnp.exp(score - jax.lax.stop_gradient(largest)) for score in scores]
    total = functools.reduce(jnp.add, (jnp.sum(weight, axis=-1, keepdims=True) for weight in weights))
    mixes = (_mix(weight, part.values) for weight, part in zip(weights, heads, strict=True))
    mixed = functools.reduce(jnp.add, mixes) / total
    mixed = mixed.reshape(num_rollouts, num_kv, num_tokens, group, width).swapaxes(1, 2)
    return mixed.reshape(queries.shape).astype(queries.dtype)


def _scores(
    rows: Float[Array, "rollout kv row width"], keys: Float[Array, "case kv slot width"]
) -> Float[Array, "rollout kv row slot"]:
    gathered = _gather(rows, keys.shape[0])
    # The smaller operand goes right: the CPU's matrix products copy it.
    pair = (gathered, keys) if gathered.shape[2] > keys.shape[2] else (keys, gathered)
    scores = jax.lax.dot_general(*pair, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)
    scores = scores if pair[1] is keys else scores.swapaxes(2, 3)
    return _spread(scores, rows.shape[0]) * jnp.float32(rows.shape[-1] ** -0.5)


def _mix(
    weights: Float[Array, "rollout kv row slot"], values: Float[Array, "case kv slot width"]
) -> Float[Array, "rollout kv row width"]:
    gathered = _gather(weights.astype(values.dtype), values.shape[0])
    mixed = jnp.einsum("ckqs,cksw->ckqw", gathered, values, preferred_element_type=jnp.float32)
    return _spread(mixed, weights.shape[0])


def _by_head(heads: Float[Array, "case slot kv_width"], num_kv: int) -> Float[Array, "case kv slot width"]:
    return heads.reshape(*heads.shape[:2], num_kv, -1).swapaxes(1, 2)


def _gather(rows: Float[Array, "rollout kv row last"], num_cases: int | Any) -> Float[Array, "case kv row2 last"]:
    """Return the rows of all rollouts of each case as one axis."""
    if num_cases == rows.shape[0]:
        return rows
    split = rows.reshape(num_cases, rows.shape[0] // num_cases, *rows.shape[1:]).swapaxes(1, 2)
    return split.reshape(num_cases, rows.shape[1], -1, rows.shape[-1])


def _spread(rows: Float[Array, "case kv row2 last"], num_rollouts: int | Any) -> Float[Array, "rollout kv row last"]:
    """Undo `_gather`."""
    num_cases, num_kv, num_rows, last = rows.shape
    if num_rollouts == num_cases:
        return rows
    per_case = num_rollouts // num_cases
    split = rows.reshape(num_cases, num_kv, per_case, num_rows // per_case, last).swapaxes(1, 2)
    return split.reshape(num_rollouts, num_kv, -1, last)


# Blocks of a causal decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, cached keys and values.
#
# They are those of Qwen2 (Yang et al., 2024): only the projections to queries, keys and values have biases.


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
      is_tied: whether the embedding is also the head.
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
        """Attend to the tokens, and to those in the cache; arguments as for `Decoder`."""
        sizes = self.sizes
        queries, keys, values = (
            nn.DenseGeneral((number, sizes.head_width), dtype=self.dtype, name=name)(hidden)
            for name, number in (("query", sizes.num_heads), ("key", sizes.num_kv_heads), ("value", sizes.num_kv_heads))
        )
        cosine, sine = angles
        queries, keys = rotate(queries, cosine=cosine, sine=sine), rotate(keys, cosine=cosine, sine=sine)
        keys, values = (heads.reshape(*heads.shape[:2], -1) for heads in (keys, values))
        if cache is not None:
            keys, values = (
                jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=1)
                for old, new in zip(cache, (keys, values), strict=True)
            )
        kv = KeyValues(keys.astype(self.dtype), values.astype(self.dtype))
        mixed = attend(queries, kv=kv, visible=visible, prefix=prefix)
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
        """Return the output and the layer's keys and values; arguments as for `Decoder`."""
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


def empty_cache(
    sizes: DecoderSizes, *, num_rollouts: int | Any, num_slots: int, dtype: DTypeLike = jnp.float32
) -> tuple[KeyValues, ...]:
    """Return caches of all layers, without tokens; `num_rollouts` may be a symbolic dimension of `jax.export`."""
    shape = (num_rollouts, num_slots, sizes.num_kv_heads * sizes.head_width)
    return tuple(KeyValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(sizes.num_layers))


class Decoder(nn.Module):
    """Tokens, or vectors instead of them, to scores of the next token.

    Attributes:
      sizes: see `DecoderSizes`.
      dtype: compute dtype.
      remat: whether a gradient recomputes each block instead of storing its activations.
    """

    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32
    remat: bool = False

    def setup(self) -> None:
        """Declare embedding, blocks, norm and head."""
        sizes = self.sizes
        self.embedding = nn.Embed(sizes.num_words, sizes.width, dtype=self.dtype)
        self.blocks = [self._block(sizes, self.dtype, name=f"layer_{layer}") for layer in range(sizes.num_layers)]
        self.norm = RMSNorm(sizes.epsilon)
        if not sizes.is_tied:
            self.head = nn.Dense(sizes.num_words, use_bias=False, dtype=self.dtype)

    def embed(self, tokens: Int[Array, "rollout token"]) -> Float[Array, "rollout token width"]:
        """Return the vectors of tokens."""
        return self.embedding(tokens)

    def score(self, hidden: Float[Array, "rollout token width"]) -> Float[Array, "rollout token word"]:
        """Return logits of the next token, float32 but rounded to the compute dtype, from the output of `__call__`."""
        logits = self.embedding.attend(hidden) if self.sizes.is_tied else self.head(hidden)
        return logits.astype(jnp.float32)

    def __call__(
        self,
        embedded: Float[Array, "rollout token width"],
        *,
        positions: Int[Array, "axis rollout token"],
        visible: Bool[Array, "#rollout token slot"],
        caches: tuple[KeyValues, ...] | None = None,
        start: int | Int[Array, ""] = 0,
        prefix: tuple[Prefix, ...] | None = None,
    ) -> tuple[Float[Array, "rollout token width"], tuple[KeyValues, ...]]:
        """Decode a run of tokens.

        Args:
          embedded: [rollout, token, width], vectors of tokens or of image patches.
          positions: [axis, rollout, token]; one axis, or one for each of `sizes.sections`.
          visible: [rollout, token, slot], which slots a token sees, itself included; without caches slots are tokens.
          caches: of each layer; None to attend among these tokens only, as with stacked layers.
          start: slot of the first token in the caches.
          prefix: of each layer, shared by the rollouts of a case and visible to every token; rollouts of a case are
            adjacent, the same number for each case.

        Returns:
          Normed vectors [rollout, token, width] for `score`, and the caches with these tokens.
        """
        hidden, angles = embedded.astype(self.dtype), rotary_angles(positions, self.sizes)
        if stacked := stacked_variables(self):
            if caches is not None:
                raise ValueError("stacked layers take no caches; pass the parameters of each layer")
            hidden, of_layers = self._scan(stacked, hidden, angles, visible, prefix)
            return self.norm(hidden), of_layers
        updated = []
        for layer, block in enumerate(self.blocks):
            cache, shared = (None if layers is None else layers[layer] for layers in (caches, prefix))
            hidden, cache = block(hidden, angles, visible, cache, start, shared)
            updated.append(cache)
        return self.norm(hidden), tuple(updated)

    def _scan(
        self,
        stacked: dict[str, Any],
        hidden: Float[Array, "rollout token width"],
        angles: tuple[Float[Array, "rollout token half"], Float[Array, "rollout token half"]],
        visible: Bool[Array, "#rollout token slot"],
        prefix: tuple[Prefix, ...] | None,
    ) -> tuple[Float[Array, "rollout token width"], tuple[KeyValues, ...]]:
        """Decode tokens by stacked layers, without caches."""
        block = self._block(self.sizes, self.dtype, parent=None)

        def read(hidden: Array, one: Any) -> tuple[Array, KeyValues]:
            variables, shared = one
            found: tuple[Array, KeyValues] = block.apply(variables, hidden, angles, visible, None, 0, shared)
            return found

        shared = None if prefix is None else jax.tree.map(lambda *leaves: jnp.stack(leaves), *prefix)
        hidden, layers = jax.lax.scan(read, hidden, (stacked, shared))
        return hidden, tuple(take_layer(layers, layer) for layer in range(self.sizes.num_layers))

    @property
    def _block(self) -> type[DecoderBlock]:
        block: type[DecoderBlock] = nn.remat(DecoderBlock) if self.remat else DecoderBlock
        return block

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        index: Int[Array, ""],
        starts: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply.

        Args:
          tokens: [rollout], the reply's token at `index`; the replies of a prompt are adjacent.
          index: of the token within the reply, from 0.
          starts: [rollout], position of each reply's first token.
          caches: of the replies alone, from `empty_cache`, one slot per token.
          prefix: of the prompts.

        Returns:
          Scores [rollout, word] of the reply's next token, and the caches.
        """
        slots = jnp.arange(caches[0].keys.shape[1])
        hidden, caches = self(
            self.embed(tokens[:, None]),
            positions=jnp.broadcast_to((starts + index)[None, :, None], (3, starts.shape[0], 1)),
            visible=(slots <= index)[None, None],
            caches=caches,
            start=index,
            prefix=prefix,
        )
        return self.score(hidden)[:, 0], caches

    def score_replies(
        self,
        completions: Int[Array, "rollout reply_token"],
        first: Float[Array, "case word"],
        starts: Int[Array, "case"],
        *,
        prefix: tuple[Prefix, ...],
        hidden: Bool[Array, "rollout reply_token"] | None = None,
    ) -> Float[Array, "rollout reply_token word"]:
        """Return the scores of every token of replies, in one pass over them.

        Args:
          completions: [rollout, reply_token]; rollouts of a case are adjacent, the same number for each case.
          first: [case, word], scores of the replies' first token.
          starts: [case], position of the replies' first token.
          prefix: of the prompts.
          hidden: bool [rollout, reply_token], a run of tokens that see each other and are hidden from later tokens;
            later tokens keep the positions that they have without the run. None for no such run.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        num_decoded, per_case = completions.shape[1] - 1, completions.shape[0] // starts.shape[0]
        first, starts = jnp.repeat(first, per_case, axis=0), jnp.repeat(starts, per_case, axis=0)
        if not num_decoded:
            return first[:, None]
        positions = starts[:, None] + jnp.arange(num_decoded)[None]
        visible = jnp.tril(jnp.ones((1, num_decoded, num_decoded), bool))
        if hidden is not None:
            is_run = hidden[:, :-1]
            visible = visible & (is_run[:, :, None] | ~is_run[:, None])
            positions = positions - jnp.where(is_run, 0, jnp.cumsum(is_run, axis=1, dtype=jnp.int32))
        vectors, _ = self(
            self.embed(completions[:, :-1]),
            positions=jnp.broadcast_to(positions[None], (3, *positions.shape)),
            visible=visible,
            prefix=prefix,
        )
        return jnp.concatenate([first[:, None], self.score(vectors)], axis=1)
