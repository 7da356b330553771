"""Find a checkpoint's folder (local or on Hugging Face) and read its JSON configs, untrusted, with strict checks."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from stepcot_jax.encoders.torchvision_networks import (
    DENSENET_CLASSIFIER,
    RESNET_CLASSIFIER,
    FrozenDenseNet,
    FrozenResNet,
    make_frozen_resnet,
    torchvision_table,
)
from stepcot_jax.encoders.transformer import (
    ACTIVATIONS,
    TEXT_PREFIX,
    Bert,
    CLIPText,
    TransformerSizes,
    VisionTransformer,
    bert_table,
    biomedclip_table,
    clip_text_table,
    clip_vision_table,
    make_biomedclip,
)
from stepcot_jax.encoders.weights import PREFERRED, TORCH_SUFFIXES, Slot
from stepcot_jax.host.download import fetch, find_path, is_address, split_hub_id
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import show

IMPORT_FEATURES = "import features made elsewhere"

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

BICUBIC = 3
"""Pillow's constant for bicubic resampling, the only kind in `data.images`."""

_MOST_CONFIG_BYTES = 1 << 24
_SMALL_FILES = (
    "config.json", "open_clip_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "generation_config.json", "video_preprocessor_config.json", "chat_template.json", "chat_template.jinja",
)  # fmt: skip
_SAFETENSORS = (
    "model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "open_clip_model.safetensors",
)  # fmt: skip
_TORCH = tuple(name for name in PREFERRED if name.endswith(TORCH_SUFFIXES))


def resolve(source: str, *, alternative: str = "") -> pathlib.Path:
    """Return the local path of a folder or file, an address, or a Hugging Face id, "owner/name[@revision]"."""
    if is_address(source):
        return find_path(source)
    path = pathlib.Path(source).expanduser()
    if path.exists():
        return path
    repository, revision = split_hub_id(source)
    # PyTorch's files only without a safetensors file.
    folder = _download(source, repository, revision, (*_SMALL_FILES, *_SAFETENSORS), alternative)
    if not any((folder / name).exists() for name in PREFERRED):
        folder = _download(source, repository, revision, (*_SMALL_FILES, *_TORCH), alternative)
    return folder


def has_text_encoder(path: pathlib.Path) -> bool:
    """Return whether a checkpoint has an image encoder, a text encoder and a tokenizer."""
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))
    if (path / "open_clip_config.json").is_file():
        return has_tokenizer
    try:
        config = read_config(path / "config.json")
    except BadInput:  # loading reports a broken config
        return False
    return has_tokenizer and config is not None and "text_config" in config.entries


def _download(
    source: str, repository: str, revision: str | None, patterns: tuple[str, ...], alternative: str
) -> pathlib.Path:
    try:
        return fetch(source, repository, revision, allow=patterns)
    except BadInput as error:
        raise BadInput(
            f"{error}; expected a folder, a file or owner/name[@revision]; or download it elsewhere (hf download "
            f"{repository} --local-dir FOLDER) and name the folder{alternative and f', or {alternative}'}"
        ) from None


