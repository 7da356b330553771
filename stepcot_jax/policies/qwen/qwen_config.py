"""Read the config.json of a Qwen2.5 or Qwen2.5-VL checkpoint, in the form of older and of newer files."""

import dataclasses
import functools
import pathlib
import sys
from typing import Any

from stepcot_jax.encoders.checkpoint_files import ConfigFile, read_config
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import make_printable
from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.qwen_vision import VisionSizes

_MOST_WORDS = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenConfig:
    """What the config files of a checkpoint say.

    Attributes:
      stops: tokens that end a reply.
      vision: of the vision tower, None for a text model.
      image_token: stands for an image's vectors in a prompt; -1 for a text model.
    """

    sizes: DecoderSizes
    stops: tuple[int, ...]
    vision: VisionSizes | None = None
    image_token: int = -1


def read_qwen_config(folder: pathlib.Path) -> QwenConfig:
    """Return the sizes and tokens of a checkpoint."""
    config = read_config(folder / "config.json")
    if config is None:
        raise BadInput(f"{folder}: no config.json (expected a folder with Qwen2.5 or Qwen2.5-VL)")
    kind = config.one_of("model_type", ("qwen2", "qwen2_5_vl"), None)
    # Newer files have the decoder's settings in a group of their own.
    text = config.group("text_config") if config.found.get("text_config") else config
    tied = bool(config.found.get("tie_word_embeddings", False) or text.found.get("tie_word_embeddings", False))
    sizes = _decoder_sizes(text, is_tied=tied, has_images=kind == "qwen2_5_vl")
    generation = read_config(folder / "generation_config.json")
    stops = _stop_tokens([each for each in (generation, text, config) if each], sizes.num_words)
    if kind == "qwen2":
        return QwenConfig(sizes=sizes, stops=stops)
    image_token = config.whole("image_token_id", most=sizes.num_words - 1)
    return QwenConfig(
        sizes=sizes,
        stops=stops,
        vision=_vision_sizes(config.group("vision_config"), sizes.width),
        image_token=image_token,
    )


@functools.cache
def note_penalty(folder: pathlib.Path) -> None:
    """Print a note, once, if a checkpoint asks for a repetition penalty other than 1, which is not applied."""
    generation = read_config(folder / "generation_config.json")
    penalty = generation.found.get("repetition_penalty") if generation else None
    if penalty not in (None, 1):
        print(
            f"note: {folder / 'generation_config.json'}: repetition_penalty {make_printable(str(penalty))[:20]} is not "
            "applied to replies",
            file=sys.stderr,
        )


def _decoder_sizes(config: ConfigFile, *, is_tied: bool, has_images: bool) -> DecoderSizes:
    config.one_of("hidden_act", ("silu",), "silu")
    config.one_of("use_sliding_window", (False, None), False)
    width, num_heads = config.whole("hidden_size", most=2**16), config.whole("num_attention_heads", most=2**10)
    num_kv_heads = config.whole("num_key_value_heads", most=num_heads)
    if num_heads % num_kv_heads:
        raise BadInput(f"{config.where}.num_key_value_heads: {num_kv_heads} is not a divisor of {num_heads} heads")
    if width % (2 * num_heads) and "head_dim" not in config.found:
        raise BadInput(
            f"{config.where}.num_attention_heads: hidden_size ({width}) is not a multiple of {2 * num_heads}"
        )
    head_width = config.whole("head_dim", width // num_heads, most=2**12)
    theta, sections = _rotary(config, has_images=has_images)
    if head_width % 2 or (sections and sum(sections) != head_width // 2):
        raise BadInput(f"{config.where}: mrope_section {list(sections)} does not add up to half of {head_width}")
    return DecoderSizes(
        width=width,
        num_layers=config.whole("num_hidden_layers", most=2**10),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_width=head_width,
        mlp_width=config.whole("intermediate_size", most=2**20),
        num_words=config.whole("vocab_size", most=_MOST_WORDS),
        is_tied=is_tied,
        theta=theta,
        epsilon=config.number("rms_norm_eps", least=1e-12, most=0.1),
        sections=sections,
    )


def _rotary(config: ConfigFile, *, has_images: bool) -> tuple[float, tuple[int, ...]]:
    """Return theta and sections, of `rope_parameters` or, in older files, of `rope_theta` and `rope_scaling`."""
    is_new = bool(config.found.get("rope_parameters"))
    group = config.group("rope_parameters" if is_new else "rope_scaling")
    kind = group.found.get("rope_type", group.found.get("type", "default"))
    # Published files say "mrope"; transformers writes "default", with the sections beside it.
    if kind not in (("default", "mrope") if has_images else ("default",)):
        raise BadInput(f"{group.where}: rotary positions of type {kind!r} are not supported (expected 'default')")
    theta = (group if is_new else config).number("rope_theta", least=1.0, most=1e12)
    found = group.found.get("mrope_section")
    if not has_images:
        return theta, ()
    if not (isinstance(found, list) and len(found) == 3 and all(type(each) is int and each > 0 for each in found)):
        raise BadInput(f"{group.where}.mrope_section: {found!r} is not three whole numbers above 0")
    return theta, tuple(found)


def _vision_sizes(config: ConfigFile, out_width: int) -> VisionSizes:
    config.one_of("hidden_act", ("silu",), "silu")
    for key, only in (("in_channels", 3), ("in_chans", 3), ("temporal_patch_size", 2)):
        config.one_of(key, (only,), only)
    config.one_of("out_hidden_size", (out_width,), None)
    width, num_heads = config.whole("hidden_size", most=2**16), config.whole("num_heads", most=2**10)
    if width % (4 * num_heads):
        raise BadInput(f"{config.where}.num_heads: hidden_size ({width}) is not a multiple of {4 * num_heads}")
    num_layers = config.whole("depth", most=2**10)
    patch_size = config.whole("patch_size", 14, most=2**8)
    merge_size = config.whole("spatial_merge_size", 2, most=2**4)
    window_size = config.whole("window_size", 112, most=2**12)
    if window_size % (patch_size * merge_size):
        raise BadInput(f"{config.where}.window_size: {window_size} px is not a multiple of {patch_size * merge_size}")
    return VisionSizes(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_width=config.whole("intermediate_size", most=2**20),
        out_width=out_width,
        full_layers=_full_layers(config, num_layers),
        patch_size=patch_size,
        merge_size=merge_size,
        window_size=window_size,
    )


def _full_layers(config: ConfigFile, num_layers: int) -> tuple[int, ...]:
    found = config.found.get("fullatt_block_indexes")
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < num_layers for each in found):
        raise BadInput(f"{config.where}.fullatt_block_indexes: {found!r} is not a list of blocks below {num_layers}")
    return tuple(found)


def _stop_tokens(files: list[ConfigFile], num_words: int) -> tuple[int, ...]:
    """Return the tokens of the first file that names any."""
    for config in files:
        found: Any = config.found.get("eos_token_id")
        if found is None:
            continue
        stops = found if isinstance(found, list) else [found]
        if not stops or not all(type(each) is int and 0 <= each < num_words for each in stops):
            raise BadInput(f"{config.where}.eos_token_id: {found!r} is not a token, or tokens, below {num_words}")
        return tuple(stops)
    raise BadInput(f"{files[-1].where}.eos_token_id is missing here and in generation_config.json (expected a token)")
