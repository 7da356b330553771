"""What config.json and preprocessor_config.json say, with transformers' defaults and without trust."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from stepcot_jax.encoders.transformer import ACTIVATIONS, TransformerSizes
from stepcot_jax.host.errors import BadInput

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

BICUBIC = 3
"""Pillow's number of bicubic resampling, which is what `data.images` does."""


class ConfigFile:
    """A JSON object whose values are checked as they are read.

    Attributes:
      where: file and key that errors name.
      found: the object.
    """

    def __init__(self, where: str, found: Mapping[str, Any]):
        self.where = where
        self.found = found

    def whole(self, key: str, default: int, *, most: int) -> int:
        """A whole number from 1 to `most`."""
        value = self.found.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(f"{self.where}.{key}: found {value!r}, accepted are whole numbers from 1 to {most}")
        return value

    def group(self, key: str) -> "ConfigFile":
        """An object inside this one; empty where it is missing or null."""
        value = self.found.get(key) or {}
        if not isinstance(value, Mapping):
            raise BadInput(f"{self.where}.{key}: found {value!r}, accepted is an object")
        return ConfigFile(f"{self.where}.{key}", value)

    def sizes(self, defaults: TransformerSizes) -> TransformerSizes:
        """Sizes of a transformer by transformers' names; what is missing is as in `defaults`."""
        width = self.whole("hidden_size", defaults.width, most=2**16)
        num_heads = self.whole("num_attention_heads", defaults.num_heads, most=2**16)
        if width % num_heads:
            raise BadInput(f"{self.where}.num_attention_heads: found {num_heads}, accepted are divisors of {width}")
        activation = self.found.get("hidden_act", defaults.activation)
        if activation not in tuple(ACTIVATIONS):
            raise BadInput(f"{self.where}.hidden_act: found {activation!r}, accepted are {', '.join(ACTIVATIONS)}")
        epsilon = self.found.get("layer_norm_eps", defaults.epsilon)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
            raise BadInput(f"{self.where}.layer_norm_eps: found {epsilon!r}, accepted are numbers between 0 and 1")
        return TransformerSizes(
            width=width,
            num_layers=self.whole("num_hidden_layers", defaults.num_layers, most=256),
            num_heads=num_heads,
            mlp_width=self.whole("intermediate_size", defaults.mlp_width, most=2**20),
            activation=activation,
            epsilon=float(epsilon),
            norm_first=defaults.norm_first,
        )


def read_config(path: pathlib.Path) -> ConfigFile | None:
    """The JSON object of a file; None where there is no such file.

    Raises:
      BadInput: the file is not JSON, or not an object.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: found no JSON ({str(error)[:200]}), accepted is a JSON object") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: found {type(found).__name__}, accepted is a JSON object")
    return ConfigFile(str(path), found)


def read_preprocessing(folder: pathlib.Path, *, size: int) -> Preprocessing:
    """What preprocessor_config.json asks for; CLIP's, where there is no such file.

    Args:
      folder: the checkpoint's.
      size: height and width that the network takes, px.

    Raises:
      BadInput: the file asks for something that `Preprocessing` cannot say, or for another size.
    """
    config = read_config(folder / "preprocessor_config.json")
    if config is None:
        return Preprocessing(size=size)
    crop = config.found.get("do_center_crop", True)
    fit, found = _read_fit(config, crop=bool(crop))
    if found != size:
        raise BadInput(f"{config.where}: found images of {found} px, accepted is the network's {size}")
    if config.found.get("resample", BICUBIC) != BICUBIC:
        raise BadInput(f"{config.where}.resample: found {config.found['resample']!r}, accepted is {BICUBIC} (bicubic)")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if config.found.get(key, True) is not True:
            raise BadInput(f"{config.where}.{key}: found {config.found[key]!r}, accepted is true")
    factor = config.found.get("rescale_factor", 1 / 255)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not abs(factor * 255 - 1) <= 1e-6:
        raise BadInput(f"{config.where}.rescale_factor: found {factor!r}, accepted is 1/255")
    mean, std = (
        read_colours(config, f"image_{key}", default) for key, default in (("mean", CLIP_MEAN), ("std", CLIP_STD))
    )
    return Preprocessing(size=size, mean=mean, std=std, fit=fit)


def _read_fit(config: ConfigFile, *, crop: bool) -> tuple[Literal["crop", "stretch"], Any]:
    """How images become square, and how large."""

    def sides(key: str) -> Any:
        value = config.found.get(key)
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
        f"{config.where}: found size {config.found.get('size')!r} and crop_size {config.found.get('crop_size')!r}, "
        "accepted are a short side that is cropped to a square of the same size, or a square without a crop"
    )


def read_colours(config: ConfigFile, key: str, default: tuple[float, ...]) -> tuple[float, float, float]:
    """Three numbers, of red, green and blue."""
    value = config.found.get(key, default)
    try:
        red, green, blue = (float(number) for number in value)
    except (TypeError, ValueError):
        raise BadInput(f"{config.where}.{key}: found {value!r}, accepted are 3 numbers") from None
    return red, green, blue
