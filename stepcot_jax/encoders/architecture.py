"""Recognise a checkpoint's networks by its config or its file name."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from stepcot_jax.encoders.assignment import Place
from stepcot_jax.encoders.bert import TEXT_PREFIX, Bert, bert_table, biomedclip_table, make_biomedclip
from stepcot_jax.encoders.checkpoint_files import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ConfigFile,
    read_colours,
    read_config,
    read_preprocessing,
)
from stepcot_jax.encoders.clip import CLIPText, VisionTransformer, clip_text_table, clip_vision_table
from stepcot_jax.encoders.torchvision_networks import (
    DENSENET_CLASSIFIER,
    RESNET_CLASSIFIER,
    FrozenDenseNet,
    make_frozen_resnet,
    torchvision_table,
)
from stepcot_jax.encoders.transformer import TransformerSizes
from stepcot_jax.host.errors import BadInput

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
    """The networks of a checkpoint, and the parameter that each tensor belongs to.

    Attributes:
      name: for logs, such as "clip".
      table: tensor names -> places below "image/" and "text/", and single parameters.
      unused: tensors that may be present but are no parameters: buffers, classifiers, pretraining heads.
      image: the image network, if any.
      text: the text network, if any.
      preprocessing: of the images before the image network.
      max_tokens: longest text of the text network, in tokens.
    """

    name: str
    table: Mapping[str, Place]
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
        if any(place.path == "logit_scale" for place in self.table.values()):
            shapes["logit_scale"] = jax.ShapeDtypeStruct((), jnp.float32)
        return shapes


def recognise(path: pathlib.Path, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    """Return the architecture of a checkpoint."""
    folder = path if path.is_dir() else path.parent
    open_clip = read_config(folder / "open_clip_config.json") if path.is_dir() else None
    if open_clip:
        return _open_clip(open_clip, tensors, dtype)
    config = read_config(folder / "config.json") if path.is_dir() else None
    model_type = config.found.get("model_type") if config else None
    if config and model_type in ("clip", "clip_vision_model", "clip_text_model"):
        return _clip(config, folder, model_type, dtype)
    if config and model_type == "bert":
        return _bert(config, tensors, dtype)
    stated = str(config.found.get("architecture", "")) if config else ""
    names = [stated] if stated else [path.name, *(file.name for file in folder.iterdir() if path.is_dir())]
    for name in names:
        if match := re.match(r"(resnet18|resnet50|densenet121)(?![0-9a-z])", name.lower()):
            return _torchvision(match[1], tensors, dtype)
    found = f"model_type {model_type!r} is not supported" if config else "no config.json"
    raise BadInput(f"{path}: {found}; {ACCEPTED}")


def _clip(config: ConfigFile, folder: pathlib.Path, model_type: str, dtype: DTypeLike) -> Architecture:
    """CLIP with both towers, or one tower with its projection."""
    both, width = model_type == "clip", config.whole("projection_dim", 512, most=2**16)
    image = text = preprocessing = None
    table = {"logit_scale": Place("logit_scale")} if both else {}
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
    config.whole("num_channels", 3, most=3)
    image_size = config.whole("image_size", 224, most=4096)
    patch_size = config.whole("patch_size", 32, most=image_size)
    network = VisionTransformer(config.sizes(CLIP_VISION_SIZES), image_size, patch_size, projected_width, dtype=dtype)
    return network, read_preprocessing(folder, size=image_size)


def _clip_text(config: ConfigFile, projected_width: int, dtype: DTypeLike) -> CLIPText:
    return CLIPText(
        sizes=config.sizes(CLIP_TEXT_SIZES),
        vocabulary_size=config.whole("vocab_size", 49408, most=2**24),
        max_positions=config.whole("max_position_embeddings", 77, most=2**16),
        end_token=config.whole("eos_token_id", 49407, most=2**24),
        projected_width=projected_width,
        dtype=dtype,
    )


def _bert(config: ConfigFile, tensors: Tensors, dtype: DTypeLike) -> Architecture:
    if (kind := config.found.get("position_embedding_type", "absolute")) != "absolute":
        raise BadInput(f"{config.where}.position_embedding_type: {kind!r} is not 'absolute'")
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    text = Bert(
        sizes=config.sizes(BERT_SIZES),
        vocabulary_size=config.whole("vocab_size", 30522, most=2**24),
        max_positions=config.whole("max_position_embeddings", 512, most=2**16),
        num_types=config.whole("type_vocab_size", 2, most=2**16),
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
    size = model.group("vision_cfg").whole("image_size", 224, most=4096)
    max_tokens = model.group("text_cfg").whole("context_length", 77, most=2**16)
    if "visual.trunk.cls_token" not in tensors or f"{TEXT_PREFIX}embeddings.word_embeddings.weight" not in tensors:
        raise BadInput(f"{config.where}: the model is not a timm ViT with a BERT; {ACCEPTED}")
    for key, accepted in (("interpolation", "bicubic"), ("resize_mode", "shortest")):
        if images.found.get(key, accepted) != accepted:
            raise BadInput(f"{images.where}.{key}: {images.found[key]!r} is not {accepted!r}")
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
