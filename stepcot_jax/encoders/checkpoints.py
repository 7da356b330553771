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
from stepcot_jax.host.download import fetch, find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

IMPORT_FEATURES = "import features made elsewhere"
"""Alternative to the weights of an encoder, for messages."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

BICUBIC = 3
"""Pillow's constant for bicubic resampling, the only kind in `data.images`."""

_ID = re.compile(r"(?P<repository>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")
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
    """Return the local folder or file of a source, downloading a folder on a store or a Hugging Face id.

    Args:
      source: a folder or file, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER, or a Hugging Face id such as
        "openai/clip-vit-base-patch32", optionally with "@revision". For an id only config, weights and tokenizer are
        downloaded, into huggingface_hub's cache; PyTorch's .bin only without a safetensors file.
      alternative: another way without the network, for the message; "" for none.
    """
    if is_address(source):
        return find_path(source)
    path = pathlib.Path(source).expanduser()
    if path.exists():
        return path
    match = _ID.fullmatch(source)
    if not match or source.startswith((".", "-")):
        raise BadInput(f"{source}: no such folder or file, and not a Hugging Face id (owner/name)")
    folder = _download(source, match["repository"], match["revision"], (*_SMALL_FILES, *_SAFETENSORS), alternative)
    if not any((folder / name).exists() for name in PREFERRED):
        folder = _download(source, match["repository"], match["revision"], (*_SMALL_FILES, *_TORCH), alternative)
    return folder


