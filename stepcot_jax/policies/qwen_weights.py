"""Load Qwen2.5 and Qwen2.5-VL from a checkpoint's folder, checked to the last tensor."""

import dataclasses
import functools
import json
import pathlib
import shutil
import sys
from collections.abc import Collection, Mapping
from typing import Any, Literal

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.encoders.checkpoints import ConfigFile, read_config, resolve
from stepcot_jax.encoders.weights import (
    INDEX,
    LAYOUTS,
    Slot,
    assign,
    assign_later,
    dense_slots,
    read_tensors,
    require_names,
)
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_folder
from stepcot_jax.host.text import make_printable, show
from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.qwen import QwenImages, QwenPrompts, QwenVl, VisionSizes

# Read the config.json of a Qwen2.5 or Qwen2.5-VL checkpoint, in the form of older and of newer files.


_MOST_WORDS, _MOST_LAYERS, _MOST_STOPS = 2**24, 256, 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenConfig:
    """Sizes and tokens of a checkpoint; without `vision` it is a text model."""

    sizes: DecoderSizes
    stops: tuple[int, ...]
    vision: VisionSizes | None = None
    image_token: int = -1
    tie: str = dataclasses.field(default="", compare=False)  # file and keys that say whether the head is the embedding


def read_qwen_config(folder: pathlib.Path) -> QwenConfig:
    """Return the sizes and tokens of a checkpoint."""
    config = read_config(folder / "config.json")
    if config is None:
        raise BadInput(f"{folder}: no config.json (expected a folder with Qwen2.5 or Qwen2.5-VL)")
    kind = config.one_of("model_type", ("qwen2", "qwen2_5_vl"), None)
    # Newer files have the decoder's settings in a group of their own.
    text = config.group("text_config") if config.entries.get("text_config") else config
    # As transformers reads them: either ties, since older versions wrote the flag into the decoder's group.
    ties = [group.where for group in dict.fromkeys((config, text)) if group.entries.get("tie_word_embeddings")]
    tie = f"{(ties or [config.where])[-1]}.tie_word_embeddings"
    sizes = _decoder_sizes(text, is_tied=bool(ties), has_images=kind == "qwen2_5_vl")
    generation = read_config(folder / "generation_config.json")
    stops = _stop_tokens([each for each in (generation, text, config) if each], sizes.num_words)
    found = QwenConfig(sizes=sizes, stops=stops, tie=tie)
    if kind == "qwen2":
        return found
    image_token = config.integer("image_token_id", most=sizes.num_words - 1)
    vision = _vision_sizes(config.group("vision_config"), sizes.width)
    return dataclasses.replace(found, vision=vision, image_token=image_token)


@functools.cache
def note_penalty(folder: pathlib.Path) -> None:
    """Print a note, once, if a checkpoint asks for a repetition penalty other than 1, which is not applied."""
    generation = read_config(folder / "generation_config.json")
    penalty = generation.entries.get("repetition_penalty") if generation else None
    if penalty not in (None, 1):
        print(
            f"note: {folder / 'generation_config.json'}: repetition_penalty {make_printable(str(penalty))[:20]} is not "
            "applied to replies",
            file=sys.stderr,
        )


