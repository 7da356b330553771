"""A small vision-language model: cells of an image's feature map, then a question, then the reply, in one decoder.

Slots are cells, prompt (padded on the right to one length), completion. Positions are those of Qwen2.5-VL (Bai et al.,
2025): cells share one time and differ in height and width; text goes on after the larger side, with all three equal.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.decoder import Decoder, empty_cache
from stepcot_jax.models.decoder_blocks import DecoderSizes, KeyValues


class PrefixVlm(nn.Module):
    """Images and tokens to scores of the next token.

    Attributes:
      encoder: images -> features [case, grid * grid * channel], cells row by row; such as `encoders.resnet.ResNet`.
      grid: cells on a side of the feature map.
      sizes: of the decoder; its `sections` have three axes.
      dtype: compute dtype.
    """

    encoder: nn.Module
    grid: int
    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Declare encoder, cell map and decoder."""
        self.image_encoder = self.encoder.clone(name="image_encoder")
        self.cell_map = nn.Dense(self.sizes.width, dtype=self.dtype)
        places = nn.initializers.normal(0.02)
        self.rows = self.param("rows", places, (self.grid, self.sizes.width))
        self.columns = self.param("columns", places, (self.grid, self.sizes.width))
        self.decoder = Decoder(self.sizes, self.dtype)

    @property
    def num_cells(self) -> int:
        """Tokens of an image."""
        return self.grid**2

    def embed_images(self, images: Float[Array, "case height width 3"]) -> Float[Array, "case cell feature"]:
        """Return a vector for each cell, with its row and column."""
        features = self.image_encoder(images)
        cells = self.cell_map(features.reshape(len(features), self.num_cells, -1))
        places = self.rows[:, None] + self.columns[None]
        return cells + places.reshape(1, self.num_cells, -1).astype(cells.dtype)

    def prefill(
        self,
        images: Float[Array, "case height width 3"],
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
        *,
        num_completed: int,
    ) -> tuple[Float[Array, "case word"], tuple[KeyValues, ...]]:
        """Read image and prompt.

        Args:
          images: [case, height, width, 3], normalised.
          prompts: [case, token], padded on the right.
          lengths: [case], tokens of each prompt, at least 1.
          num_completed: slots to keep for the reply.

        Returns:
          Scores [case, word] of the reply's first token, and the caches with room for the reply.
        """
        num_slots = self.num_cells + prompts.shape[1]
        caches = empty_cache(
            self.sizes, num_rollouts=len(prompts), num_slots=num_slots + num_completed, dtype=self.dtype
        )
        embedded = jnp.concatenate([self.embed_images(images), self.decoder.embed(prompts)], axis=1)
        visible = self._visible(lengths, prompts.shape[1], num_completed)[:, :num_slots]
        positions = self._positions(lengths, prompts.shape[1], 0)
        hidden, caches = self.decoder(embedded, positions=positions, visible=visible, caches=caches)
        last = jnp.take_along_axis(hidden, (self.num_cells + lengths - 1)[:, None, None], axis=1)
        return self.decoder.score(last)[:, 0], caches

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        place: Int[Array, ""],
        lengths: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        num_prompt: int,
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply.

        Args:
          tokens: [rollout], the reply's token at `place`.
          place: number of the token within the reply, from 0.
          lengths: [rollout], tokens of each prompt.
          caches: of `prefill`, one row a rollout.
          num_prompt: padded length of the prompts.

        Returns:
          Scores [rollout, word] of the reply's next token, and the caches.
        """
        start = self.num_cells + num_prompt
        slots = jnp.arange(caches[0].keys.shape[1])
        is_prompt = slots[None] < self.num_cells + lengths[:, None]
        is_reply = (slots >= start) & (slots <= start + place)
        positions = jnp.broadcast_to((self.grid + lengths + place)[None, :, None], (3, len(lengths), 1))
        hidden, caches = self.decoder(
            self.decoder.embed(tokens[:, None]),
            positions=positions,
            visible=(is_prompt | is_reply[None])[:, None],
            caches=caches,
            start=start + place,
        )
        return self.decoder.score(hidden)[:, 0], caches

    def __call__(
        self,
        images: Float[Array, "case height width 3"],
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
        completions: Int[Array, "rollout reply_token"],
    ) -> Float[Array, "rollout reply_token word"]:
        """Return the scores of every token of replies, in one pass.

        Args:
          images: [case, height, width, 3], normalised.
          prompts: [case, token], padded on the right.
          lengths: [case], tokens of each prompt.
          completions: [rollout, reply_token]; rollouts of a case follow each other, equally many each.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        num_prompt, num_completed = prompts.shape[1], completions.shape[1]
        each = completions.shape[0] // prompts.shape[0]
        prefix = jnp.concatenate([self.embed_images(images), self.decoder.embed(prompts)], axis=1)
        prefix, lengths = jnp.repeat(prefix, each, axis=0), jnp.repeat(lengths, each, axis=0)
        embedded = jnp.concatenate([prefix, self.decoder.embed(completions)], axis=1)
        hidden, _ = self.decoder(
            embedded,
            positions=self._positions(lengths, num_prompt, num_completed),
            visible=self._visible(lengths, num_prompt, num_completed),
        )
        start = self.num_cells + num_prompt
        first = jnp.take_along_axis(hidden, (self.num_cells + lengths - 1)[:, None, None], axis=1)
        return self.decoder.score(jnp.concatenate([first, hidden[:, start:-1]], axis=1))

    def _visible(
        self, lengths: Int[Array, "rollout"], num_prompt: int, num_completed: int
    ) -> Bool[Array, "rollout slot other"]:
        """Every token sees the tokens before it and itself, none the padding; cells see all cells."""
        slots = jnp.arange(self.num_cells + num_prompt + num_completed)
        is_real = (slots[None] < self.num_cells + lengths[:, None]) | (slots >= self.num_cells + num_prompt)[None]
        is_before = (slots[None] <= slots[:, None]) | (slots < self.num_cells)[None]
        return is_before[None] & (is_real[:, None] | jnp.eye(len(slots), dtype=bool)[None])

    def _positions(
        self, lengths: Int[Array, "rollout"], num_prompt: int, num_completed: int
    ) -> Int[Array, "3 rollout slot"]:
        cells = jnp.arange(self.num_cells)
        of_cells = jnp.stack([jnp.zeros_like(cells), cells // self.grid, cells % self.grid])
        of_cells = jnp.broadcast_to(of_cells[:, None], (3, len(lengths), self.num_cells))
        prompt = jnp.broadcast_to(self.grid + jnp.arange(num_prompt)[None], (len(lengths), num_prompt))
        reply = self.grid + lengths[:, None] + jnp.arange(num_completed)[None]
        text = jnp.concatenate([prompt, reply], axis=1)
        return jnp.concatenate([of_cells, jnp.broadcast_to(text[None], (3, *text.shape))], axis=2)
