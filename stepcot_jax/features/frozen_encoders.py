"""Load a frozen image encoder by its weights."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from PIL import Image

from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, normalised_values, resize_image
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.host.download import split_hub_id
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra, one_line

TRANSFORMERS = "transformers:"  # prefix of the folder or Hugging Face id of an encoder that runs in PyTorch
Pooling = Literal["projection", "pooler", "mean"]
_BILINEAR, _BICUBIC = 2, 3
_DIFFERENCE = 0.01  # largest mean difference from the processor's pixels, as a share of their mean size
_READ_FIELDS = frozenset(
    {
        *("size", "crop_size", "resample", "do_resize", "do_center_crop", "do_convert_rgb"),
        *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
        *("image_processor_type", "processor_class", "data_format", "default_to_square", "model_input_names"),
        *("_processor_class", "return_tensors", "device", "input_data_format", "feature_extractor_type"),
    }
)  # of a processor, without those that only some classes have


@dataclasses.dataclass(frozen=True)
class TransformersEncoder:
    """A frozen model; see `store.FrozenImageEncoder`."""

    name: str
    width: int
    preprocessing: Preprocessing  # of the model's image processor
    digest: str  # of weights, class and pooling
    num_parameters: int
    pooling: Pooling  # "projection": `get_image_features`; "pooler": `pooler_output`; "mean" of the last hidden states
    model: Any

    @property
    def batch_size(self) -> int:
        """Number of images of a batch that keeps the device busy."""
        return 32 if next(self.model.parameters()).device.type == "cpu" else 256

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Return features float32 [case, width] of images float32 or uint8 [case, height, width, 3]."""
        return _pool(_run(self.model, images, self.pooling, normalised_values(self.preprocessing)), self.pooling)

    def encode_patches(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features [case, width] and patch tokens [case, patch, width] of the last layer."""
        output = _run(self.model, images, self.pooling, normalised_values(self.preprocessing))
        tokens = getattr(output, "last_hidden_state", None)
        if tokens is None:
            raise BadInput(f"{TRANSFORMERS}{self.name}: the model has no last hidden states, hence no patch tokens")
        if tokens.ndim == 4:  # convolutional: [case, channel, row, column]
            tokens = tokens.flatten(2).transpose(1, 2)
        # Class and register tokens come before the patches. Where stages merge patches, all tokens are patches.
        number = _num_patches(self.model.config, self.preprocessing.size)
        patches = tokens[:, -min(number or tokens.shape[1], tokens.shape[1]) :]
        return _pool(output, self.pooling), patches.float().cpu().numpy()

    def patch_shape(self) -> tuple[int, int]:
        """Return the number of patches of an image and their channels, by encoding a black one."""
        size = self.preprocessing.size
        _, number, channels = self.encode_patches(np.zeros((1, size, size, 3), np.float32))[1].shape
        return number, channels


def load_transformers_encoder(source: str) -> TransformersEncoder:
    """Load a model, on a GPU if there is one, and its image processor."""
    try:
        import torch
    except ImportError:
        raise BadInput(f"{TRANSFORMERS}{source}: torch is not installed ({install_extra('torch')})") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, absent = _load_model(source)
    model = model.to(device).eval().requires_grad_(False)
    preprocessing = read_preprocessing(source)
    pooling, width = _choose_pooling(source, model, preprocessing, absent)
    weights = {name: value for name, value in model.state_dict().items() if name not in absent}
    return TransformersEncoder(
        name=source,
        width=width,
        preprocessing=preprocessing,
        digest=_digest(weights, type(model).__name__, pooling),
        num_parameters=sum(value.numel() for value in model.parameters()),
        pooling=pooling,
        model=model,
    )


def _load_model(source: str) -> tuple[Any, frozenset[str]]:
    import torch
    import transformers

    name, revision = _locate(source)
    try:
        model, loading = transformers.AutoModel.from_pretrained(
            name, revision=revision, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
    # transformers raises many kinds of error for broken folders and networks.
    except Exception as error:
        raise BadInput(
            f"{TRANSFORMERS}{source}: cannot be loaded ({type(error).__name__}: {one_line(error)}); expected a folder "
            "with config.json and weights, or a Hugging Face id and a network"
        ) from error
    absent = frozenset(loading["missing_keys"])
    needed = sorted(name for name in absent if "pooler" not in name)
    if needed:
        raise BadInput(
            f"{TRANSFORMERS}{source}: {len(needed)} weights of {type(model).__name__} are missing, such as {needed[0]}"
        )
    return model, absent


def _locate(source: str) -> tuple[str, str]:
    """Return a folder, or a repository of the Hugging Face hub, and its revision."""
    folder = pathlib.Path(source).expanduser()
    if folder.exists():
        return str(folder), "main"
    try:
        repository, revision = split_hub_id(source)
    except BadInput as error:
        raise BadInput(f"{TRANSFORMERS}{error}") from None
    return repository, revision or "main"


def read_preprocessing(source: str) -> Preprocessing:
    """Return a model's image preprocessing: the pixels of its image processor in Pillow, or a refusal.

    A processor's class may read its fields in a way of its own (ConvNeXT's crop_pct, LeViT's 256/224). So each reading
    of the fields makes two pictures of noise, and the first that makes the processor's own pixels counts.
    """
    import transformers

    name, revision = _locate(source)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            name, revision=revision, backend="pil", trust_remote_code=False
        )
    except Exception as error:
        raise BadInput(
            f"{TRANSFORMERS}{source}: no image processor ({one_line(error)}); expected preprocessor_config.json"
        ) from error
    where = f"{TRANSFORMERS}{source}: preprocessor_config.json"
    readings = list(_read_fields(processor, where))
    for preprocessing in readings:
        if _makes_same_pixels(processor, preprocessing):
            return preprocessing
    raise BadInput(
        f"{where}: {type(processor).__name__} makes other pixels than this package can, by {_suspect(processor)}; "
        "expected a resize to a square or to a short side, a centre crop to a square, and a normalisation"
    )


def _read_fields(processor: Any, where: str) -> Iterator[Preprocessing]:
    """Yield what the fields of a processor may mean, the usual first."""
    sides = {name: value for name, value in dict(processor.size or {}).items() if value}
    crop = dict(getattr(processor, "crop_size", None) or {}) if getattr(processor, "do_center_crop", False) else {}
    short = sides.get("shortest_edge")
    resized = short or (sides.get("height") if sides.get("height") == sides.get("width") else None)
    cropped = crop.get("height") if crop else resized
    if not resized or not cropped or (crop and cropped != crop.get("width")):
        raise BadInput(f"{where}: size {sides} with crop {crop} does not give square images")
    mean, std = _read_colours(processor)
    resample = getattr(processor, "resample", _BICUBIC)
    name = Image.Resampling(_BILINEAR if resample is None else resample).name.lower()
    share = getattr(processor, "crop_pct", None)
    for fit, side in (
        ("crop" if short else "stretch", resized),
        ("crop", int(resized / share) if share else 0),
        ("crop", int(256 / 224 * resized)),
        ("stretch", resized),
    ):
        if cropped <= side <= 4 * cropped:
            unusual = {"resized": side if side != cropped else 0, "resample": name}
            yield Preprocessing(size=int(cropped), mean=mean, std=std, fit=fit, **unusual)  # type: ignore[arg-type]


def _read_colours(processor: Any) -> tuple[Any, Any]:
    """Return mean and standard deviation of pixels from 0 to 1 that rescale and normalise as the processor does."""
    scale = 255 * processor.rescale_factor if getattr(processor, "do_rescale", True) else 255.0
    offset = 1.0 if getattr(processor, "rescale_offset", False) and getattr(processor, "do_rescale", True) else 0.0
    again = getattr(processor, "include_top", False)  # EfficientNet divides by the deviation twice

    def three(name: str, default: float) -> np.ndarray:
        value = getattr(processor, name, None)
        return np.broadcast_to(np.asarray(default if value is None else value, np.float64), 3)

    normalised = getattr(processor, "do_normalize", True)
    mean, std = (three("image_mean", 0), three("image_std", 1)) if normalised else (np.zeros(3), np.ones(3))
    std = std * three("image_std", 1) if again else std
    return tuple(((mean + offset) / scale).tolist()), tuple((std / scale).tolist())


def _makes_same_pixels(processor: Any, preprocessing: Preprocessing) -> bool:
    size, generator = preprocessing.size, np.random.default_rng(0)
    for shape in ((size * 5 // 4 + 3, size * 7 // 4 + 1, 3), (size * 2 + 1, size + size // 3, 3)):
        picture = generator.integers(0, 256, shape, np.uint8)
        found = normalise(resize_image(picture, preprocessing), preprocessing)
        try:
            (pixels,) = np.asarray(processor(images=Image.fromarray(picture), return_tensors="np")["pixel_values"])
        # Processors raise many kinds of error for what their fields leave open.
        except Exception:
            return False
        expected = np.moveaxis(pixels, 0, -1)
        if found.shape != expected.shape or np.abs(found - expected).mean() > _DIFFERENCE * np.abs(expected).mean():
            return False
    return True


def _suspect(processor: Any) -> str:
    """Return the fields that may make the difference."""
    names = [name for name in ("do_resize", "do_center_crop") if getattr(processor, name, None) is False]
    entries = processor.to_dict().items()
    names += [name for name, value in entries if name not in _READ_FIELDS and value not in (None, False)]
    return ", ".join(f"{name}={getattr(processor, name, None)!r:.40}" for name in names) or "its class"


def _choose_pooling(
    source: str, model: Any, preprocessing: Preprocessing, absent: frozenset[str]
) -> tuple[Pooling, int]:
    """Return the model's pooling and the width of its features."""
    pooling: Pooling = "projection" if hasattr(model, "get_image_features") else "pooler"
    black = np.zeros((1, preprocessing.size, preprocessing.size, 3), np.float32)
    try:
        output = _run(model, black, pooling)
        if pooling == "pooler" and (getattr(output, "pooler_output", None) is None or absent):
            # A pooler missing from the checkpoint has random weights, different at every start.
            pooling = "mean"
        return pooling, _pool(output, pooling).shape[1]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise BadInput(
            f"{TRANSFORMERS}{source}: {type(model).__name__} cannot encode images without text ({one_line(error)}); "
            "expected a model with a separate vision tower"
        ) from error


def _run(model: Any, images: np.ndarray, pooling: Pooling, values: np.ndarray | None = None) -> Any:
    """Run a model on normalised images, or on uint8 pixels, of which `values` [256, 3] are the normalised ones."""
    import torch

    # A writable copy in torch's order: [case, channel, height, width].
    channels_first = np.array(np.moveaxis(np.asarray(images), -1, 1), order="C")
    pixel_values = torch.from_numpy(channels_first).to(next(model.parameters()).device)
    if values is not None and pixel_values.dtype == torch.uint8:
        table = torch.from_numpy(values).to(pixel_values.device)
        pixel_values = torch.stack([table[pixel_values[:, channel].long(), channel] for channel in range(3)], 1)
    pixel_values = pixel_values.float()
    with torch.inference_mode():
        if pooling == "projection":
            return model.get_image_features(pixel_values=pixel_values)
        return model(pixel_values=pixel_values)


def _pool(output: Any, pooling: Pooling) -> np.ndarray:
    if pooling == "mean":
        states = output.last_hidden_state
        pooled = states.mean(dim=1) if states.ndim == 3 else states.flatten(2).mean(dim=2)
    else:
        pooled = output if hasattr(output, "numpy") else output.pooler_output
        if pooled.ndim == 3:  # FLAVA projects every token; the first is the image's
            pooled = pooled[:, 0]
        pooled = pooled.flatten(1)
    return pooled.float().cpu().numpy()


def _num_patches(config: Any, size: int) -> int | None:
    """Return the number of patches of an image of `size` pixels, whatever size the model was trained at."""
    vision = getattr(config, "vision_config", None) or getattr(config, "image_config", None) or config
    patch_size = getattr(vision, "patch_size", None)
    return (size // patch_size) ** 2 if isinstance(patch_size, int) else None


def _digest(weights: Mapping[str, Any], model_class: str, pooling: str) -> str:
    digest = hashlib.sha256(f"{model_class} {pooling}".encode())
    for name, tensor in sorted(weights.items()):
        values = np.ascontiguousarray(tensor.cpu().numpy())
        digest.update(f" {name!r} {values.dtype.str} {values.shape} ".encode())
        digest.update(values.data)
    return digest.hexdigest()


def load_encoder(weights: str, dtype: str) -> FrozenImageEncoder:
    """Load an encoder of this package, or with the prefix "transformers:" one of transformers in PyTorch."""
    if weights.startswith(TRANSFORMERS):
        return load_transformers_encoder(weights.removeprefix(TRANSFORMERS))
    import jax.numpy as jnp  # here and below: an encoder in PyTorch needs neither

    from stepcot_jax.encoders.load import load_image_encoder

    return load_image_encoder(weights, dtype=jnp.dtype(dtype))
