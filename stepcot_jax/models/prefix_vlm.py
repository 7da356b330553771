"""A small vision-language model: cells of an image's feature map, then a question, then the reply, in one decoder.

Slots are cells, prompt (padded on the right to one length), completion. Positions are those of Qwen2.5-VL (Bai et al.,
2025): cells share one time and differ in height and width; text continues after the larger side, with all three equal.
"""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.decoder import Decoder, DecoderSizes, EmbeddedImages, KeyValues, Prefix


def sinusoids(positions: Float[Array, "position"], width: int) -> Float[Array, "position feature"]:
    """Return sines and cosines of positions, 0 to 1, with wavelengths from 2 to 1/12 (after Vaswani et al., 2017).

    Neighbouring positions have similar vectors. Tables of positions start from them, so that learning at one position
    helps its neighbours.

    Args:
      positions: [position], as shares of the picture's side.
      width: of the result, even.
    """
    frequencies = jnp.pi * jnp.geomspace(1.0, 24.0, width // 2)
    angles = positions[:, None] * frequencies[None]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


class PrefixVlm(nn.Module):
    """Images and tokens to scores of the next token.

    Attributes:
      encoder: images, or patches of a frozen encoder -> features [case, grid * grid * channel], cells row by row.
      grid: cells on a side of the feature map.
      sizes: of the decoder; its `sections` have three axes.
      dtype: compute dtype.
    """

    is_large = False

    encoder: nn.Module
    grid: int
    sizes: DecoderSizes
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Declare encoder, cell map and decoder."""
        self.image_encoder = self.encoder.clone(name="image_encoder")
        self.cell_map = nn.Dense(self.sizes.width, dtype=self.dtype)
        shape = (self.grid, self.sizes.width)
        self.rows = self.param("rows", functools.partial(_position_table, is_row=True), shape)
        self.columns = self.param("columns", functools.partial(_position_table, is_row=False), shape)
        self.decoder = Decoder(self.sizes, self.dtype)

    @property
    def num_cells(self) -> int:
        """Tokens of an image."""
        return self.grid**2

    def embed_images(self, images: Float[Array, "case *picture"]) -> EmbeddedImages:
        """Return a vector for each cell, with its row and column."""
        features = self.image_encoder(images)
        cells = self.cell_map(features.reshape(features.shape[0], self.num_cells, -1))
        positions = self.rows[:, None] + self.columns[None]
        return EmbeddedImages(cells + positions.reshape(1, self.num_cells, -1).astype(cells.dtype))

    def prefill(
        self,
        images: Float[Array, "case *picture"] | EmbeddedImages,
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
    ) -> tuple[Float[Array, "case word"], tuple[Prefix, ...]]:
        """Read image and prompt.

        Args:
          images: [case, height, width, 3], normalised; or other inputs of `encoder`, or those of `embed_images`.
          prompts: [case, token], padded on the right.
          lengths: [case], tokens of each prompt, at least 1.

        Returns:
          Scores [case, word] of the reply's first token, and the prefix that the replies of a prompt share.
        """
        number, num_prompt = prompts.shape
        cells = images if isinstance(images, EmbeddedImages) else self.embed_images(images)
        embedded = jnp.concatenate([cells.vectors, self.decoder.embed(prompts)], axis=1)
        text = jnp.broadcast_to((self.grid + jnp.arange(num_prompt))[None, None], (3, number, num_prompt))
        hidden, layers = self.decoder(
            embedded,
            positions=jnp.concatenate([self._cell_positions(number), text], axis=2),
            visible=self._visible(lengths, num_prompt),
        )
        last = jnp.take_along_axis(hidden, (self.num_cells + lengths - 1)[:, None, None], axis=1)
        is_real = jnp.arange(embedded.shape[1])[None] < self.num_cells + lengths[:, None]
        return self.decoder.score(last)[:, 0], tuple(Prefix(layer, is_real) for layer in layers)

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        index: Int[Array, ""],
        lengths: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply, of a prompt with `lengths` tokens; see `decoder.Decoder.extend`."""
        return self.decoder.extend(tokens, index, self.grid + lengths, caches, prefix=prefix)

    def __call__(
        self,
        images: Float[Array, "case *picture"],
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
        completions: Int[Array, "rollout reply_token"],
        *,
        hidden: Bool[Array, "rollout reply_token"] | None = None,
    ) -> Float[Array, "rollout reply_token word"]:
        """Return the scores of every token of replies, in one pass over each prompt and one over the replies.

        Args:
          images: [case, height, width, 3], normalised; or other inputs of `encoder`.
          prompts: [case, token], padded on the right.
          lengths: [case], tokens of each prompt.
          completions: [rollout, reply_token]; rollouts of a case are adjacent, the same number for each case.
          hidden: see `decoder.Decoder.score_replies`.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        first, prefix = self.prefill(images, prompts, lengths)
        starts = self.grid + lengths
        return self.decoder.score_replies(completions, first, starts, prefix=prefix, hidden=hidden)

    def score_packed(
        self,
        images: Float[Array, "case *picture"],
        tokens: Int[Array, "case token"],
        segments: Int[Array, "case token"],
        offsets: Int[Array, "case token"],
    ) -> Float[Array, "case token word"]:
        """Return the scores of the token after each, for several texts about one image in one row.

        A text sees the image and itself only, so that packing does not change its scores.

        Args:
          images: [case, height, width, 3], normalised; or other inputs of `encoder`.
          tokens: [case, token], texts in a row.
          segments: [case, token], number of the text that a token belongs to, from 1; 0 for padding.
          offsets: [case, token], index of a token within its text.

        Returns:
          float32 [case, token, word]; those at t are for the token at t + 1.
        """
        number, length = tokens.shape
        everything = jnp.ones((1, self.num_cells, self.num_cells), bool)
        cells = self.embed_images(images).vectors
        _, layers = self.decoder(cells, positions=self._cell_positions(number), visible=everything)
        is_cell = jnp.ones((number, self.num_cells), bool)
        positions = self.grid + offsets
        is_same_text = segments[:, :, None] == segments[:, None]
        hidden, _ = self.decoder(
            self.decoder.embed(tokens),
            positions=jnp.broadcast_to(positions[None], (3, *positions.shape)),
            visible=is_same_text & jnp.tril(jnp.ones((1, length, length), bool)),
            prefix=tuple(Prefix(layer, is_cell) for layer in layers),
        )
        return self.decoder.score(hidden)

    def _visible(self, lengths: Int[Array, "case"], num_prompt: int) -> Bool[Array, "case slot other"]:
        """Return which slots a token sees: itself and those before it, no padding; cells see all cells."""
        slots = jnp.arange(self.num_cells + num_prompt)
        is_real = slots[None] < self.num_cells + lengths[:, None]
        is_before = (slots[None] <= slots[:, None]) | (slots < self.num_cells)[None]
        return is_before[None] & (is_real[:, None] | jnp.eye(len(slots), dtype=bool)[None])

    def _cell_positions(self, number: int | Any) -> Int[Array, "3 case cell"]:
        cells = jnp.arange(self.num_cells)
        of_cells = jnp.stack([jnp.zeros_like(cells), cells // self.grid, cells % self.grid])
        return jnp.broadcast_to(of_cells[:, None], (3, number, self.num_cells))


def _position_table(key: Array, shape: tuple[int, int], *, is_row: bool) -> Float[Array, "position width"]:
    """Return the first vectors of rows or columns: sinusoids in one half of the width, zeros in the other."""
    del key
    number, width = shape
    half = width // 4 * 2
    vectors = _POSITION_SCALE * sinusoids((jnp.arange(number, dtype=jnp.float32) + 0.5) / number, half)
    return jnp.pad(vectors, ((0, 0), (0, width - half) if is_row else (width - half, 0)))


_POSITION_SCALE = 0.5  # relative to a cell's features
