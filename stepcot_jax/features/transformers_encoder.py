"""Any vision or vision-language model of transformers as a frozen image encoder in PyTorch (extra `torch`).

torch and transformers are imported when an encoder is loaded.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra, one_line

TRANSFORMERS = "transformers:"  # prefix of the folder or Hugging Face id of an encoder that runs in PyTorch
Pooling = Literal["projection", "pooler", "mean"]
_LOGGER = logging.getLogger(__name__)
_BICUBIC = 3


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

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Return features float32 [case, width] of normalised images float32 [case, height, width, 3]."""
        return _pool(_run(self.model, images, self.pooling), self.pooling)

    def encode_patches(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features [case, width] and patch tokens [case, patch, width] of the last layer."""
        output = _run(self.model, images, self.pooling)
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

    try:
        model, loading = transformers.AutoModel.from_pretrained(
            source, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
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


def read_preprocessing(source: str) -> Preprocessing:
    """Return a model's image preprocessing."""
    import transformers

    try:
        processor = transformers.AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        raise BadInput(
            f"{TRANSFORMERS}{source}: no image processor ({one_line(error)}); expected preprocessor_config.json"
        ) from error
    where = f"{TRANSFORMERS}{source}: preprocessor_config.json"
    if not getattr(processor, "do_rescale", True) or abs(processor.rescale_factor * 255 - 1) > 1e-3:
        raise BadInput(f"{where}: pixels must be scaled by 1/255")
    normalised = getattr(processor, "do_normalize", True)
    size, fit = _read_size(processor, where)
    if getattr(processor, "resample", _BICUBIC) != _BICUBIC:
        _LOGGER.warning(
            "%s: resampling %s is not supported; images are resampled bicubically", where, processor.resample
        )
    return Preprocessing(
        size=size,
        mean=tuple(map(float, processor.image_mean)) if normalised else (0.0, 0.0, 0.0),  # type: ignore[arg-type]
        std=tuple(map(float, processor.image_std)) if normalised else (1.0, 1.0, 1.0),  # type: ignore[arg-type]
        fit=fit,
    )


def _read_size(processor: Any, where: str) -> tuple[int, Literal["crop", "stretch"]]:
    """Return the side in pixels, and how images become square."""
    sides = dict(processor.size)
    crop = dict(getattr(processor, "crop_size", None) or {}) if getattr(processor, "do_center_crop", False) else {}
    last = crop or sides
    short = last.get("shortest_edge")
    height, width = (last.get(name) or short for name in ("height", "width"))
    if height is None or height != width:
        raise BadInput(f"{where}: size {sides} with crop {crop} does not give square images")
    if not sides.get("shortest_edge"):
        return int(height), "stretch"
    if sides["shortest_edge"] != height:
        _LOGGER.warning(
            "%s: resizes the shorter side to %s and crops %s; here the shorter side is resized to %s and cropped to %s",
            *(where, sides["shortest_edge"], height, height, height),
        )
    return int(height), "crop"


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


def _run(model: Any, images: np.ndarray, pooling: Pooling) -> Any:
    import torch

    # A writable copy in torch's order: [case, channel, height, width].
    channels_first = np.array(np.moveaxis(np.asarray(images, np.float32), -1, 1), order="C")
    pixel_values = torch.from_numpy(channels_first).to(next(model.parameters()).device)
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
