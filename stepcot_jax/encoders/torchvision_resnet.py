"""ResNet-18 and ResNet-50 with torchvision's weights (He et al., 2015), frozen: BatchNorm uses its stored statistics.

The residual networks of `resnet.py`, which are trained along, are others: they have GroupNorm.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.encoders.assignment import Place

BATCH_NORM_EPSILON = 1e-5


class FrozenBatchNorm(nn.Module):
    """BatchNorm in inference form: a scale and a shift of each channel, made in float32 from stored statistics.

    Attributes:
      dtype: compute dtype.
    """

    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height width channel"]:
        """Normalise `hidden` [case, height, width, channel]."""
        shape = hidden.shape[-1:]
        scale, variance = (self.param(name, nn.initializers.ones, shape) for name in ("scale", "variance"))
        bias, mean = (self.param(name, nn.initializers.zeros, shape) for name in ("bias", "mean"))
        scale = scale * jax.lax.rsqrt(variance + BATCH_NORM_EPSILON)
        shift = bias - mean * scale
        return hidden * scale.astype(self.dtype)[None, None, None] + shift.astype(self.dtype)[None, None, None]


def convolution(width: int, size: int, *, stride: int = 1, dtype: DTypeLike, name: str) -> nn.Conv:
    """A convolution without bias, padded as torchvision pads it."""
    padding = [(size // 2, size // 2)] * 2
    return nn.Conv(width, (size, size), (stride, stride), padding, use_bias=False, dtype=dtype, name=name)


class FrozenBlock(nn.Module):
    """A basic block (3 x 3, 3 x 3) or a bottleneck (1 x 1, 3 x 3, 1 x 1 to four times the width), and a shortcut.

    Attributes:
      width: channels of the 3 x 3 convolutions.
      stride: of the first 3 x 3 convolution of a basic block, of the only one of a bottleneck.
      bottleneck: which of the two.
      downsample: whether the shortcut is a 1 x 1 convolution.
      dtype: compute dtype.
    """

    width: int
    stride: int
    bottleneck: bool
    downsample: bool
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 out"]:
        """The block's output [case, height / stride, width / stride, out]."""
        if self.bottleneck:
            layers = [(self.width, 1, 1), (self.width, 3, self.stride), (4 * self.width, 1, 1)]
        else:
            layers = [(self.width, 3, self.stride), (self.width, 3, 1)]
        residual = hidden
        for number, (width, size, stride) in enumerate(layers, start=1):
            hidden = convolution(width, size, stride=stride, dtype=self.dtype, name=f"conv{number}")(hidden)
            hidden = FrozenBatchNorm(self.dtype, name=f"bn{number}")(hidden)
            if number < len(layers):
                hidden = nn.relu(hidden)
        if self.downsample:
            shortcut = convolution(layers[-1][0], 1, stride=self.stride, dtype=self.dtype, name="downsample_0")
            residual = FrozenBatchNorm(self.dtype, name="downsample_1")(shortcut(residual))
        return nn.relu(hidden + residual)


class FrozenResNet(nn.Module):
    """Images -> globally averaged features.

    Attributes:
      blocks_per_stage: residual blocks in each of the four stages.
      bottleneck: kind of the blocks.
      stem_width: channels of the first stage; each further stage has twice as many.
      dtype: compute dtype.
    """

    blocks_per_stage: tuple[int, ...]
    bottleneck: bool
    stem_width: int = 64
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "case height width 3"]) -> tuple[Float[Array, "case feature"], None]:
        """Features float32 [case, feature] of normalised `images` [case, height, width, 3]; no patches."""
        stem = convolution(self.stem_width, 7, stride=2, dtype=self.dtype, name="conv1")
        hidden = nn.relu(FrozenBatchNorm(self.dtype, name="bn1")(stem(images.astype(self.dtype))))
        hidden = nn.max_pool(hidden, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for stage, num_blocks in enumerate(self.blocks_per_stage):
            for block in range(num_blocks):
                hidden = FrozenBlock(
                    width=self.stem_width * 2**stage,
                    stride=2 if stage and not block else 1,
                    bottleneck=self.bottleneck,
                    downsample=not block and (stage > 0 or self.bottleneck),
                    dtype=self.dtype,
                    name=f"layer{stage + 1}_{block}",
                )(hidden)
        return jnp.mean(hidden.astype(jnp.float32), axis=(1, 2)), None


RESNET_CLASSIFIER = ("fc.weight", "fc.bias")
"""The layer that makes ImageNet's classes of the features; not part of the encoder."""


def make_frozen_resnet(name: str, dtype: DTypeLike) -> FrozenResNet:
    """The network of ResNet-18 ("resnet18", 512 features) or ResNet-50 ("resnet50", 2048).

    Raises:
      KeyError: `name` is neither of the two.
    """
    blocks, bottleneck = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}[name]
    return FrozenResNet(blocks_per_stage=blocks, bottleneck=bottleneck, dtype=dtype)


def place_batch_norm(name: str, path: str) -> dict[str, Place]:
    """Places of the parameters and statistics of a BatchNorm."""
    names = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
    return {f"{name}.{found}": Place(f"{path}/{place}") for found, place in names.items()}


def resnet_table(path: str, network: FrozenResNet) -> dict[str, Place]:
    """Names of torchvision's ResNet -> places below `path`."""
    table = {"conv1.weight": Place(f"{path}conv1/kernel", "conv"), **place_batch_norm("bn1", f"{path}bn1")}
    num_layers = 3 if network.bottleneck else 2
    for stage, num_blocks in enumerate(network.blocks_per_stage):
        for block in range(num_blocks):
            found, place = f"layer{stage + 1}.{block}.", f"{path}layer{stage + 1}_{block}/"
            for number in range(1, num_layers + 1):
                table[f"{found}conv{number}.weight"] = Place(f"{place}conv{number}/kernel", "conv")
                table |= place_batch_norm(f"{found}bn{number}", f"{place}bn{number}")
            if not block and (stage or network.bottleneck):
                table[f"{found}downsample.0.weight"] = Place(f"{place}downsample_0/kernel", "conv")
                table |= place_batch_norm(f"{found}downsample.1", f"{place}downsample_1")
    return table
