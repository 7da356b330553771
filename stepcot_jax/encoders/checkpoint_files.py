"""Find a checkpoint's folder (local or on Hugging Face) and read its JSON configs, untrusted, with strict checks."""

import json
import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from stepcot_jax.encoders.transformer import ACTIVATIONS, TransformerSizes
from stepcot_jax.encoders.weights import PREFERRED, TORCH_SUFFIXES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.hub import fetch
from stepcot_jax.host.store_cache import find_files
from stepcot_jax.host.stores import is_store_address

IMPORT_FEATURES = "import features made elsewhere"
"""What else the user of an encoder can do without its weights."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

BICUBIC = 3
"""Pillow's constant for bicubic resampling, the only one of `data.images`."""

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
        "openai/clip-vit-base-patch32", optionally with "@revision". Of an id only config, weights and tokenizer are
        downloaded, into huggingface_hub's cache; PyTorch's .bin only if there is no safetensors file.
      alternative: what else the user can do without the network, for the message; "" for nothing.
    """
    if is_store_address(source):
        return find_files(source, holds="a folder of weights")
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

    def __init__(self, where: str, found: Mapping[str, Any]):
        self.where = where
        self.found = found

    def whole(self, key: str, default: int | None = None, *, most: int) -> int:
        """Return a whole number from 1 to `most`; without a default the key has to be there."""
        value = self.found.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadInput(f"{self.where}.{key}: {value!r} is not a whole number from 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None, *, least: float, most: float) -> float:
        """Return a number from `least` to `most`; without a default the key has to be there."""
        value = self.found.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise BadInput(f"{self.where}.{key}: {value!r} is not a number from {least:g} to {most:g}")
        return float(value)

    def one_of(self, key: str, accepted: Collection[Any], default: Any) -> Any:
        """Return a value that is among those accepted, the default if the key is missing."""
        value = self.found.get(key, default)
        if value not in accepted:
            raise BadInput(f"{self.where}.{key}: {value!r} is not one of {', '.join(map(repr, accepted))}")
        return value

    def group(self, key: str) -> "ConfigFile":
        """Return an object inside this one, empty if missing or null."""
        value = self.found.get(key) or {}
        if not isinstance(value, Mapping):
            raise BadInput(f"{self.where}.{key}: {value!r} is not an object")
        return ConfigFile(f"{self.where}.{key}", value)

    def sizes(self, defaults: TransformerSizes) -> TransformerSizes:
        """Return the sizes of a transformer under transformers' names, with defaults for missing keys."""
        width = self.whole("hidden_size", defaults.width, most=2**16)
        num_heads = self.whole("num_attention_heads", defaults.num_heads, most=2**16)
        if width % num_heads:
            raise BadInput(f"{self.where}.num_attention_heads: {num_heads} is not a divisor of hidden_size ({width})")
        activation = self.found.get("hidden_act", defaults.activation)
        if activation not in tuple(ACTIVATIONS):
            raise BadInput(f"{self.where}.hidden_act: {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        epsilon = self.found.get("layer_norm_eps", defaults.epsilon)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
            raise BadInput(f"{self.where}.layer_norm_eps: {epsilon!r} is not a number between 0 and 1")
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
    """Return the JSON object of a file, or None if the file does not exist."""
    if not path.is_file():
        return None
    try:
        found = json.loads(
            read_file(path, max_bytes=_MOST_CONFIG_BYTES, accepted="a JSON file").removeprefix(b"\xef\xbb\xbf")
        )
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: not JSON ({str(error)[:200]})") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: expected a JSON object; got {type(found).__name__}")
    return ConfigFile(str(path), found)


def read_image_processor(folder: pathlib.Path) -> ConfigFile | None:
    """Return the settings of a checkpoint's image processor, or None if no file has them.

    transformers since 5 writes them inside processor_config.json, where they go before preprocessor_config.json.
    """
    whole = read_config(folder / "processor_config.json")
    if whole is not None and whole.found.get("image_processor"):
        return whole.group("image_processor")
    return read_config(folder / "preprocessor_config.json")


def read_preprocessing(folder: pathlib.Path, *, size: int) -> Preprocessing:
    """Return the preprocessing of a checkpoint's image processor, or CLIP's if no file has one."""
    config = read_image_processor(folder)
    if config is None:
        return Preprocessing(size=size)
    crop = config.found.get("do_center_crop", True)
    fit, found = _read_fit(config, crop=bool(crop))
    if found != size:
        raise BadInput(f"{config.where}: image size {found} is not the network's {size} px")
    if config.found.get("resample", BICUBIC) != BICUBIC:
        raise BadInput(f"{config.where}.resample: {config.found['resample']!r} is not {BICUBIC} (bicubic)")
    for key in ("do_resize", "do_rescale", "do_normalize"):
        if config.found.get(key, True) is not True:
            raise BadInput(f"{config.where}.{key}: {config.found[key]!r} is not true")
    factor = config.found.get("rescale_factor", 1 / 255)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not abs(factor * 255 - 1) <= 1e-6:
        raise BadInput(f"{config.where}.rescale_factor: {factor!r} is not 1/255")
    mean, std = (
        read_colours(config, f"image_{key}", default) for key, default in (("mean", CLIP_MEAN), ("std", CLIP_STD))
    )
    return Preprocessing(size=size, mean=mean, std=std, fit=fit)


def _read_fit(config: ConfigFile, *, crop: bool) -> tuple[Literal["crop", "stretch"], Any]:
    """Return the way that images become square, and their size in px."""

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
        f"{config.where}: size {config.found.get('size')!r} with crop_size {config.found.get('crop_size')!r} is not "
        "supported (expected a short side cropped to a square of the same size, or a square without a crop)"
    )


def read_colours(config: ConfigFile, key: str, default: tuple[float, ...]) -> tuple[float, float, float]:
    """Return three numbers: red, green and blue."""
    value = config.found.get(key, default)
    try:
        red, green, blue = (float(number) for number in value)
    except (TypeError, ValueError):
        raise BadInput(f"{config.where}.{key}: {value!r} is not 3 numbers") from None
    return red, green, blue
