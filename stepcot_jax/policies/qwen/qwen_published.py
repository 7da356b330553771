"""Sizes of the published Qwen2.5-VL models, for dry runs and estimates without a checkpoint."""

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.qwen_vision import VisionSizes
from stepcot_jax.policies.qwen.qwen_config import QwenConfig

M_ROPE = (16, 24, 24)

_DECODERS = {
    "Qwen/Qwen2.5-VL-3B-Instruct": (2048, 36, 16, 2, 11_008, 151_936, True),
    "Qwen/Qwen2.5-VL-7B-Instruct": (3584, 28, 28, 4, 18_944, 152_064, False),
}
"""Width, layers, heads, heads of keys and values, hidden units, words, and whether the embedding is the head too."""

PUBLISHED = tuple(_DECODERS)
"""Hugging Face ids."""


def published_config(name: str) -> QwenConfig:
    """Return the config of a published model."""
    if name not in _DECODERS:
        raise BadInput(f"{name!r} is neither a folder nor one of {', '.join(PUBLISHED)}")
    width, num_layers, num_heads, num_kv_heads, mlp_width, num_words, is_tied = _DECODERS[name]
    sizes = DecoderSizes(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_width=128,
        mlp_width=mlp_width,
        num_words=num_words,
        is_tied=is_tied,
        sections=M_ROPE,
    )
    vision = VisionSizes(
        width=1280, num_layers=32, num_heads=16, mlp_width=3420, out_width=width, full_layers=(7, 15, 23, 31)
    )
    return QwenConfig(sizes=sizes, stops=(151_645, 151_643), vision=vision, image_token=151_655)