class ConfigFile:
    """A JSON object whose values are checked when they are read; `where` is its file and key."""

    def __init__(self, where: str, entries: Mapping[str, Any]):
        self.where = where
        self.entries = entries

    def integer(self, key: str, default: int | None = None, *, most: int) -> int:
        """Return a whole number from 1 to `most`; without a default the key is required."""
        value = self.entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(f"{self.where}.{key}: {show(value)} is not a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        """Return a number from `least` to `most`; without a default the key is required."""
        value = self.entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise BadInput(f"{self.where}.{key}: {show(value)} is not a number from {least:g} to {most:g}")
        return float(value)

    def one_of(self, key: str, accepted: Collection[Any], default: Any) -> Any:
        """Return a value that is among those accepted, the default if the key is missing; 1 is not true."""
        value = self.entries.get(key, default)
        if not any(type(value) is type(option) and value == option for option in accepted):
            raise BadInput(f"{self.where}.{key}: {show(value)} is not one of {', '.join(map(repr, accepted))}")
        return value

    def group(self, key: str) -> "ConfigFile":
        """Return an object inside this one, empty if missing or null."""
        value = self.entries.get(key) or {}
        if not isinstance(value, Mapping):
            raise BadInput(f"{self.where}.{key}: {show(value)} is not an object")
        return ConfigFile(f"{self.where}.{key}", value)

    def sizes(self, defaults: TransformerSizes) -> TransformerSizes:
        """Return the sizes of a transformer under transformers' names, with defaults for missing keys."""
        width = self.integer("hidden_size", defaults.width, most=2**16)
        num_heads = self.integer("num_attention_heads", defaults.num_heads, most=2**16)
        if width % num_heads:
            raise BadInput(f"{self.where}.num_attention_heads: {num_heads} is not a divisor of hidden_size ({width})")
        return TransformerSizes(
            width=width,
            num_layers=self.integer("num_hidden_layers", defaults.num_layers, most=256),
            num_heads=num_heads,
            mlp_width=self.integer("intermediate_size", defaults.mlp_width, most=2**20),
            activation=self.one_of("hidden_act", list(ACTIVATIONS), defaults.activation),
            epsilon=self.number("layer_norm_eps", defaults.epsilon, least=1e-30, most=0.999),
            norm_first=defaults.norm_first,
        )


def read_config(path: pathlib.Path) -> ConfigFile | None:
    """Return the JSON object of a file, or None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        entries = json.loads(
            read_file(path, max_bytes=_MOST_CONFIG_BYTES, accepted="a JSON file").removeprefix(b"\xef\xbb\xbf")
        )
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({str(error)[:200]})") from None
    if not isinstance(entries, dict):
        raise BadInput(f"{path}: expected a JSON object; got {type(entries).__name__}")
    return ConfigFile(str(path), entries)


def read_image_processor(folder: pathlib.Path) -> ConfigFile | None:
    """Return the settings of a checkpoint's image processor (transformers 5 or older), or None if no file has them."""
    processor = read_config(folder / "processor_config.json")
    if processor is not None and processor.entries.get("image_processor"):
        return processor.group("image_processor")
    return read_config(folder / "preprocessor_config.json")


def read_preprocessing(folder: pathlib.Path, *, size: int) -> Preprocessing:
    """Return the preprocessing of a checkpoint's image processor, or CLIP's if no file has one."""
    config = read_image_processor(folder)
    if config is None:
        return Preprocessing(size=size)
    crop = config.entries.get("do_center_crop", True)
    fit, read_size = _read_fit(config, crop=bool(crop))
    if read_size != size:
        raise BadInput(f"{config.where}: image size {read_size} is not the network's {size} px")
    config.one_of("resample", (BICUBIC,), BICUBIC)
    for key in ("do_resize", "do_rescale", "do_normalize"):
        config.one_of(key, (True,), True)
    for key in ("crop_pct", "rescale_offset", "include_top", "do_flip_channel_order", "do_pad"):
        config.one_of(key, (None, False), None)
    config.number("rescale_factor", 1 / 255, least=(1 - 1e-6) / 255, most=(1 + 1e-6) / 255)
    mean, std = (
        read_colours(config, f"image_{key}", default) for key, default in (("mean", CLIP_MEAN), ("std", CLIP_STD))
    )
    return Preprocessing(size=size, mean=mean, std=std, fit=fit)


def _read_fit(config: ConfigFile, *, crop: bool) -> tuple[Literal["crop", "stretch"], Any]:
    """Return how images become square, and their size in px."""

    def sides(key: str) -> Any:
        value = config.entries.get(key)
        if isinstance(value, Mapping):
            return (
                value["shortest_edge"] if set(value) == {"shortest_edge"} else (value.get("height"), value.get("width"))
            )
        return value  # older files have one number: the short side of "size", both sides of "crop_size"

    resized, cropped = sides("size"), sides("crop_size") if crop else None
    resized = 224 if resized is None else resized
    if isinstance(cropped, tuple) and cropped[0] == cropped[1]:
        cropped = cropped[0]
    if crop and (cropped is None or cropped == resized):
        return "crop", resized
    if isinstance(resized, tuple) and resized[0] == resized[1] and (not crop or cropped == resized[0]):
        return "stretch", resized[0]
    size, crop_size = (show(config.entries.get(key)) for key in ("size", "crop_size"))
    raise BadInput(
        f"{config.where}: size {size} with crop_size {crop_size} is not supported (expected a short side cropped to "
        "a square of the same size, or a square without a crop)"
    )


def read_colours(config: ConfigFile, key: str, default: tuple[float, ...]) -> tuple[float, float, float]:
    """Return three numbers: red, green and blue."""
    value = config.entries.get(key, default)
    try:
        red, green, blue = (float(number) for number in value)
    except (TypeError, ValueError):
        raise BadInput(f"{config.where}.{key}: {show(value)} is not 3 numbers") from None
    return red, green, blue


# Recognise a checkpoint's networks by its config or its file name.


Tensors = Mapping[str, np.ndarray]

CLIP_VISION_SIZES = TransformerSizes(768, 12, 12, 3072, "quick_gelu", 1e-5, norm_first=True)
CLIP_TEXT_SIZES = TransformerSizes(512, 12, 8, 2048, "quick_gelu", 1e-5, norm_first=True)
BERT_SIZES = TransformerSizes(768, 12, 12, 3072, "gelu", 1e-12, norm_first=False)

ACCEPTED = (
    "expected a config.json with model_type clip, clip_vision_model, clip_text_model or bert, an open_clip_config.json "
    "like BiomedCLIP's, or resnet18, resnet50 or densenet121 as config.json's architecture or in the file's name"
)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The networks of a checkpoint, and the parameter of each tensor."""

    name: str  # for logs, such as "clip"
    table: Mapping[str, Slot]  # tensor names -> slots below "image/" and "text/", and single parameters
    unused: tuple[str, ...] = ()  # optional tensors: buffers, classifiers, pretraining heads
    image: nn.Module | None = None
    text: nn.Module | None = None
    preprocessing: Preprocessing | None = None
    max_tokens: int = 0  # longest text of the text network

    def shapes(self) -> dict[str, Any]:
        """Return the parameter tree with shapes as leaves; nothing is allocated."""
        shapes: dict[str, Any] = {}
        key = jax.eval_shape(lambda: jax.random.key(0))
        if self.image is not None and self.preprocessing is not None:
            images = jax.ShapeDtypeStruct((1, *[self.preprocessing.size] * 2, 3), jnp.float32)
            shapes["image"] = jax.eval_shape(self.image.init, key, images)["params"]
        if self.text is not None:
            texts = (jax.ShapeDtypeStruct((1, 2), dtype) for dtype in (jnp.int32, jnp.bool_))
            shapes["text"] = jax.eval_shape(self.text.init, key, *texts)["params"]
        if any(slot.path == "logit_scale" for slot in self.table.values()):
            shapes["logit_scale"] = jax.ShapeDtypeStruct((), jnp.float32)
        return shapes


IMAGE_NETWORKS: tuple[type[nn.Module], ...] = (VisionTransformer, FrozenResNet, FrozenDenseNet)
"""The classes of image networks that `recognise` returns; a contributed one is added here."""


def recognise(path: pathlib.Path, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    """Return the architecture of a checkpoint."""
    folder = path if path.is_dir() else path.parent
    open_clip = read_config(folder / "open_clip_config.json") if path.is_dir() else None
    if open_clip:
        return _open_clip(open_clip, tensors, dtype)
    config = read_config(folder / "config.json") if path.is_dir() else None
    model_type = config.entries.get("model_type") if config else None
    if config and model_type in ("clip", "clip_vision_model", "clip_text_model"):
        return _clip(config, folder, model_type, dtype)
    if config and model_type == "bert":
        return _bert(config, tensors, dtype)
    stated = str(config.entries.get("architecture", "")) if config else ""
    names = [stated] if stated else [path.name, *(file.name for file in folder.iterdir() if path.is_dir())]
    for name in names:
        if match := re.match(r"(resnet18|resnet50|densenet121)(?![0-9a-z])", name.lower()):
            return _torchvision(match[1], tensors, dtype)
    problem = f"model_type {show(model_type)} is not supported" if config else "no config.json"
    raise BadInput(f"{path}: {problem}; {ACCEPTED}")


def _clip(config: ConfigFile, folder: pathlib.Path, model_type: str, dtype: DTypeLike) -> Architecture:
    """Return CLIP with both towers, or one tower with its projection."""
    both, width = model_type == "clip", config.integer("projection_dim", 512, most=2**16)
    image = text = preprocessing = None
    table = {"logit_scale": Slot("logit_scale")} if both else {}
    if model_type != "clip_text_model":
        vision = config.group("vision_config") if both else config
        vision.integer("num_channels", 3, most=3)
        size = vision.integer("image_size", 224, most=4096)
        patch = vision.integer("patch_size", 32, most=size)
        image = VisionTransformer(vision.sizes(CLIP_VISION_SIZES), size, patch, width, dtype=dtype)
        preprocessing = read_preprocessing(folder, size=size)
        table |= clip_vision_table(image.sizes.num_layers)
    if model_type != "clip_vision_model":
        text = _clip_text(config.group("text_config") if both else config, width, dtype)
        table |= clip_text_table(text.sizes.num_layers)
    unused = ("vision_model.embeddings.position_ids", "text_model.embeddings.position_ids")
    return Architecture(model_type, table, unused, image, text, preprocessing, text.max_positions if text else 0)


def _clip_text(config: ConfigFile, projected_width: int, dtype: DTypeLike) -> CLIPText:
    return CLIPText(
        sizes=config.sizes(CLIP_TEXT_SIZES),
        vocabulary_size=config.integer("vocab_size", 49408, most=2**24),
        max_positions=config.integer("max_position_embeddings", 77, most=2**16),
        end_token=config.integer("eos_token_id", 49407, most=2**24),
        projected_width=projected_width,
        dtype=dtype,
    )


def _bert(config: ConfigFile, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    if (kind := config.entries.get("position_embedding_type", "absolute")) != "absolute":
        raise BadInput(f"{config.where}.position_embedding_type: {show(kind)} is not 'absolute'")
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    text = Bert(
        sizes=config.sizes(BERT_SIZES),
        vocabulary_size=config.integer("vocab_size", 30522, most=2**24),
        max_positions=config.integer("max_position_embeddings", 512, most=2**16),
        num_types=config.integer("type_vocab_size", 2, most=2**16),
        pooler=f"{prefix}pooler.dense.weight" in tensors,
        dtype=dtype,
    )
    legacy = f"{prefix}embeddings.LayerNorm.gamma" in tensors
    table = bert_table(text.sizes.num_layers, prefix=prefix, pooler=text.pooler, legacy_norms=legacy)
    unused = (f"{prefix}embeddings.position_ids", *_BERT_PRETRAINING_HEADS)
    return Architecture(name="bert", table=table, unused=unused, text=text, max_tokens=text.max_positions)


_BERT_PRETRAINING_HEADS = (
    "cls.predictions.bias",
    *(f"cls.predictions.decoder.{name}" for name in ("weight", "bias")),
    *(f"cls.predictions.transform.dense.{name}" for name in ("weight", "bias")),
    *(f"cls.predictions.transform.LayerNorm.{name}" for name in ("weight", "bias", "gamma", "beta")),
    *(f"cls.seq_relationship.{name}" for name in ("weight", "bias")),
)


def _open_clip(config: ConfigFile, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    model, images = config.group("model_cfg"), config.group("preprocess_cfg")
    size = model.group("vision_cfg").integer("image_size", 224, most=4096)
    max_tokens = model.group("text_cfg").integer("context_length", 77, most=2**16)
    if "visual.trunk.cls_token" not in tensors or f"{TEXT_PREFIX}embeddings.word_embeddings.weight" not in tensors:
        raise BadInput(f"{config.where}: the model is not a timm ViT with a BERT; {ACCEPTED}")
    for key, accepted in (("interpolation", "bicubic"), ("resize_mode", "shortest")):
        images.one_of(key, (accepted,), accepted)
    image, text = make_biomedclip(tensors, image_size=size, max_tokens=max_tokens, dtype=dtype, source=config.where)
    return Architecture(
        name="open_clip",
        table=biomedclip_table(image, text),
        unused=(f"{TEXT_PREFIX}embeddings.position_ids",),
        image=image,
        text=text,
        preprocessing=Preprocessing(
            size=size, mean=read_colours(images, "mean", CLIP_MEAN), std=read_colours(images, "std", CLIP_STD)
        ),
        max_tokens=max_tokens,
    )


def _torchvision(name: str, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    is_dense = name == "densenet121"
    network = FrozenDenseNet(dtype=dtype) if is_dense else make_frozen_resnet(name, dtype)
    counters = (key for key in tensors if key.endswith(".num_batches_tracked"))
    unused = (*(DENSENET_CLASSIFIER if is_dense else RESNET_CLASSIFIER), *counters)
    table = torchvision_table(network, old_names="features.denseblock1.denselayer1.norm.1.weight" in tensors)
    preprocessing = Preprocessing(size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return Architecture(name, table, unused, network, preprocessing=preprocessing)
