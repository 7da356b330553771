"""The network of a policy from its settings, and its pictures from bytes."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.settings.run_settings import Settings


def make_policy(settings: Settings, *, num_words: int) -> PrefixVlm:
    """Return the vision-prefix decoder that the settings describe.

    Args:
      settings: section `policy`, and the compute dtype.
      num_words: size of the vocabulary.
    """
    policy, dtype = settings.policy, jnp.dtype(settings.training.compute_dtype)
    encoder = ResNet(widths=policy.encoder_widths, blocks_per_stage=1, stem_kernel=5, grid=policy.grid, dtype=dtype)
    sizes = DecoderSizes(
        width=policy.width,
        num_layers=policy.num_layers,
        num_heads=policy.num_heads,
        num_kv_heads=policy.num_kv_heads,
        head_width=policy.head_width,
        mlp_width=policy.mlp_width,
        num_words=num_words,
        sections=rotary_sections(policy.head_width),
    )
    return PrefixVlm(encoder=encoder, grid=policy.grid, sizes=sizes, dtype=dtype)


def rotary_sections(head_width: int) -> tuple[int, int, int]:
    """Return how many frequencies turn by time, height and width: about a quarter by time, the rest in equal halves.

    >>> rotary_sections(32)
    (4, 6, 6)
    """
    half = head_width // 2
    side = (half - half // 4) // 2
    return half - 2 * side, side, side


def normalise(pixels: UInt8[Array, "case height width 3"], settings: Settings) -> Float[Array, "case height width 3"]:
    """Return pictures as the network's input: float32 (pixels / 255 - mean) / std, as `data.images.preprocessing` does.

    Made for the device: pictures travel there as bytes.

    Args:
      pixels: uint8 [case, height, width, 3].
      settings: `image_encoder.mean` and `std`, of red, green and blue.
    """
    std = np.asarray(settings.image_encoder.std)
    scale = jnp.asarray(1.0 / (255.0 * std), jnp.float32)
    shift = jnp.asarray(np.asarray(settings.image_encoder.mean) / std, jnp.float32)
    return pixels.astype(jnp.float32) * scale[None, None, None] - shift[None, None, None]
