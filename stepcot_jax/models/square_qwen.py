"""Qwen2.5-VL as a policy: one square image a prompt, all of one size, so that a batch is pixels, tokens and lengths.

Windows of patches, places of an image's tokens and M-RoPE positions follow from the size and from where the image
stands, and are computed inside the compiled program. Methods and arguments are those of `prefix_vlm.PrefixVlm`.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.cached_attention import KeyValues, Prefix
from stepcot_jax.models.qwen_vision import QwenImages, VisionSizes, unit_places
from stepcot_jax.models.qwen_vl import PromptEnds, QwenPrompts, QwenVl


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
    slots = (unit_places(grid, grid, vision)[:, None] * joined + np.arange(joined)).reshape(-1)
    # [unit row, merged row, pixel row, unit column, merged column, pixel column] -> patches of a unit in a row
    cut = pictures.reshape(number, grid, merge, patch, grid, merge, patch, 3).transpose(0, 1, 4, 2, 5, 7, 3, 6)
    frames = jnp.repeat(cut.reshape(number, grid**2 * joined, 3, 1, patch**2), 2, axis=3)
    patches = jnp.zeros((number, windows * units * joined, vision.num_features), pictures.dtype)
    patches = patches.at[:, slots].set(frames.reshape(number, -1, vision.num_features))
    row, column = np.divmod(np.arange(grid**2), grid)
    down, right = np.divmod(np.arange(joined), merge)
    places, is_real = np.zeros((2, windows * units * joined), np.int32), np.zeros(windows * units * joined, bool)
    places[0, slots] = (row[:, None] * merge + down).reshape(-1)
    places[1, slots] = (column[:, None] * merge + right).reshape(-1)
    is_real[slots] = True
    shape = (number, windows, units * joined)
    return QwenImages(
        patches.reshape(*shape, -1),
        jnp.broadcast_to(jnp.asarray(places).reshape(2, 1, *shape[1:]), (2, *shape)),
        jnp.broadcast_to(jnp.asarray(is_real).reshape(1, *shape[1:]), shape),
    )


class SquareQwen(QwenVl):
    """A Qwen2.5-VL whose prompts have one square image each; parameters are those of `QwenVl`.

    Attributes:
      grid: units, and so tokens, on a side of the image.
      image_token: stands grid x grid times in a row in every prompt.
    """

    grid: int = 0
    image_token: int = -1

    def lay_out(self, tokens: Int[Array, "case token"]) -> QwenPrompts:
        """Return tokens with their M-RoPE positions, and with the vectors that stand for the image's."""
        # Not by each token: a reply may have drawn the image's token too.
        first = jnp.argmax(tokens == self.image_token, axis=1)[:, None].astype(jnp.int32)
        number = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None] - first
        is_image = (number >= 0) & (number < self.grid**2)
        inside = jnp.clip(number, 0, self.grid**2 - 1)
        after = jnp.where(number < 0, number, number - self.grid**2 + self.grid)
        rows, columns = inside // self.grid, inside % self.grid
        offsets = [jnp.where(is_image, each, after) for each in (jnp.zeros_like(inside), rows, columns)]
        vision = self._vision
        places = jnp.asarray(unit_places(self.grid, self.grid, vision), jnp.int32)
        num_units = (-(-self.grid // vision.window_units) * vision.window_units) ** 2
        case = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
        sources = jnp.where(is_image, case * num_units + places[inside], -1)
        return QwenPrompts(tokens, first[None] + jnp.stack(offsets), sources)

    def prefill(  # type: ignore[override]  # tokens in place of their layout, as for `PrefixVlm`
        self,
        images: Float[Array, "case height width 3"],
        prompts: Int[Array, "case token"],
        lengths: Int[Array, "case"],
    ) -> tuple[Float[Array, "case word"], tuple[Prefix, ...]]:
        """Read image and prompt; see `PrefixVlm.prefill`."""
        return super().prefill(cut_squares(images, self._vision), self.lay_out(prompts), self._ends(lengths))

    def extend(  # type: ignore[override]
        self,
        tokens: Int[Array, "rollout"],
        place: Int[Array, ""],
        lengths: Int[Array, "rollout"],
        caches: tuple[KeyValues, ...],
        *,
        prefix: tuple[Prefix, ...],
    ) -> tuple[Float[Array, "rollout word"], tuple[KeyValues, ...]]:
        """Read one more token of each reply, of a prompt with `lengths` tokens; see `decoder.Decoder.extend`."""
        return self.decoder.extend(tokens, place, self._ends(lengths).starts, caches, prefix=prefix)

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
        places: Int[Array, "case token"],
    ) -> Float[Array, "case token word"]:
        """Return the scores of the token after each; a row is one text, whose image stands in it (no packing)."""
        del segments, places
        return self.score_texts(cut_squares(images, self._vision), self.lay_out(tokens))

    def _ends(self, lengths: Int[Array, "case"]) -> PromptEnds:
        return PromptEnds(lengths, lengths - self.grid**2 + self.grid)

    @property
    def _vision(self) -> VisionSizes:
        if self.vision is None:
            raise ValueError("vision: None is no vision tower; SquareQwen needs one")
        return self.vision
