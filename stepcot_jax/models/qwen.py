"""Qwen2.5 and Qwen2.5-VL: text, with images in it, to scores of the next token.

A prompt is a row of tokens, padded on the right. Each token of an image takes its vector from the vision tower, the
others from the embedding. Positions are time, height and width (Bai et al., 2025: M-RoPE); without a vision tower all
three are equal, and the first is used.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.decoder import (
    Decoder,
    DecoderSizes,
    EmbeddedImages,
    KeyValues,
    Prefix,
    RMSNorm,
    attend,
    rotate,
)
from stepcot_jax.models.stacked_layers import stacked_variables

# The vision tower of Qwen2.5-VL (Bai et al., 2025): patches of images of any size to vectors for the decoder.
#
# An image is cut into windows, a window into patches, in the order of the checkpoints: the patches that the merger
# joins are adjacent. Windows at the lower and right edge are filled up with padding, and so are images with fewer
# windows than the largest of a batch. No patch sees padding, so that an image's vectors do not depend on it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionSizes:
    """Sizes of a vision tower.

    Attributes:
      width: of a patch's vector.
      num_layers: number of blocks.
      num_heads: attention heads, a divisor of `width`; a head's width is a multiple of 4.
      mlp_width: hidden size of SwiGLU.
      out_width: of the merger's output, the decoder's width.
      full_layers: blocks whose patches see the whole image; in the others they see their window.
      patch_size: height and width of a patch, px.
      merge_size: the merger joins merge_size x merge_size patches.
      window_size: height and width of a window, px.
      epsilon: of every RMSNorm.
      theta: base of the rotary frequencies.
    """

    width: int
    num_layers: int
    num_heads: int
    mlp_width: int
    out_width: int
    full_layers: tuple[int, ...]
    patch_size: int = 14
    merge_size: int = 2
    window_size: int = 112
    epsilon: float = 1e-6
    theta: float = 1e4

    def __post_init__(self) -> None:
        if self.width % (4 * self.num_heads):
            raise ValueError(f"width: {self.width} is not a multiple of 4 num_heads ({4 * self.num_heads})")
        if self.window_size % (self.patch_size * self.merge_size):
            raise ValueError(f"window_size: {self.window_size} px is not a multiple of {self.merge_size} patches")

    @property
    def num_features(self) -> int:
        """Numbers of a patch: 3 colours, 2 equal frames, its pixels."""
        return 3 * 2 * self.patch_size**2

    @property
    def window_units(self) -> int:
        """Merged vectors along a side of a window."""
        return self.window_size // (self.patch_size * self.merge_size)


class QwenImages(NamedTuple):
    """Images as patches; see the module's docstring for their order.

    Attributes:
      patches: [image, window, patch, feature], normalised.
      coordinates: [2, image, window, patch], row and column of each patch within its image.
      is_real: [image, window, patch], False on padding.
    """

    patches: Float[Array, "image window patch feature"]
    coordinates: Int[Array, "2 image window patch"]
    is_real: Bool[Array, "image window patch"]


def unit_indices(num_rows: int, num_columns: int, vision: VisionSizes) -> Int[np.ndarray, " unit"]:
    """Return the index of each unit of an image, row by row, among the units of its padded windows.

    >>> sizes = VisionSizes(width=8, num_layers=1, num_heads=2, mlp_width=8, out_width=8, full_layers=(0,))
    >>> unit_indices(5, 5, sizes)[:6]  # the fifth column is in another window
    array([ 0,  1,  2,  3, 16,  4])
    """
    side = vision.window_units
    row, column = np.divmod(np.arange(num_rows * num_columns), num_columns)
    window = row // side * -(-num_columns // side) + column // side
    indices: np.ndarray = window * side**2 + row % side * side + column % side
    return indices


def patch_angles(
    coordinates: Int[Array, "2 image window patch"], sizes: VisionSizes
) -> tuple[Float[Array, "image window patch half"], Float[Array, "image window patch half"]]:
    """Return cosine and sine of each frequency's angle: half of the frequencies turn by the row, half by the column."""
    number = sizes.width // sizes.num_heads // 4
    frequencies = sizes.theta ** (-jnp.arange(number, dtype=jnp.float32) / number)
    angles = coordinates.astype(jnp.float32)[..., None] * frequencies[None, None, None, None]
    joined = jnp.concatenate([angles[0], angles[1]], axis=-1)
    return jnp.cos(joined), jnp.sin(joined)