def has_text_encoder(path: pathlib.Path) -> bool:
    """Return whether a checkpoint has an image encoder, a text encoder and a tokenizer."""
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))
    if (path / "open_clip_config.json").is_file():
        return has_tokenizer
    try:
        config = json.loads(read_file(path / "config.json", max_bytes=_MOST_CONFIG_BYTES, accepted="a JSON file"))
    except (OSError, ValueError):  # a torchvision file, or a broken config that loading reports
        return False
    return has_tokenizer and isinstance(config, dict) and "text_config" in config


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
    """A JSON object whose values are checked when they are read.

    Attributes:
      where: file and key, for error messages.
    """

    def __init__(self, where: str, entries: Mapping[str, Any]):
        self.where = where
        self.entries = entries

    def integer(self, key: str, default: int | None = None, *, most: int) -> int:
        """Return a whole number from 1 to `most`; without a default the key is required."""
        value = self.entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(f"{self.where}.{key}: {value!r} is not a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        """Return a number from `least` to `most`; without a default the key is required."""
        value = self.entries.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise BadInput(f"{self.where}.{key}: {value!r} is not a number from {least:g} to {most:g}")
        return float(value)

    def one_of(self, key: str, accepted: Collection[Any], default: Any) -> Any:
        """Return a value that is among those accepted, the default if the key is missing."""
        value = self.entries.get(key, default)
        if value not in accepted:
            raise BadInput(f"{self.where}.{key}: {value!r} is not one of {', '.join(map(repr, accepted))}")
        return value

    def group(self, key: str) -> "ConfigFile":
        """Return an object inside this one, empty if missing or null."""
        value = self.entries.get(key) or {}
        if not isinstance(value, Mapping):
            raise BadInput(f"{self.where}.{key}: {value!r} is not an object")
        return ConfigFile(f"{self.where}.{key}", value)

    def sizes(self, defaults: TransformerSizes) -> TransformerSizes:
        """Return the sizes of a transformer under transformers' names, with defaults for missing keys."""
        width = self.integer("hidden_size", defaults.width, most=2**16)
        num_heads = self.integer("num_attention_heads", defaults.num_heads, most=2**16)
        if width % num_heads:
            raise BadInput(f"{self.where}.num_attention_heads: {num_heads} is not a divisor of hidden_size ({width})")
        activation = self.entries.get("hidden_act", defaults.activation)
        if activation not in tuple(ACTIVATIONS):
            raise BadInput(f"{self.where}.hidden_act: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        epsilon = self.entries.get("layer_norm_eps", defaults.epsilon)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
            raise BadInput(f"{self.where}.layer_norm_eps: {epsilon!r} is not a number between 0 and 1")
        return TransformerSizes(
            width=width,
            num_layers=self.integer("num_hidden_layers", defaults.num_layers, most=256),
            num_heads=num_heads,
            mlp_width=self.integer("intermediate_size", defaults.mlp_width, most=2**20),
            activation=activation,
            epsilon=float(epsilon),
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
    """Return the settings of a checkpoint's image processor, or None if no file has them.

    transformers since 5 writes them inside processor_config.json, which takes precedence over preprocessor_config.json.
    """
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
    if config.entries.get("resample", BICUBIC) != BICUBIC:
        raise BadInput(f"{config.where}.resample: {config.entries['resample']!r} is not {BICUBIC} (bicubic)")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if config.entries.get(key, True) is not True:
            raise BadInput(f"{config.where}.{key}: {config.entries[key]!r} is not true")
    factor = config.entries.get("rescale_factor", 1 / 255)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not abs(factor * 255 - 1) <= 1e-6:
        raise BadInput(f"{config.where}.rescale_factor: {factor!r} is not 1/255")
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
    raise BadInput(
        f"{config.where}: size {config.entries.get('size')!r} with crop_size {config.entries.get('crop_size')!r} is "
        "not supported (expected a short side cropped to a square of the same size, or a square without a crop)"
    )


def read_colours(config: ConfigFile, key: str, default: tuple[float, ...]) -> tuple[float, float, float]:
    """Return three numbers: red, green and blue."""
    value = config.entries.get(key, default)
    try:
        red, green, blue = (float(number) for number in value)
    except (TypeError, ValueError):
        raise BadInput(f"{config.where}.{key}: {value!r} is not 3 numbers") from None
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
    """The networks of a checkpoint, and the parameter of each tensor.

    Attributes:
      name: for logs, such as "clip".
      table: tensor names -> slots below "image/" and "text/", and single parameters.
      unused: optional tensors that are not parameters: buffers, classifiers, pretraining heads.
      image: the image network, if any.
      text: the text network, if any.
      preprocessing: of the images before the image network.
      max_tokens: longest text of the text network, in tokens.
    """

    name: str
    table: Mapping[str, Slot]
    unused: tuple[str, ...] = ()
    image: nn.Module | None = None
    text: nn.Module | None = None
    preprocessing: Preprocessing | None = None
    max_tokens: int = 0

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
    problem = f"model_type {model_type!r} is not supported" if config else "no config.json"
    raise BadInput(f"{path}: {problem}; {ACCEPTED}")


def _clip(config: ConfigFile, folder: pathlib.Path, model_type: str, dtype: DTypeLike) -> Architecture:
    """Return CLIP with both towers, or one tower with its projection."""
    both, width = model_type == "clip", config.integer("projection_dim", 512, most=2**16)
    image = text = preprocessing = None
    table = {"logit_scale": Slot("logit_scale")} if both else {}
    if model_type != "clip_text_model":
        vision = config.group("vision_config") if both else config
        image, preprocessing = _clip_image(vision, folder, width, dtype)
        table |= clip_vision_table(image.sizes.num_layers)
    if model_type != "clip_vision_model":
        text = _clip_text(config.group("text_config") if both else config, width, dtype)
        table |= clip_text_table(text.sizes.num_layers)
    unused = ("vision_model.embeddings.position_ids", "text_model.embeddings.position_ids")
    return Architecture(model_type, table, unused, image, text, preprocessing, text.max_positions if text else 0)


def _clip_image(
    config: ConfigFile, folder: pathlib.Path, projected_width: int, dtype: DTypeLike
) -> tuple[VisionTransformer, Preprocessing]:
    config.integer("num_channels", 3, most=3)
    image_size = config.integer("image_size", 224, most=4096)
    patch_size = config.integer("patch_size", 32, most=image_size)
    network = VisionTransformer(config.sizes(CLIP_VISION_SIZES), image_size, patch_size, projected_width, dtype=dtype)
    return network, read_preprocessing(folder, size=image_size)


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
        raise BadInput(f"{config.where}.position_embedding_type: {kind!r} is not 'absolute'")
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
        if images.entries.get(key, accepted) != accepted:
            raise BadInput(f"{images.where}.{key}: {images.entries[key]!r} is not {accepted!r}")
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
    preprocessing = Preprocessing(size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
    counters = tuple(key for key in tensors if key.endswith(".num_batches_tracked"))
    if name == "densenet121":
        dense = FrozenDenseNet(dtype=dtype)
        old_names = "features.denseblock1.denselayer1.norm.1.weight" in tensors
        table, unused = torchvision_table(dense, old_names=old_names), (*DENSENET_CLASSIFIER, *counters)
        return Architecture(name, table, unused, dense, preprocessing=preprocessing)
    residual = make_frozen_resnet(name, dtype)
    table, unused = torchvision_table(residual), (*RESNET_CLASSIFIER, *counters)
    return Architecture(name, table, unused, residual, preprocessing=preprocessing)
