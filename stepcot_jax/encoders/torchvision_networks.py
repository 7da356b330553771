"""ResNet-18, ResNet-50 and DenseNet-121 with torchvision's weights, frozen: BatchNorm uses its stored statistics.

References: He et al., 2015; Huang et al., 2016. The ResNets of `resnet.py`, trained with the teacher, have GroupNorm.
"""

import re

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.encoders.weights import Slot

BATCH_NORM_EPSILON = 1e-5
_TENSOR_NAMES = {"kernel": "weight", "scale": "weight", "mean": "running_mean", "variance": "running_var"}
RESNET_CLASSIFIER = ("fc.weight", "fc.bias")
DENSENET_CLASSIFIER = ("classifier.weight", "classifier.bias")


class FrozenBatchNorm(nn.Module):
    """BatchNorm at inference: a scale and a shift per channel, computed in float32 from stored statistics."""

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
    """Return a convolution without bias, with torchvision's padding."""
    padding = [(size // 2, size // 2)] * 2
    return nn.Conv(width, (size, size), (stride, stride), padding, use_bias=False, dtype=dtype, name=name)


class FrozenBlock(nn.Module):
    """A basic block (3 x 3, 3 x 3) or a bottleneck (1 x 1, 3 x 3, 1 x 1 to four times the width), and a shortcut."""

    width: int  # channels of the 3 x 3 convolutions
    stride: int  # of the first 3 x 3 convolution
    bottleneck: bool
    downsample: bool  # whether the shortcut is a 1 x 1 convolution
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 out"]:
        """Return the output [case, height / stride, width / stride, out]."""
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
    """ResNet: images to globally averaged features and the vectors of the last feature map."""

    blocks_per_stage: tuple[int, ...]
    bottleneck: bool
    stem_width: int = 64  # channels of the first stage; each further stage has twice as many
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, images: Float[Array, "case height width 3"]
    ) -> tuple[Float[Array, "case feature"], Float[Array, "case patch feature"]]:
        """Return features and patch vectors of normalised `images`, see `_average`."""
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
        return _average(hidden)


def make_frozen_resnet(name: str, dtype: DTypeLike) -> FrozenResNet:
    """Return ResNet-18 ("resnet18", 512 features) or ResNet-50 ("resnet50", 2048 features)."""
    blocks, bottleneck = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}[name]
    return FrozenResNet(blocks_per_stage=blocks, bottleneck=bottleneck, dtype=dtype)


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution whose output is concatenated to the input."""

    growth: int  # number of channels the layer adds
    bottleneck: int = 4  # channels between its convolutions, in multiples of `growth`
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height width out"]:
        """Return the input with `growth` more channels."""
        added = nn.relu(FrozenBatchNorm(self.dtype, name="norm1")(hidden))
        added = convolution(self.bottleneck * self.growth, 1, dtype=self.dtype, name="conv1")(added)
        added = nn.relu(FrozenBatchNorm(self.dtype, name="norm2")(added))
        added = convolution(self.growth, 3, dtype=self.dtype, name="conv2")(added)
        return jnp.concatenate([hidden, added], axis=-1)


class FrozenDenseNet(nn.Module):
    """DenseNet: images to globally averaged features and the last feature map, after BatchNorm and ReLU."""

    layers_per_block: tuple[int, ...] = (6, 12, 24, 16)  # a transition between blocks halves channels and resolution
    growth: int = 32
    stem_width: int = 64
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, images: Float[Array, "case height width 3"]
    ) -> tuple[Float[Array, "case feature"], Float[Array, "case patch feature"]]:
        """Return features and patch vectors of normalised `images`, see `_average`."""
        stem = convolution(self.stem_width, 7, stride=2, dtype=self.dtype, name="conv0")
        hidden = nn.relu(FrozenBatchNorm(self.dtype, name="norm0")(stem(images.astype(self.dtype))))
        hidden = nn.max_pool(hidden, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        for block, num_layers in enumerate(self.layers_per_block, start=1):
            for layer in range(1, num_layers + 1):
                hidden = DenseLayer(self.growth, dtype=self.dtype, name=f"block{block}_layer{layer}")(hidden)
            if block < len(self.layers_per_block):
                hidden = nn.relu(FrozenBatchNorm(self.dtype, name=f"transition{block}_norm")(hidden))
                half = hidden.shape[-1] // 2
                hidden = convolution(half, 1, dtype=self.dtype, name=f"transition{block}_conv")(hidden)
                hidden = _average_pairs(hidden)
        hidden = nn.relu(FrozenBatchNorm(self.dtype, name="norm5")(hidden))
        return _average(hidden)


def _average(
    hidden: Float[Array, "case height width channel"],
) -> tuple[Float[Array, "case channel"], Float[Array, "case patch channel"]]:
    """Return the mean over the positions of the last map, and its positions in row-major order; both float32."""
    num_cases, _, _, channels = hidden.shape
    hidden = hidden.astype(jnp.float32)
    return jnp.mean(hidden, axis=(1, 2)), hidden.reshape(num_cases, -1, channels)


def _average_pairs(hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 channel"]:
    """Return averages over 2 x 2 cells without an odd last row or column, as PyTorch's AvgPool2d does."""
    num_cases, height, width, channels = hidden.shape
    cells = hidden[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.mean(cells.reshape(num_cases, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def torchvision_table(network: FrozenResNet | FrozenDenseNet, *, old_names: bool = False) -> dict[str, Slot]:
    """Map torchvision's tensor names, `old_names` as in its published DenseNet files, to slots below "image/"."""
    images = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    params = jax.eval_shape(lambda images: network.init(jax.random.key(0), images), images)["params"]
    rules = [(r"_(\d+)", r".\1")]  # layer1_0/downsample_0 -> layer1.0.downsample.0
    if isinstance(network, FrozenDenseNet):
        rules = [(r"^", "features."), (r"block(\d+)_layer", r"denseblock\1.denselayer"), (r"(transition\d+)_", r"\1.")]
        rules += [(r"/(norm|conv)", r"/\1.")] if old_names else []
    table = {}
    for path in flax.traverse_util.flatten_dict(params, sep="/"):
        module, _, name = path.rpartition("/")
        for pattern, replacement in rules:
            module = re.sub(pattern, replacement, module)
        tensor = f"{module.replace('/', '.')}.{_TENSOR_NAMES.get(name, name)}"
        table[tensor] = Slot(f"image/{path}", "conv" if name == "kernel" else "same")
    return table
