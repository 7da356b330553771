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
        """Return logits of the next token, float32, from the output of `__call__`."""
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