class VisionBlock(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm and added to its input; all layers have biases.

    Attributes:
      sizes: see `VisionSizes`.
      dtype: compute dtype; scores and softmax stay float32.
    """

    sizes: VisionSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "row patch width"],
        angles: tuple[Float[Array, "row patch half"], Float[Array, "row patch half"]],
        is_real: Bool[Array, "row patch"],
    ) -> Float[Array, "row patch width"]:
        """Return the output; the patches of a row see each other."""
        sizes = self.sizes
        normed = RMSNorm(sizes.epsilon, name="attention_norm")(hidden)
        fused = nn.Dense(3 * sizes.width, dtype=self.dtype, name="qkv")(normed)
        queries, keys, values = jnp.split(fused, 3, axis=-1)
        heads = (*hidden.shape[:2], sizes.num_heads, -1)
        cosine, sine = angles
        queries, keys = (rotate(rows.reshape(heads), cosine=cosine, sine=sine) for rows in (queries, keys))
        visible = jnp.broadcast_to(is_real[:, None], (*hidden.shape[:2], hidden.shape[1]))
        mixed = attend(queries, kv=KeyValues(keys.reshape(hidden.shape), values), visible=visible)
        hidden = hidden + nn.Dense(sizes.width, dtype=self.dtype, name="out")(mixed.reshape(hidden.shape))
        normed = RMSNorm(sizes.epsilon, name="mlp_norm")(hidden)
        gate, up = (nn.Dense(sizes.mlp_width, dtype=self.dtype, name=name)(normed) for name in ("gate", "up"))
        return hidden + nn.Dense(sizes.width, dtype=self.dtype, name="down")(nn.silu(gate) * up)


class VisionTower(nn.Module):
    """Patches to the vectors of an image's tokens.

    Attributes:
      sizes: see `VisionSizes`.
      dtype: compute dtype.
    """

    sizes: VisionSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: QwenImages) -> Float[Array, "image unit width"]:
        """Return a vector [image, unit, out_width] for each merge_size^2 patches, in the order of the patches."""
        sizes = self.sizes
        num_images, num_windows, num_patches = images.is_real.shape
        embedding = nn.Dense(sizes.width, use_bias=False, dtype=self.dtype, name="patch_embedding")
        hidden = embedding(images.patches.astype(self.dtype))
        fixed = (*patch_angles(images.coordinates, sizes), images.is_real)

        def read(block: Callable[..., Array], hidden: Array, *, is_full: bool) -> Array:
            rows = (num_images, -1) if is_full else (num_images * num_windows, num_patches)
            laid, cosine, sine, is_real = (array.reshape(*rows, *array.shape[3:]) for array in (hidden, *fixed))
            return block(laid, (cosine, sine), is_real).reshape(hidden.shape)

        are_full = [layer in sizes.full_layers for layer in range(sizes.num_layers)]
        if stacked := stacked_variables(self):

            def step(hidden: Array, one: Any) -> tuple[Array, None]:
                variables, is_full = one
                block = functools.partial(VisionBlock(sizes, self.dtype, parent=None).apply, variables)
                whole, windows = (functools.partial(read, block, is_full=each) for each in (True, False))
                return jax.lax.cond(is_full, whole, windows, hidden), None

            hidden, _ = jax.lax.scan(step, hidden, (stacked, jnp.array(are_full)))
        else:
            for layer, is_full in enumerate(are_full):
                hidden = read(VisionBlock(sizes, self.dtype, name=f"layer_{layer}"), hidden, is_full=is_full)
        normed = RMSNorm(sizes.epsilon, name="merger_norm")(hidden)
        joined = normed.reshape(num_images, -1, sizes.merge_size**2 * sizes.width)
        joined = nn.Dense(joined.shape[-1], dtype=self.dtype, name="merger_hidden")(joined)
        joined = jax.nn.gelu(joined, approximate=False)
        return nn.Dense(sizes.out_width, dtype=self.dtype, name="merger_out")(joined)


class QwenPrompts(NamedTuple):
    """Prompts of a batch.

    Attributes:
      tokens: [case, token], padded on the right.
      positions: [3, case, token], by time, height and width.
      sources: [case, token], index of an image token's vector among those of all images, padding included; -1 for
        text.
    """

    tokens: Int[Array, "case token"]
    positions: Int[Array, "3 case token"]
    sources: Int[Array, "case token"]


class PromptEnds(NamedTuple):
    """Lengths of prompts, and the positions at which their replies start.

    Attributes:
      lengths: [case], tokens of each prompt, at least 1.
      starts: [case], position of the reply's first token; less than the length after an image, whose tokens take only
        as many positions as its longer side.
    """

    lengths: Int[Array, "case"]
    starts: Int[Array, "case"]


class QwenVl(nn.Module):
    """Images and tokens to scores of the next token.

    Attributes:
      sizes: of the decoder.
      vision: of the vision tower; None for text alone.
      dtype: compute dtype.
      remat: see `decoder.Decoder`.
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

    def embed_prompts(
        self, images: QwenImages | EmbeddedImages | None, prompts: QwenPrompts
    ) -> Float[Array, "case token width"]:
        """Return the vectors of tokens, of images included."""
        embedded = self.decoder.embed(prompts.tokens)
        if images is None:
            return embedded
        vectors = images.vectors if isinstance(images, EmbeddedImages) else self.tower(images)
        vectors = vectors.reshape(-1, self.sizes.width)
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
        self, images: QwenImages | EmbeddedImages | None, prompts: QwenPrompts, ends: PromptEnds
    ) -> tuple[Float[Array, "case word"], tuple[Prefix, ...]]:
        """Return the scores of the reply's first token, and the prefix that the replies to a prompt share."""
        num_tokens = prompts.tokens.shape[1]
        # Padding is on the right: no token of the prompt sees it.
        hidden, layers = self.decoder(
            self.embed_prompts(images, prompts), positions=prompts.positions, visible=_causal(num_tokens)
        )
        last = jnp.take_along_axis(hidden, (ends.lengths - 1)[:, None, None], axis=1)
        is_real = jnp.arange(num_tokens)[None] < ends.lengths[:, None]
        return self.decoder.score(last)[:, 0], tuple(Prefix(layer, is_real) for layer in layers)

    def extend(
        self,
        tokens: Int[Array, "rollout"],
        index: Int[Array, ""],
        ends: PromptEnds,
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply; see `decoder.Decoder.extend`."""
        return self.decoder.extend(tokens, index, ends.starts, caches, prefix=prefix)

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
          completions: [rollout, reply_token]; rollouts of a case are adjacent, the same number for each case.
          hidden: see `decoder.Decoder.score_replies`.

        Returns:
          float32 [rollout, reply_token, word]; those at t are for `completions[:, t]`.
        """
        first, prefix = self.prefill(images, prompts, ends)
        return self.decoder.score_replies(completions, first, ends.starts, prefix=prefix, hidden=hidden)


def _causal(number: int) -> Bool[Array, "1 token slot"]:
    return jnp.tril(jnp.ones((1, number, number), bool))


# Qwen2.5-VL as a policy: one square image per prompt, all of one size, so that a batch is pixels, tokens and lengths.
#
# Windows of patches, indices of an image's tokens and M-RoPE positions follow from the size and the position of the
# image, and are computed inside the compiled program. Methods and arguments are those of `prefix_vlm.PrefixVlm`.


def cut_squares(pictures: Float[Array, "image height width 3"], vision: VisionSizes) -> QwenImages:
    """Return square pictures as patches in windows.

    Args:
      pictures: normalised; the side is a multiple of patch_size * merge_size.
      vision: of the tower.
    """
    number, side, _, _ = pictures.shape
    merge, patch, joined = vision.merge_size, vision.patch_size, vision.merge_size**2
    grid = side // (patch * merge)
    windows, units = (-(-grid // vision.window_units)) ** 2, vision.window_units**2
    slots = (unit_indices(grid, grid, vision)[:, None] * joined + np.arange(joined)).reshape(-1)
    # [unit row, merged row, pixel row, unit column, merged column, pixel column] -> patches of a unit in a row
    cut = pictures.reshape(number, grid, merge, patch, grid, merge, patch, 3).transpose(0, 1, 4, 2, 5, 7, 3, 6)
    frames = jnp.repeat(cut.reshape(number, grid**2 * joined, 3, 1, patch**2), 2, axis=3)
    patches = jnp.zeros((number, windows * units * joined, vision.num_features), pictures.dtype)
    patches = patches.at[:, slots].set(frames.reshape(number, -1, vision.num_features))
    row, column = np.divmod(np.arange(grid**2), grid)
    down, right = np.divmod(np.arange(joined), merge)
    coordinates, is_real = np.zeros((2, windows * units * joined), np.int32), np.zeros(windows * units * joined, bool)
    coordinates[0, slots] = (row[:, None] * merge + down).reshape(-1)
    coordinates[1, slots] = (column[:, None] * merge + right).reshape(-1)
    is_real[slots] = True
    shape = (number, windows, units * joined)
    return QwenImages(
        patches.reshape(*shape, -1),
        jnp.broadcast_to(jnp.asarray(coordinates).reshape(2, 1, *shape[1:]), (2, *shape)),
        jnp.broadcast_to(jnp.asarray(is_real).reshape(1, *shape[1:]), shape),
    )


class SquareQwen(QwenVl):
    """A Qwen2.5-VL whose prompts have one square image each; parameters are those of `QwenVl`.

    Attributes:
      grid: units, and so tokens, on a side of the image.
      image_token: occurs grid x grid times in a row in every prompt.
    """

    grid: int = 0
    image_token: int = -1

    def lay_out(self, tokens: Int[Array, "case token"]) -> QwenPrompts:
        """Return tokens with their M-RoPE positions and the indices of the image's vectors."""
        # From the first image token only: a sampled reply may contain the token too.
        first = jnp.argmax(tokens == self.image_token, axis=1)[:, None].astype(jnp.int32)
        number = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - first
        is_image = (number >= 0) & (number < self.grid**2)
        inside = jnp.clip(number, 0, self.grid**2 - 1)
        after = jnp.where(number < 0, number, number - self.grid**2 + self.grid)
        rows, columns = inside // self.grid, inside % self.grid
        offsets = [jnp.where(is_image, offset, after) for offset in (jnp.zeros_like(inside), rows, columns)]
        vision = self._vision
        indices = jnp.asarray(unit_indices(self.grid, self.grid, vision), jnp.int32)
        num_units = (-(-self.grid // vision.window_units) * vision.window_units) ** 2
        case = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
        sources = jnp.where(is_image, case * num_units + indices[inside], -1)
        return QwenPrompts(tokens, first[None] + jnp.stack(offsets), sources)

    def embed_images(self, images: Float[Array, "case height width 3"]) -> EmbeddedImages:
        """Return the vectors of images; see `PrefixVlm.embed_images`."""
        return EmbeddedImages(self.tower(cut_squares(images, self._vision)))

    def prefill(  # type: ignore[override]  # tokens instead of their layout, as for `PrefixVlm`
        self,
        images: Float[Array, "case height width 3"] | EmbeddedImages,
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
    ) -> tuple[Float[Array, "case word"], tuple[Prefix, ...]]:
        """Read image and prompt; see `PrefixVlm.prefill`."""
        given = images if isinstance(images, EmbeddedImages) else cut_squares(images, self._vision)
        return super().prefill(given, self.lay_out(prompts), self._ends(lengths))

    def extend(  # type: ignore[override]
        self,
        tokens: Int[Array, "rollout"],
        index: Int[Array, ""],
        lengths: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply, of a prompt with `lengths` tokens; see `decoder.Decoder.extend`."""
        return self.decoder.extend(tokens, index, self._ends(lengths).starts, caches, prefix=prefix)

    def __call__(  # type: ignore[override]
        self,
        images: Float[Array, "case height width 3"],
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
        completions: Int[Array, "rollout reply_token"],
        *,
        hidden: Bool[Array, "rollout reply_token"] | None = None,
    ) -> Float[Array, "rollout reply_token word"]:
        """Return the scores of every token of replies; see `PrefixVlm.__call__`."""
        first, prefix = self.prefill(images, prompts, lengths)
        starts = self._ends(lengths).starts
        return self.decoder.score_replies(completions, first, starts, prefix=prefix, hidden=hidden)

    def score_packed(
        self,
        images: Float[Array, "case height width 3"],
        tokens: Int[Array, "case token"],
        segments: Int[Array, "case token"],
        offsets: Int[Array, "case token"],
    ) -> Float[Array, "case token word"]:
        """Return the scores of the token after each; a row is one text that contains its image (no packing)."""
        del segments, offsets
        return self.score_texts(cut_squares(images, self._vision), self.lay_out(tokens))

    def _ends(self, lengths: Int[Array, "case"]) -> PromptEnds:
        return PromptEnds(lengths, lengths - self.grid**2 + self.grid)

    @property
    def _vision(self) -> VisionSizes:
        if self.vision is None:
            raise ValueError("vision: None is no vision tower; SquareQwen needs one")
        return self.vision
