"""A causal decoder: vectors of tokens and image patches to scores of the next token.

Layers are a Python loop, as in `encoders.transformer`. A cache has one slot a token. Slot numbers are the same for all
rollouts: shorter prompts are padded and the padding is hidden by `visible`, while positions go on for each rollout.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.cached_attention import KeyValues, Prefix
from stepcot_jax.models.decoder_blocks import DecoderBlock, DecoderSizes, RMSNorm, rotary_angles


def empty_cache(
    sizes: DecoderSizes, *, num_rollouts: int | Any, num_slots: int, dtype: DTypeLike = jnp.float32
) -> tuple[KeyValues, ...]:
    """Return caches of all layers, without tokens; `num_rollouts` may be a symbolic dimension of `jax.export`."""
    shape = (num_rollouts, num_slots, sizes.num_kv_heads * sizes.head_width)
    return tuple(KeyValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(sizes.num_layers))


class Decoder(nn.Module):
    """Tokens, or vectors in their place, to scores of the next token.

    Attributes:
      sizes: see `DecoderSizes`.
      dtype: compute dtype.
      remat: whether a gradient computes each block again instead of storing what is inside it.
    """

    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32
    remat: bool = False

    def setup(self) -> None:
        """Declare embedding, blocks, norm and head."""
        sizes = self.sizes
        self.embedding = nn.Embed(sizes.num_words, sizes.width, dtype=self.dtype)
        block = nn.remat(DecoderBlock) if self.remat else DecoderBlock
        self.blocks = [block(sizes, self.dtype, name=f"layer_{layer}") for layer in range(sizes.num_layers)]
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
          caches: of each layer; None to attend among the given tokens alone.
          start: slot of the first token in the caches.
          prefix: of each layer, what the rollouts of a case share and every token sees; rollouts of a case follow each
            other, equally many each.

        Returns:
          Normed vectors [rollout, token, width] for `score`, and the caches with these tokens.
        """
        hidden, angles = embedded.astype(self.dtype), rotary_angles(positions, self.sizes)
        found = []
        for layer, block in enumerate(self.blocks):
            cache, shared = (None if each is None else each[layer] for each in (caches, prefix))
            hidden, cache = block(hidden, angles, visible, cache, start, shared)
            found.append(cache)
        return self.norm(hidden), tuple(found)

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        place: Int[Array, ""],
        starts: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply.

        Args:
          tokens: [rollout], the reply's token at `place`; the replies of a prompt follow each other.
          place: number of the token within the reply, from 0.
          starts: [rollout], position of each reply's first token.
          caches: of the replies alone, from `empty_cache`, one slot a token.
          prefix: of the prompts.

        Returns:
          Scores [rollout, word] of the reply's next token, and the caches.
        """
        slots = jnp.arange(caches[0].keys.shape[1])
        hidden, caches = self(
            self.embed(tokens[:, None]),
            positions=jnp.broadcast_to((starts + place)[None, :, None], (3, starts.shape[0], 1)),
            visible=(slots <= place)[None, None],
            caches=caches,
            start=place,
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
          completions: [rollout, reply_token]; rollouts of a case follow each other, equally many each.
          first: [case, word], scores of the replies' first token.
          starts: [case], position of the replies' first token.
          prefix: of the prompts.
          hidden: bool [rollout, reply_token], a run of tokens that see each other and that the tokens after the run do
            not see; those have the positions that they have without the run. None for no such run.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        num_decoded, each = completions.shape[1] - 1, completions.shape[0] // starts.shape[0]
        first, starts = jnp.repeat(first, each, axis=0), jnp.repeat(starts, each, axis=0)
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
