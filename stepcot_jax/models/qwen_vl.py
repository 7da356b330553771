"""Qwen2.5 and Qwen2.5-VL: text, with images in it, to scores of the next token.

A prompt is a row of tokens, padded on the right. Each token of an image takes its vector from the vision tower, the
others from the embedding. Positions are time, height and width (Bai et al., 2025: M-RoPE); without a vision tower all
three are equal, and the first is used.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.cached_attention import KeyValues, Prefix
from stepcot_jax.models.decoder import Decoder
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.qwen_vision import QwenImages, VisionSizes, VisionTower


class QwenPrompts(NamedTuple):
    """Prompts of a batch.

    Attributes:
      tokens: [case, token], padded on the right.
      positions: [3, case, token], by time, height and width.
      sources: [case, token], place of an image token's vector among those of all images, counted with padding; -1 for
        text.
    """

    tokens: Int[Array, "case token"]
    positions: Int[Array, "3 case token"]
    sources: Int[Array, "case token"]


class PromptEnds(NamedTuple):
    """Where prompts end.

    Attributes:
      lengths: [case], tokens of each prompt, at least 1.
      starts: [case], position of the reply's first token; less than the length after an image, which is wider than
        one token but takes no more positions than its longer side.
    """

    lengths: Int[Array, "case"]
    starts: Int[Array, "case"]


class QwenVl(nn.Module):
    """Images and tokens to scores of the next token.

    Attributes:
      sizes: of the decoder.
      vision: of the vision tower; None for text alone.
      dtype: compute dtype.
      remat: of the decoder, see there.
    """

    sizes: DecoderSizes
    vision: VisionSizes | None = None
    dtype: DTypeLike = jnp.float32
    remat: bool = False

    def setup(self) -> None:
        """Declare tower and decoder."""
        if self.vision is not None:
            self.tower = VisionTower(self.vision, self.dtype)
        self.decoder = Decoder(self.sizes, self.dtype, self.remat)

    def embed_prompts(self, images: QwenImages | None, prompts: QwenPrompts) -> Float[Array, "case token width"]:
        """Return the vectors of tokens, of images included."""
        embedded = self.decoder.embed(prompts.tokens)
        if images is None:
            return embedded
        vectors = self.tower(images).reshape(-1, self.sizes.width)
        chosen = jnp.take(vectors, jnp.maximum(prompts.sources, 0), axis=0).astype(embedded.dtype)
        return jnp.where(prompts.sources[..., None] >= 0, chosen, embedded)

    def score_texts(self, images: QwenImages | None, prompts: QwenPrompts) -> Float[Array, "case token word"]:
        """Return the scores of the token after each, float32."""
        hidden, _ = self.decoder(
            self.embed_prompts(images, prompts),
            positions=prompts.positions,
            visible=_causal(prompts.tokens.shape[1]),
        )
        return self.decoder.score(hidden)

    def prefill(
        self, images: QwenImages | None, prompts: QwenPrompts, ends: PromptEnds
    ) -> tuple[Float[Array, "case word"], tuple[Prefix, ...]]:
        """Return the scores of the reply's first token, and what the replies to a prompt share."""
        num_tokens = prompts.tokens.shape[1]
        # Padding stands on the right: no token of the prompt sees it.
        hidden, layers = self.decoder(
            self.embed_prompts(images, prompts), positions=prompts.positions, visible=_causal(num_tokens)
        )
        last = jnp.take_along_axis(hidden, (ends.lengths - 1)[:, None, None], axis=1)
        is_real = jnp.arange(num_tokens)[None] < ends.lengths[:, None]
        return self.decoder.score(last)[:, 0], tuple(Prefix(layer, is_real) for layer in layers)

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        place: Int[Array, ""],
        ends: PromptEnds,
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply; see `decoder.Decoder.extend`."""
        return self.decoder.extend(tokens, place, ends.starts, caches, prefix=prefix)

    def __call__(
        self,
        images: QwenImages | None,
        prompts: QwenPrompts,
        ends: PromptEnds,
        completions: Int[Array, "rollout reply_token"],
        *,
        hidden: Bool[Array, "rollout reply_token"] | None = None,
    ) -> Float[Array, "rollout reply_token word"]:
        """Return the scores of every token of replies, in one pass over each prompt and one over the replies.

        Args:
          images: of all prompts, in their order; None for none.
          prompts: of each case.
          ends: of the prompts.
          completions: [rollout, reply_token]; rollouts of a case follow each other, equally many each.
          hidden: see `decoder.Decoder.score_replies`.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        first, prefix = self.prefill(images, prompts, ends)
        return self.decoder.score_replies(completions, first, ends.starts, prefix=prefix, hidden=hidden)


def _causal(number: int) -> Bool[Array, "1 token slot"]:
    return jnp.tril(jnp.ones((1, number, number), bool))
