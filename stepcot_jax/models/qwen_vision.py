"""The vision tower of Qwen2.5-VL (Bai et al., 2025): patches of images of any size to vectors for the decoder.

An image is cut into windows, a window into patches, in the order of the checkpoints: the patches that the merger joins
follow each other. Windows at the lower and right edge are filled up with padding, and so are images with fewer windows
than the largest of a batch. No patch sees padding, so that an image's vectors do not depend on it.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.models.cached_attention import KeyValues, attend
from stepcot_jax.models.decoder_blocks import RMSNorm, rotate


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
      places: [2, image, window, patch], row and column of each patch within its image.
      is_real: [image, window, patch], False on padding.
    """

    patches: Float[Array, "image window patch feature"]
    places: Int[Array, "2 image window patch"]
    is_real: Bool[Array, "image window patch"]


def unit_places(num_rows: int, num_columns: int, vision: VisionSizes) -> Int[np.ndarray, " unit"]:
    """Return the place of each unit of an image, row by row, among the units of its windows with their padding.

    >>> sizes = VisionSizes(width=8, num_layers=1, num_heads=2, mlp_width=8, out_width=8, full_layers=(0,))
    >>> unit_places(5, 5, sizes)[:6]  # the fifth column stands in a window of its own
    array([ 0,  1,  2,  3, 16,  4])
    """
    side = vision.window_units
    row, column = np.divmod(np.arange(num_rows * num_columns), num_columns)
    window = row // side * -(-num_columns // side) + column // side
    found: np.ndarray = window * side**2 + row % side * side + column % side
    return found


def patch_angles(
    places: Int[Array, "2 image window patch"], sizes: VisionSizes
) -> tuple[Float[Array, "image window patch half"], Float[Array, "image window patch half"]]:
    """Return cosine and sine of each frequency's angle: half of the frequencies turn by the row, half by the column."""
    number = sizes.width // sizes.num_heads // 4
    frequencies = sizes.theta ** (-jnp.arange(number, dtype=jnp.float32) / number)
    angles = places.astype(jnp.float32)[..., None] * frequencies[None, None, None, None]
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
        queries, keys = (rotate(each.reshape(heads), cosine=cosine, sine=sine) for each in (queries, keys))
        visible = jnp.broadcast_to(is_real[:, None], (*hidden.shape[:2], hidden.shape[1]))
        mixed = attend(queries, own=KeyValues(keys.reshape(hidden.shape), values), visible=visible)
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
        fixed = (*patch_angles(images.places, sizes), images.is_real)
        for layer in range(sizes.num_layers):
            rows = (num_images, -1) if layer in sizes.full_layers else (num_images * num_windows, num_patches)
            laid, cosine, sine, is_real = (each.reshape(*rows, *each.shape[3:]) for each in (hidden, *fixed))
            block = VisionBlock(sizes, self.dtype, name=f"layer_{layer}")
            hidden = block(laid, (cosine, sine), is_real).reshape(hidden.shape)
        normed = RMSNorm(sizes.epsilon, name="merger_norm")(hidden)
        joined = normed.reshape(num_images, -1, sizes.merge_size**2 * sizes.width)
        joined = nn.Dense(joined.shape[-1], dtype=self.dtype, name="merger_hidden")(joined)
        joined = jax.nn.gelu(joined, approximate=False)
        return nn.Dense(sizes.out_width, dtype=self.dtype, name="merger_out")(joined)
