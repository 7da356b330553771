"""Residual image encoders trained with the teacher (He et al., 2015).

GroupNorm replaces BatchNorm: a case's features do not depend on its batch.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, the basic block of ResNet-18."""

    width: int
    stride: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 out"]:
        """Return the output [case, height / stride, width / stride, out]."""
        strides = (self.stride, self.stride)
        residual = hidden
        hidden = nn.Conv(self.width, (3, 3), strides, padding=1, use_bias=False, dtype=self.dtype, name="conv_0")(
            hidden
        )
        hidden = nn.relu(_norm(self.width, self.dtype, "norm_0")(hidden))
        hidden = nn.Conv(self.width, (3, 3), padding=1, use_bias=False, dtype=self.dtype, name="conv_1")(hidden)
        hidden = _norm(self.width, self.dtype, "norm_1")(hidden)
        if residual.shape != hidden.shape:
            shortcut = nn.Conv(
                self.width, (1, 1), strides, padding=0, use_bias=False, dtype=self.dtype, name="shortcut"
            )
            residual = _norm(self.width, self.dtype, "shortcut_norm")(shortcut(residual))
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
        size = (self.stem_kernel, self.stem_kernel)
        stem = nn.Conv(self.widths[0], size, (2, 2), padding=self.stem_kernel // 2, use_bias=False, dtype=self.dtype)
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
