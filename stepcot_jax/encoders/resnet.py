"""Residual image encoders trained with the teacher (He et al., 2015).

GroupNorm replaces BatchNorm: a case's features do not depend on its batch.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

_SMALL_SIDE = 2
"""Maps of at most this many pixels a side are convolved on a CPU as one matrix product."""


class Convolution(nn.Module):
    """`flax.linen.Conv` without a bias, of an odd square kernel padded by its half; the parameter is Conv's.

    XLA's convolution over maps of 2 x 2 takes four times as long on a CPU as one product of the shifted maps, side by
    side, with the kernel; elsewhere, and over larger maps, where the product gains nothing, XLA's is used
    (`benchmarks/small_convolutions.py`).
    """

    width: int
    kernel_side: int
    stride: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 out"]:
        """Return the output [case, ceil(height / stride), ceil(width / stride), out]."""
        side = self.kernel_side
        shape = (side, side, hidden.shape[-1], self.width)
        kernel = self.param("kernel", nn.linear.default_kernel_init, shape)
        hidden, kernel = jnp.asarray(hidden, self.dtype), jnp.asarray(kernel, self.dtype)
        if -(-max(hidden.shape[1:3]) // self.stride) > _SMALL_SIDE:
            return _convolve(hidden, kernel, self.stride)
        return jax.lax.platform_dependent(
            hidden,
            kernel,
            cpu=lambda hidden, kernel: _multiply_shifted(hidden, kernel, self.stride),
            default=lambda hidden, kernel: _convolve(hidden, kernel, self.stride),
        )


def _convolve(hidden: Array, kernel: Array, stride: int) -> Array:
    pad = kernel.shape[0] // 2
    return jax.lax.conv_general_dilated(
        hidden, kernel, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _multiply_shifted(hidden: Array, kernel: Array, stride: int) -> Array:
    """Return the same sum as one product [place, kernel cell and channel] x [kernel cell and channel, out]."""
    _, height, width, channels = hidden.shape
    side, pad = kernel.shape[0], kernel.shape[0] // 2
    rows, columns = -(-height // stride), -(-width // stride)
    padded = jnp.pad(hidden, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    shifted = [
        padded[:, row : row + stride * (rows - 1) + 1 : stride, column : column + stride * (columns - 1) + 1 : stride]
        for row in range(side)
        for column in range(side)
    ]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(side * side * channels, -1)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, the basic block of ResNet-18."""

    width: int
    stride: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 out"]:
        """Return the output [case, height / stride, width / stride, out]."""
        residual = hidden
        hidden = Convolution(self.width, 3, self.stride, self.dtype, name="conv_0")(hidden)
        hidden = nn.relu(_norm(self.width, self.dtype, "norm_0")(hidden))
        hidden = Convolution(self.width, 3, dtype=self.dtype, name="conv_1")(hidden)
        hidden = _norm(self.width, self.dtype, "norm_1")(hidden)
        if residual.shape != hidden.shape:
            shortcut = Convolution(self.width, 1, self.stride, self.dtype, name="shortcut")(residual)
            residual = _norm(self.width, self.dtype, "shortcut_norm")(shortcut)
        return nn.relu(hidden + residual)


class ResNet(nn.Module):
    """Residual network: images to pooled features."""

    widths: Sequence[int]  # channels of each stage; a stage after the first halves the resolution
    blocks_per_stage: int
    stem_kernel: int  # size of the first convolution, which has stride 2, px
    grid: int = 1  # cells per side that the last map is averaged over; larger grids keep positions
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "case height width 3"]) -> Float[Array, "case feature"]:
        """Return features [case, grid * grid * widths[-1]]; sow each stage's "moments" for `evaluation.gate`."""
        stem = Convolution(self.widths[0], self.stem_kernel, 2, self.dtype, name="Conv_0")
        hidden = nn.relu(_norm(self.widths[0], self.dtype, "stem_norm")(stem(images.astype(self.dtype))))
        hidden = nn.max_pool(hidden, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks_per_stage):
                stride = 2 if stage and not block else 1
                hidden = ResidualBlock(width, stride, self.dtype, name=f"stage_{stage}_block_{block}")(hidden)
            if self.is_mutable_collection("moments"):
                maps = hidden.astype(jnp.float32)
                moments = jnp.concatenate([maps.mean(axis=(1, 2)), maps.std(axis=(1, 2))], axis=-1)
                self.sow("moments", f"stage_{stage}", moments)
        return average_cells(hidden, self.grid).astype(jnp.float32)


def average_cells(hidden: Float[Array, "case height width channel"], grid: int) -> Float[Array, "case feature"]:
    """Average over grid x grid cells: [case, grid * grid * channel]; cells overlap as in PyTorch's adaptive pooling."""
    _, height, width, _ = hidden.shape
    cells = [
        jnp.mean(hidden[:, top:bottom, left:right], axis=(1, 2))
        for top, bottom in _spans(height, grid)
        for left, right in _spans(width, grid)
    ]
    return jnp.concatenate(cells, axis=-1)


def _spans(length: int, grid: int) -> list[tuple[int, int]]:
    return [(cell * length // grid, -(-(cell + 1) * length // grid)) for cell in range(grid)]


def _norm(width: int, dtype: DTypeLike, name: str) -> nn.GroupNorm:
    return nn.GroupNorm(num_groups=min(32, width // 4), epsilon=1e-5, dtype=dtype, name=name)


def make_resnet(name: str) -> ResNet:
    """Return "resnet18" (11 M parameters, 512 features) or "resnet_small" (0.3 M, 4 x 128 features).

    Raises:
      ValueError: `name` is neither.
    """
    if name == "resnet18":
        return ResNet(widths=(64, 128, 256, 512), blocks_per_stage=2, stem_kernel=7)
    if name == "resnet_small":
        return ResNet(widths=(16, 32, 64, 128), blocks_per_stage=1, stem_kernel=5, grid=2)
    raise ValueError(f"image encoder {name!r} is not one of 'resnet18', 'resnet_small'")
