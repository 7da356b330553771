"""BiomedCLIP (Zhang et al., 2023): timm's ViT-B/16 and PubMedBERT in open_clip's checkpoint layout.

open_clip_config.json names the two networks and says nothing of their sizes, so the sizes are read from the tensors.
"""

from collections.abc import Mapping

import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.encoders.assignment import Place
from stepcot_jax.encoders.bert import Bert, bert_table
from stepcot_jax.encoders.clip_vision import VisionTransformer, timm_vision_table
from stepcot_jax.encoders.transformer import TransformerSizes
from stepcot_jax.host.errors import BadInput

HEAD_WIDTH = 64
"""Width of an attention head in every ViT of timm and every BERT that open_clip's published configs name."""

TEXT_PREFIX = "text.transformer."
MAX_LAYERS = 256


def make_biomedclip(
    tensors: Mapping[str, np.ndarray], *, image_size: int, max_tokens: int, dtype: DTypeLike, source: str
) -> tuple[VisionTransformer, Bert]:
    """The two towers, with the sizes of a checkpoint.

    Args:
      tensors: the checkpoint.
      image_size: height and width of the images, px.
      max_tokens: open_clip's `context_length`.
      dtype: compute dtype.
      source: the file or folder that errors name.

    Raises:
      BadInput: a tensor that tells a size is missing or has another number of axes.
    """

    def shape(name: str, num_axes: int) -> tuple[int, ...]:
        if name not in tensors or tensors[name].ndim != num_axes:
            found = f"one of shape {list(tensors[name].shape)}" if name in tensors else "none"
            raise BadInput(f"{source}: {name}: found {found}, accepted is a tensor of {num_axes} axes")
        return tuple(tensors[name].shape)

    def blocks(prefix: str, up: str, *, epsilon: float, norm_first: bool) -> TransformerSizes:
        num_layers = next((n for n in range(MAX_LAYERS) if f"{prefix}{n}.{up}" not in tensors), MAX_LAYERS)
        mlp_width, width = shape(f"{prefix}0.{up}", 2)
        if width % HEAD_WIDTH:
            raise BadInput(f"{source}: {prefix}0.{up}: found width {width}, accepted are multiples of {HEAD_WIDTH}")
        return TransformerSizes(width, num_layers, width // HEAD_WIDTH, mlp_width, "gelu", epsilon, norm_first)

    vision = VisionTransformer(
        sizes=blocks("visual.trunk.blocks.", "mlp.fc1.weight", epsilon=1e-6, norm_first=True),
        image_size=image_size,
        patch_size=shape("visual.trunk.patch_embed.proj.weight", 4)[-1],
        projected_width=shape("visual.head.proj.weight", 2)[0],
        timm=True,
        dtype=dtype,
    )
    max_positions = shape(f"{TEXT_PREFIX}embeddings.position_embeddings.weight", 2)[0]
    if max_tokens > max_positions:
        raise BadInput(f"{source}: found context_length {max_tokens}, accepted are at most {max_positions} tokens")
    text = Bert(
        sizes=blocks(f"{TEXT_PREFIX}encoder.layer.", "intermediate.dense.weight", epsilon=1e-12, norm_first=False),
        vocabulary_size=shape(f"{TEXT_PREFIX}embeddings.word_embeddings.weight", 2)[0],
        max_positions=max_positions,
        num_types=shape(f"{TEXT_PREFIX}embeddings.token_type_embeddings.weight", 2)[0],
        pooler=f"{TEXT_PREFIX}pooler.dense.weight" in tensors,
        projection=tuple(shape(name, 2)[0] for name in _projection_names(tensors)),
        dtype=dtype,
    )
    return vision, text


def biomedclip_table(vision: VisionTransformer, text: Bert) -> dict[str, Place]:
    """Names of open_clip's checkpoint -> places below "image/", "text/" and at "logit_scale"."""
    return {
        "logit_scale": Place("logit_scale"),
        **timm_vision_table("image/", vision.sizes.num_layers),
        **bert_table("text/", text.sizes.num_layers, prefix=TEXT_PREFIX, pooler=text.pooler, legacy_norms=False),
        **{
            f"text.proj{_PROJECTION[len(text.projection)][layer]}.weight": Place(
                f"text/projection_{layer}/kernel", "dense"
            )
            for layer in range(len(text.projection))
        },
    }


_PROJECTION = {1: ("",), 2: (".0", ".2")}
"""Where open_clip puts a projection of one layer and one of two, whose GELU is number 1."""


def _projection_names(tensors: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    return tuple(name for name in ("text.proj.weight", "text.proj.0.weight", "text.proj.2.weight") if name in tensors)
