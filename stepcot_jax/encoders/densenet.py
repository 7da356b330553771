"""DenseNet-121 with torchvision's weights (Huang et al., 2016), frozen."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stepcot_jax.encoders.assignment import Place
from stepcot_jax.encoders.torchvision_resnet import FrozenBatchNorm, convolution, place_batch_norm

DENSENET_CLASSIFIER = ("classifier.weight", "classifier.bias")
"""The layer that makes ImageNet's classes of the features; not part of the encoder."""


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution, whose output is appended to their input.

    Attributes:
      growth: channels that the layer adds.
      bottleneck: channels between its convolutions, in multiples of `growth`.
      dtype: compute dtype.
    """

    growth: int
    bottleneck: int = 4
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height width out"]:
        """The input with `growth` more channels."""
        added = nn.relu(FrozenBatchNorm(self.dtype, name="norm1")(hidden))
        added = convolution(self.bottleneck * self.growth, 1, dtype=self.dtype, name="conv1")(added)
        added = nn.relu(FrozenBatchNorm(self.dtype, name="norm2")(added))
        added = convolution(self.growth, 3, dtype=self.dtype, name="conv2")(added)
        return jnp.concatenate([hidden, added], axis=-1)


class FrozenDenseNet(nn.Module):
    """Images -> globally averaged features, after the last BatchNorm and ReLU as in torchvision's forward.

    Attributes:
      layers_per_block: dense layers in each block; a transition between blocks halves channels and resolution.
      growth: channels that a layer adds.
      stem_width: channels of the first convolution.
      dtype: compute dtype.
    """

    layers_per_block: tuple[int, ...] = (6, 12, 24, 16)
    growth: int = 32
    stem_width: int = 64
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "case height width 3"]) -> tuple[Float[Array, "case feature"], None]:
        """Features float32 [case, feature] of normalised `images` [case, height, width, 3]; no patches."""
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
        return jnp.mean(hidden.astype(jnp.float32), axis=(1, 2)), None


def _average_pairs(hidden: Float[Array, "case height width channel"]) -> Float[Array, "case height2 width2 channel"]:
    """Averages over 2 x 2 cells; an odd last row or column is left out, as PyTorch's AvgPool2d does."""
    num_cases, height, width, channels = hidden.shape
    cells = hidden[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.mean(cells.reshape(num_cases, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def densenet_table(path: str, network: FrozenDenseNet, *, old_names: bool) -> dict[str, Place]:
    """Names of torchvision's DenseNet -> places below `path`.

    Args:
      path: where in the parameter tree.
      network: the network.
      old_names: whether layers have "norm.1" instead of "norm1", as in the files that torchvision still publishes
        and renames on loading.
    """
    dot = "." if old_names else ""
    table = {
        "features.conv0.weight": Place(f"{path}conv0/kernel", "conv"),
        **place_batch_norm("features.norm0", f"{path}norm0"),
        **place_batch_norm("features.norm5", f"{path}norm5"),
    }
    for block, num_layers in enumerate(network.layers_per_block, start=1):
        for layer in range(1, num_layers + 1):
            found, place = f"features.denseblock{block}.denselayer{layer}.", f"{path}block{block}_layer{layer}/"
            for number in (1, 2):
                table[f"{found}conv{dot}{number}.weight"] = Place(f"{place}conv{number}/kernel", "conv")
                table |= place_batch_norm(f"{found}norm{dot}{number}", f"{place}norm{number}")
        if block < len(network.layers_per_block):
            found, place = f"features.transition{block}.", f"{path}transition{block}_"
            table[f"{found}conv.weight"] = Place(f"{place}conv/kernel", "conv")
            table |= place_batch_norm(f"{found}norm", f"{place}norm")
    return table
