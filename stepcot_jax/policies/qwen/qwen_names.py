"""The tensor names of Qwen2.5 and Qwen2.5-VL checkpoints, and the parameter that each belongs to."""

from collections.abc import Collection

from stepcot_jax.encoders.assignment import Place, place_dense
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.qwen_vision import VisionSizes

NEW_TEXT, OLD_TEXT = "model.language_model.", "model."
NEW_VISION, OLD_VISION = "model.visual.", "visual."
"""Prefixes of transformers' classes since 4.52, and of the published files."""


def qwen_table(names: Collection[str], sizes: DecoderSizes, vision: VisionSizes | None) -> dict[str, Place]:
    """Map tensor names to places in `models.qwen_vl.QwenVl`."""
    is_new = any(name.startswith((NEW_TEXT, NEW_VISION)) for name in names)
    table = text_table(sizes, prefix=NEW_TEXT if is_new else OLD_TEXT)
    return table if vision is None else table | vision_table(vision, prefix=NEW_VISION if is_new else OLD_VISION)


def text_table(sizes: DecoderSizes, *, prefix: str) -> dict[str, Place]:
    """Map the decoder's tensor names to places below "decoder/"."""
    table = {
        f"{prefix}embed_tokens.weight": Place("decoder/embedding/embedding"),
        f"{prefix}norm.weight": Place("decoder/norm/scale"),
    }
    if not sizes.is_tied:
        table["lm_head.weight"] = Place("decoder/head/kernel", "dense")
    for layer in range(sizes.num_layers):
        found, place = f"{prefix}layers.{layer}.", f"decoder/layer_{layer}/"
        for name, part in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
            table[f"{found}self_attn.{name}.weight"] = Place(f"{place}attention/{part}/kernel", "to_heads")
            table[f"{found}self_attn.{name}.bias"] = Place(f"{place}attention/{part}/bias", "head_bias")
        table[f"{found}self_attn.o_proj.weight"] = Place(f"{place}attention/out/kernel", "from_heads")
        table[f"{found}input_layernorm.weight"] = Place(f"{place}attention_norm/scale")
        table[f"{found}post_attention_layernorm.weight"] = Place(f"{place}mlp_norm/scale")
        for part in ("gate", "up", "down"):
            table[f"{found}mlp.{part}_proj.weight"] = Place(f"{place}{part}/kernel", "dense")
    return table


def vision_table(sizes: VisionSizes, *, prefix: str) -> dict[str, Place]:
    """Map the vision tower's tensor names to places below "tower/"."""
    table = {
        f"{prefix}patch_embed.proj.weight": Place("tower/patch_embedding/kernel", "frames"),
        f"{prefix}merger.ln_q.weight": Place("tower/merger_norm/scale"),
        **place_dense(f"{prefix}merger.mlp.0", "tower/merger_hidden"),
        **place_dense(f"{prefix}merger.mlp.2", "tower/merger_out"),
    }
    for layer in range(sizes.num_layers):
        found, place = f"{prefix}blocks.{layer}.", f"tower/layer_{layer}/"
        table[f"{found}norm1.weight"] = Place(f"{place}attention_norm/scale")
        table[f"{found}norm2.weight"] = Place(f"{place}mlp_norm/scale")
        table |= place_dense(f"{found}attn.qkv", f"{place}qkv")
        table |= place_dense(f"{found}attn.proj", f"{place}out")
        for part in ("gate", "up", "down"):
            table |= place_dense(f"{found}mlp.{part}_proj", f"{place}{part}")
    return table