def _decoder_sizes(config: ConfigFile, *, is_tied: bool, has_images: bool) -> DecoderSizes:
    config.one_of("hidden_act", ("silu",), "silu")
    config.one_of("use_sliding_window", (False, None), False)
    width, num_heads = config.integer("hidden_size", most=2**16), config.integer("num_attention_heads", most=2**10)
    num_kv_heads = config.integer("num_key_value_heads", most=num_heads)
    if num_heads % num_kv_heads:
        raise BadInput(f"{config.where}.num_key_value_heads: {num_kv_heads} is not a divisor of {num_heads} heads")
    if width % (2 * num_heads) and "head_dim" not in config.entries:
        raise BadInput(
            f"{config.where}.num_attention_heads: hidden_size ({width}) is not a multiple of {2 * num_heads}"
        )
    head_width = config.integer("head_dim", width // num_heads, most=2**12)
    theta, sections = _rotary(config, has_images=has_images)
    if head_width % 2 or (sections and sum(sections) != head_width // 2):
        raise BadInput(f"{config.where}: mrope_section {list(sections)} does not add up to half of {head_width}")
    return DecoderSizes(
        width=width,
        num_layers=config.integer("num_hidden_layers", most=_MOST_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_width=head_width,
        mlp_width=config.integer("intermediate_size", most=2**20),
        num_words=config.integer("vocab_size", most=_MOST_WORDS),
        is_tied=is_tied,
        theta=theta,
        epsilon=config.number("rms_norm_eps", least=1e-12, most=0.1),
        sections=sections,
    )


def _rotary(config: ConfigFile, *, has_images: bool) -> tuple[float, tuple[int, ...]]:
    """Return theta and sections, of `rope_parameters` or, in older files, of `rope_theta` and `rope_scaling`."""
    is_new = bool(config.entries.get("rope_parameters"))
    group = config.group("rope_parameters" if is_new else "rope_scaling")
    kind = group.entries.get("rope_type", group.entries.get("type", "default"))
    # Published files say "mrope"; transformers writes "default", with the sections beside it.
    if kind not in (("default", "mrope") if has_images else ("default",)):
        raise BadInput(f"{group.where}: rotary positions of type {show(kind)} are not supported (expected 'default')")
    theta = (group if is_new else config).number("rope_theta", least=1.0, most=1e12)
    found = group.entries.get("mrope_section")
    if not has_images:
        return theta, ()
    if not (isinstance(found, list) and len(found) == 3 and all(type(each) is int and each > 0 for each in found)):
        raise BadInput(f"{group.where}.mrope_section: {show(found)} is not three whole numbers above 0")
    return theta, tuple(found)


def _vision_sizes(config: ConfigFile, out_width: int) -> VisionSizes:
    config.one_of("hidden_act", ("silu",), "silu")
    for key, only in (("in_channels", 3), ("in_chans", 3), ("temporal_patch_size", 2)):
        config.one_of(key, (only,), only)
    config.one_of("out_hidden_size", (out_width,), None)
    width, num_heads = config.integer("hidden_size", most=2**16), config.integer("num_heads", most=2**10)
    if width % (4 * num_heads):
        raise BadInput(f"{config.where}.num_heads: hidden_size ({width}) is not a multiple of {4 * num_heads}")
    num_layers = config.integer("depth", most=_MOST_LAYERS)
    patch_size = config.integer("patch_size", 14, most=2**8)
    merge_size = config.integer("spatial_merge_size", 2, most=2**4)
    window_size = config.integer("window_size", 112, most=2**12)
    if window_size % (patch_size * merge_size):
        raise BadInput(f"{config.where}.window_size: {window_size} px is not a multiple of {patch_size * merge_size}")
    return VisionSizes(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        mlp_width=config.integer("intermediate_size", most=2**20),
        out_width=out_width,
        full_layers=_full_layers(config, num_layers),
        patch_size=patch_size,
        merge_size=merge_size,
        window_size=window_size,
    )


def _full_layers(config: ConfigFile, num_layers: int) -> tuple[int, ...]:
    blocks: Any = config.entries.get("fullatt_block_indexes")
    few = isinstance(blocks, list) and len(blocks) <= num_layers
    if not few or not all(type(block) is int and 0 <= block < num_layers for block in blocks):
        accepted = f"a list of at most {num_layers} blocks below it"
        raise BadInput(f"{config.where}.fullatt_block_indexes: {show(blocks)} is not {accepted}")
    return tuple(blocks)


def _stop_tokens(files: list[ConfigFile], num_words: int) -> tuple[int, ...]:
    """Return the tokens of the first file that names any."""
    for config in files:
        found: Any = config.entries.get("eos_token_id")
        if found is None:
            continue
        stops = found if isinstance(found, list) else [found]
        few = 0 < len(stops) <= _MOST_STOPS
        if not few or not all(type(each) is int and 0 <= each < num_words for each in stops):
            accepted = f"a token, or 1 to {_MOST_STOPS} tokens, below {num_words}"
            raise BadInput(f"{config.where}.eos_token_id: {show(found)} is not {accepted}")
        return tuple(stops)
    raise BadInput(f"{files[-1].where}.eos_token_id is missing here and in generation_config.json (expected a token)")


# The tensor names of Qwen2.5 and Qwen2.5-VL checkpoints, and the parameter that each belongs to.


NEW_TEXT, OLD_TEXT = "model.language_model.", "model."
NEW_VISION, OLD_VISION = "model.visual.", "visual."
"""Prefixes of transformers' classes since 4.52, and of the published files."""

_EMBEDDINGS = tuple(f"{prefix}embed_tokens.weight" for prefix in (NEW_TEXT, OLD_TEXT))


def qwen_table(names: Collection[str], sizes: DecoderSizes, vision: VisionSizes | None) -> dict[str, Slot]:
    """Map tensor names to places in `models.qwen.QwenVl`."""
    is_new = any(name.startswith((NEW_TEXT, NEW_VISION)) for name in names)
    table = text_table(sizes, prefix=NEW_TEXT if is_new else OLD_TEXT)
    return table if vision is None else table | vision_table(vision, prefix=NEW_VISION if is_new else OLD_VISION)


def text_table(sizes: DecoderSizes, *, prefix: str) -> dict[str, Slot]:
    """Map the decoder's tensor names to places below "decoder/"."""
    table = {
        f"{prefix}embed_tokens.weight": Slot("decoder/embedding/embedding"),
        f"{prefix}norm.weight": Slot("decoder/norm/scale"),
    }
    if not sizes.is_tied:
        table["lm_head.weight"] = Slot("decoder/head/kernel", "dense")
    for layer in range(sizes.num_layers):
        found, place = f"{prefix}layers.{layer}.", f"decoder/layer_{layer}/"
        for name, part in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
            table[f"{found}self_attn.{name}.weight"] = Slot(f"{place}attention/{part}/kernel", "to_heads")
            table[f"{found}self_attn.{name}.bias"] = Slot(f"{place}attention/{part}/bias", "head_bias")
        table[f"{found}self_attn.o_proj.weight"] = Slot(f"{place}attention/out/kernel", "from_heads")
        table[f"{found}input_layernorm.weight"] = Slot(f"{place}attention_norm/scale")
        table[f"{found}post_attention_layernorm.weight"] = Slot(f"{place}mlp_norm/scale")
        for part in ("gate", "up", "down"):
            table[f"{found}mlp.{part}_proj.weight"] = Slot(f"{place}{part}/kernel", "dense")
    return table


def vision_table(sizes: VisionSizes, *, prefix: str) -> dict[str, Slot]:
    """Map the vision tower's tensor names to places below "tower/"."""
    table = {
        f"{prefix}patch_embed.proj.weight": Slot("tower/patch_embedding/kernel", "frames"),
        f"{prefix}merger.ln_q.weight": Slot("tower/merger_norm/scale"),
        **dense_slots(f"{prefix}merger.mlp.0", "tower/merger_hidden"),
        **dense_slots(f"{prefix}merger.mlp.2", "tower/merger_out"),
    }
    for layer in range(sizes.num_layers):
        found, place = f"{prefix}blocks.{layer}.", f"tower/layer_{layer}/"
        table[f"{found}norm1.weight"] = Slot(f"{place}attention_norm/scale")
        table[f"{found}norm2.weight"] = Slot(f"{place}mlp_norm/scale")
        table |= dense_slots(f"{found}attn.qkv", f"{place}qkv")
        table |= dense_slots(f"{found}attn.proj", f"{place}out")
        for part in ("gate", "up", "down"):
            table |= dense_slots(f"{found}mlp.{part}_proj", f"{place}{part}")
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen:
    """A loaded model; `params` are NumPy arrays, or `weights.Deferred`, which are read when they are asked for."""

    config: QwenConfig
    network: QwenVl
    params: Any
    folder: pathlib.Path


def load_qwen(
    source: str, *, dtype: DTypeLike = jnp.bfloat16, param_dtype: DTypeLike | Literal["stored"] | None = None
) -> Qwen:
    """Load a model; every tensor is used exactly once. "stored" tensors are read when their values are asked for."""
    folder = resolve(source)
    if not folder.is_dir():
        raise BadInput(f"{source}: is a file; expected a folder with config.json and *.safetensors")
    config = read_qwen_config(folder)
    note_penalty(folder)
    network = QwenVl(config.sizes, config.vision, jnp.dtype(dtype))
    kept = None if param_dtype == "stored" else param_dtype or dtype
    tensors = read_tensors(folder)
    _check_head(tensors, config, source=str(folder))
    params = assign_qwen(tensors, network, source=str(folder), dtype=kept)
    return Qwen(config=config, network=network, params=params, folder=folder)


def _check_head(tensors: Mapping[str, np.ndarray], config: QwenConfig, *, source: str) -> None:
    """Name the flag that does not fit: a head of its own in a tied model, or none in another."""
    embedding = next((tensors[name] for name in _EMBEDDINGS if name in tensors), None)
    head, ties = tensors.get("lm_head.weight"), config.sizes.is_tied
    if embedding is None or (head is None) == ties or (ties and np.array_equal(head, embedding)):  # type: ignore[arg-type]
        return
    found = "has a head of its own (lm_head.weight)" if ties else "has no head (lm_head.weight)"
    raise BadInput(f"{source}: {found}, but {config.tie} is {str(ties).lower()}; one of both must change")


def assign_qwen(
    tensors: Mapping[str, np.ndarray], network: QwenVl, *, source: str, dtype: DTypeLike | None = jnp.float32
) -> dict[str, Any]:
    """Return a network's parameters from named tensors, each used exactly once; without `dtype` they are read later."""
    table = qwen_table(tensors, network.sizes, network.vision)
    if abs(len(table) - len(tensors)) > 1:  # before shapes are made for layers that the tensors do not have
        require_names(table, tensors, source=source, most=20)
    # Some files repeat the embedding under the head's name, as `_check_head` has found.
    has_embedding = any(name in tensors for name in _EMBEDDINGS)
    unused = ("lm_head.weight",) if network.sizes.is_tied and has_embedding else ()
    shapes = qwen_shapes(network.sizes, network.vision)
    if dtype is None:
        return assign_later(table, tensors, shapes=shapes, unused=unused, source=source)
    return assign(table, tensors, shapes=shapes, unused=unused, source=source, dtype=dtype)


def qwen_shapes(sizes: DecoderSizes, vision: VisionSizes | None) -> dict[str, Any]:
    """Return the parameter tree with shapes as leaves; nothing is allocated."""

    def init() -> Any:
        tokens = jnp.zeros((1, 2), jnp.int32)
        prompts = QwenPrompts(tokens, jnp.zeros((3, 1, 2), jnp.int32), tokens)
        images = None if vision is None else _blank_images(vision)
        return QwenVl(sizes, vision).init(jax.random.key(0), images, prompts, method="score_texts")["params"]

    shapes: dict[str, Any] = jax.eval_shape(init)
    return shapes


def _blank_images(vision: VisionSizes) -> QwenImages:
    """Return one image of one window."""
    shape = (1, 1, (vision.window_units * vision.merge_size) ** 2)
    return QwenImages(
        patches=jnp.zeros((*shape, vision.num_features)),
        coordinates=jnp.zeros((2, *shape), jnp.int32),
        is_real=jnp.ones(shape, bool),
    )


# The same program at small size, with random weights: to try a run before paying for its devices.


FACTORS = (1, 2, 4, 8)


def shrink_config(config: QwenConfig, factor: int) -> QwenConfig:
    """Return a config with widths and numbers of layers divided.

    The decoder keeps its heads, which become narrower, and its vocabulary; the tower keeps the width of its heads, has
    fewer of them, and its last block alone is a full one. A factor of 1 changes nothing.
    """
    sizes, vision = config.sizes, config.vision
    divided = [sizes.width, sizes.head_width // 2, *sizes.sections]
    if vision is not None:
        divided.append(vision.num_heads)
    if factor not in FACTORS or any(size % factor for size in divided):
        raise BadInput(f"shrink: {factor} is not one of {FACTORS} that divides {divided}")
    if factor == 1:
        return config
    small = dataclasses.replace(
        sizes,
        width=sizes.width // factor,
        num_layers=max(1, sizes.num_layers // factor),
        head_width=sizes.head_width // factor,
        mlp_width=sizes.mlp_width // factor,
        sections=tuple(section // factor for section in sizes.sections),
    )
    if vision is None:
        return dataclasses.replace(config, sizes=small)
    num_layers = max(2, vision.num_layers // factor)
    tower = dataclasses.replace(
        vision,
        width=vision.width // factor,
        num_layers=num_layers,
        num_heads=vision.num_heads // factor,
        mlp_width=vision.mlp_width // factor,
        out_width=small.width,
        full_layers=(num_layers - 1,),
    )
    return dataclasses.replace(config, sizes=small, vision=tower)


def draw_params(network: QwenVl, key: jax.Array, *, dtype: DTypeLike = jnp.float32) -> Any:
    """Return random parameters: matrices normal with deviation 0.02, as Qwen's, norms one and biases zero."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(qwen_shapes(network.sizes, network.vision))

    def draw(own: jax.Array, path: Any, shape: tuple[int, ...]) -> jax.Array:
        if path[-1].key == "scale":
            return jnp.ones(shape, dtype)
        if path[-1].key == "bias":
            return jnp.zeros(shape, dtype)
        return (0.02 * jax.random.normal(own, shape)).astype(dtype)

    keys = jax.random.split(key, len(leaves))
    drawn = [draw(own, path, tuple(leaf.shape)) for own, (path, leaf) in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)


# Write a Qwen2.5 or Qwen2.5-VL as a checkpoint folder that transformers, and `load_qwen`, read.


MOST_BYTES = 4 * 2**30
"""Of a shard."""

COPIED = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json", "chat_template.jinja",
)  # fmt: skip
"""Files of a checkpoint that training does not change."""


def name_tensors(params: Any, network: QwenVl, *, prefix: str = OLD_TEXT) -> dict[str, np.ndarray]:
    """Return parameters as the named tensors of a checkpoint, in their dtype; undoes `assign_qwen`."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    tensors = {}
    for name, place in qwen_table([f"{prefix}norm.weight"], network.sizes, network.vision).items():
        leaf = np.asarray(flat[place.path])
        shape = LAYOUTS[place.layout].shape_before(leaf.shape)
        if place.layout not in ("same", "head_bias"):
            # A matrix stands as [out, in] in a file, however many axes the parameter or the tensor has.
            leaf = leaf.reshape(-1, shape[0]).T
        tensors[name] = np.ascontiguousarray(leaf.reshape(shape))
    return tensors


def write_qwen(
    folder: pathlib.Path,
    params: Any,
    network: QwenVl,
    *,
    source: pathlib.Path,
    dtype: DTypeLike = jnp.bfloat16,
    most_bytes: int = MOST_BYTES,
) -> None:
    """Write a checkpoint."""
    if not (source / "config.json").is_file():
        raise BadInput(f"{source}: no config.json (expected the checkpoint that training started from)")
    with writing_folder(folder) as partial:
        _copy(source, partial)
        _write_shards(partial, name_tensors(params, network), dtype=dtype, most_bytes=most_bytes)


def copy_files(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy the files of `COPIED` that a checkpoint has into a new folder, which appears when all are in it."""
    with writing_folder(folder) as partial:
        _copy(source, partial)


def _copy(source: pathlib.Path, folder: pathlib.Path) -> None:
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _write_shards(
    folder: pathlib.Path, tensors: Mapping[str, np.ndarray], *, dtype: DTypeLike, most_bytes: int
) -> None:
    width, shards, held = np.dtype(dtype).itemsize, list[list[str]](), most_bytes
    for name, tensor in tensors.items():
        held += tensor.size * width
        if held > most_bytes or not shards:
            shards.append([])
            held = tensor.size * width
        shards[-1].append(name)
    files, total = dict[str, str](), sum(tensor.size for tensor in tensors.values()) * width
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        shard = {name: tensors[name].astype(dtype, copy=False) for name in names}
        save_safetensors(folder / file, shard, {"format": "pt"})
        # safetensors makes files that only their owner may read.
        (folder / file).chmod((folder / "config.json").stat().st_mode & 0o777)
        files |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


# Sizes of the published Qwen2.5-VL models, for dry runs and estimates without a checkpoint.


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
        sections=(16, 24, 24),
    )
    vision = VisionSizes(
        width=1280, num_layers=32, num_heads=16, mlp_width=3420, out_width=width, full_layers=(7, 15, 23, 31)
    )
    return QwenConfig(sizes=sizes, stops=(151_645, 151_643), vision=vision, image_token=151_655)
