"""Encoders of the baselines: the config's own, those that the user names, and ones without downloaded weights."""

import dataclasses
import functools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.encoders.checkpoints import IMPORT_FEATURES, has_text_encoder, resolve
from stepcot_jax.features.store import DESCRIPTION_FILE
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.sections import TRANSFORMERS
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, Cells

TRAINED_ALONG, OF_TEACHER, RANDOM = "trained along", "from the teacher, frozen", "random ViT, frozen"

_RANDOM_SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 64,
    "patch_size": 8, "projection_dim": 128,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Encoder:
    """An image encoder of a baseline."""

    name: str
    changes: Mapping[str, Any]  # of the settings, see `cells.vary`
    prepare: Callable[[], None] | None = None  # makes the files that the changes name; None if they exist
    note: str = ""  # for the table; "" for none


def list_encoders(settings: Settings, cells: Cells, main: Cell, named: Mapping[str, str]) -> list[Encoder]:
    """Return the encoders for a config.

    A config with a frozen encoder has that one. A config that trains its encoder has three: trained with the baseline,
    frozen after the teacher's training, and a vision transformer with random weights as the floor. The user's follow.
    """
    configured = settings.image_encoder
    if configured.is_frozen:
        encoders = [Encoder(pathlib.PurePath(configured.weights).name or configured.weights, {})]
    else:
        of_teacher, random = f"encoders/teacher-{cells.digest(main)}", "encoders/random"
        encoders = [
            Encoder(f"{configured.name}, {TRAINED_ALONG}", {}),
            Encoder(
                f"{configured.name}, {OF_TEACHER}",
                _frozen("imported", cells.name(of_teacher)),
                prepare=lambda: cells.make_folder(of_teacher, lambda out: _make_teacher_features(main, cells, out)),
                note="The frozen encoder from the teacher was trained with all steps: its row without steps has "
                "learned from them too.",
            ),
            Encoder(
                RANDOM,
                _frozen("pretrained", cells.name(random)),
                prepare=lambda: cells.make_folder(random, write_random_encoder),
                note="The random vision transformer is untrained: the floor for an encoder.",
            ),
        ]
    for name, weights in named.items():
        if name in {encoder.name for encoder in encoders}:
            raise BadInput(f"--encoders: {name!r} comes twice or is the name of a baseline")
        encoders.append(_make_named(name, weights, settings))
    return encoders


def _make_named(name: str, weights: str, settings: Settings) -> Encoder:
    """Return an encoder that the user names, with its own text features if it has any, else the config's."""
    folder, source = pathlib.Path(weights), str(pathlib.Path(weights))
    if is_address(weights) and not weights.startswith(TRANSFORMERS):
        source, folder = weights, find_path(weights, "--encoders")
    prompts: dict[str, Any] = {}
    if (folder / "images" / DESCRIPTION_FILE).is_file():
        changes, whose = _frozen("imported", source), "imported with the images' features"
        if (folder / "prompts" / DESCRIPTION_FILE).is_file():
            prompts = {"prompts.encoder": "imported", "prompts.weights": ""}
    else:
        changes, whose = _frozen("pretrained", weights), "by the text encoder of the same checkpoint"
        if not weights.startswith(TRANSFORMERS) and has_text_encoder(resolve(weights, alternative=IMPORT_FEATURES)):
            prompts = {"prompts.encoder": "pretrained", "prompts.weights": weights, "prompts.pooling": "cls"}
    if not prompts:
        if settings.prompts.encoder == "imported":
            raise BadInput(
                f"--encoders: {name!r} has no text features of its own, which config.prompts.encoder='imported' "
                "requires; use 'hashed' or 'pretrained'"
            )
        whose = f"those of the config ({settings.prompts.weights or settings.prompts.encoder})"
    return Encoder(name, {**changes, **prompts}, note=f"Text vectors of {name}: {whose}.")


def _frozen(kind: str, weights: str) -> dict[str, Any]:
    return {"image_encoder.name": kind, "image_encoder.weights": weights, "data.augment": "none"}


def _make_teacher_features(main: Cell, cells: Cells, folder: pathlib.Path) -> None:
    """Store the features of all cases from the image encoder that a finished cell's teacher trained, once."""
    if (folder / "images" / DESCRIPTION_FILE).is_file():
        return
    from stepcot_jax.data.images.preprocessing import normalise
    from stepcot_jax.features.importing import import_features
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.run.loading import load_dataset
    from stepcot_jax.run.networks import trained_preprocessing
    from stepcot_jax.systems.networks import encode_images
    from stepcot_jax.tools.tables.cell_networks import load_weights

    trained = load_weights(cells.folder(main), ("teacher",))
    dataset = load_dataset(main.settings, preprocessing=trained_preprocessing(main.settings), progress=Terminal().watch)
    encode = jax.jit(lambda params, images: encode_images(trained.networks, params, {"images": images}))
    size, features = main.settings.evaluation.batch_size, []
    for start in range(0, len(dataset.cases), size):
        pixels = [dataset.pixels[index] for index in range(start, min(start + size, len(dataset.cases)))]
        images = normalise(np.stack(pixels + [pixels[-1]] * (size - len(pixels))), dataset.preprocessing)
        features.append(np.asarray(encode(trained.params["teacher"], images)))
    rows = np.concatenate(features)[: len(dataset.cases)]
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an interrupted start
    partial.mkdir(parents=True)
    path = partial / "features.npz"
    np.savez(path, features=rows, ids=np.array([case.image for case in dataset.cases]))
    import_features(path, None, dataset.cases, partial)
    path.unlink()
    partial.rename(folder)


def write_random_encoder(folder: pathlib.Path, *, seed: int = 0) -> None:
    """Write a small CLIP image tower with random weights as a checkpoint folder."""
    from safetensors.numpy import save_file

    from stepcot_jax.encoders.checkpoints import recognise
    from stepcot_jax.encoders.weights import LAYOUTS

    weights = folder / "model.safetensors"
    if weights.is_file():
        return
    import flax.traverse_util

    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "clip_vision_model", **_RANDOM_SIZES}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    architecture = recognise(folder, {}, "float32")
    shapes = flax.traverse_util.flatten_dict(architecture.shapes(), sep="/")
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, destination in architecture.table.items():
        target = shapes[destination.path].shape
        shape = LAYOUTS[destination.layout].shape_before((*target[:-1], target[-1] // destination.parts))
        tensors[name] = np.ascontiguousarray(_draw(rng, destination.path.rpartition("/")[2], shape))
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial)
    partial.replace(weights)


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights that preserve the scale of activations; scales are 1 and biases 0."""
    if kind in ("scale", "bias"):
        return np.full(shape, float(kind == "scale"), np.float32)
    deviation = float(np.prod(shape[1:])) ** -0.5 if kind == "kernel" else 1.0
    return (deviation * rng.standard_normal(shape)).astype(np.float32)


# Encoders of the paper's Table 11 with random weights, whose cost does not depend on their values.


REFERENCES = ("ResNet18", "ResNet50", "DenseNet121", "CLIP")
"""Names in Table 11; this package has no EfficientNet-B3, FLAVA, BLIP or VisualBERT of its own."""

_IMAGE_SIZE = 224


@dataclasses.dataclass(frozen=True)
class Reference:
    """An encoder with random weights."""

    encode: Callable[[Any], jax.Array]  # normalised images float32 [case, size, size, 3] -> features [case, feature]
    size: int  # of the images in px
    num_parameters: int  # without BatchNorm's statistics and classifiers; of CLIP both towers, of which one is run


def make_reference(name: str) -> Reference:
    """Make one of `REFERENCES`, ready to run."""
    from stepcot_jax.encoders.load import count_parameters

    networks = _make_networks(name)
    num_parameters = sum(count_parameters(_shapes(network)) for network in networks)
    if name == "CLIP":
        num_parameters += 1  # the temperature of its training
    image = networks[0]
    params = jax.jit(image.init)(jax.random.key(0), jnp.zeros((1, _IMAGE_SIZE, _IMAGE_SIZE, 3)))["params"]
    encode = jax.jit(lambda params, images: image.apply({"params": params}, images)[0])
    return Reference(functools.partial(encode, params), _IMAGE_SIZE, num_parameters)


def _make_networks(name: str) -> list[nn.Module]:
    """Return the image network, and any others of its checkpoint."""
    from stepcot_jax.encoders.checkpoints import CLIP_TEXT_SIZES, CLIP_VISION_SIZES
    from stepcot_jax.encoders.torchvision_networks import FrozenDenseNet, make_frozen_resnet
    from stepcot_jax.encoders.transformer import CLIPText, VisionTransformer

    if name == "CLIP":  # ViT-B/32
        text = CLIPText(
            sizes=CLIP_TEXT_SIZES, vocabulary_size=49408, max_positions=77, end_token=49407, projected_width=512
        )
        return [VisionTransformer(CLIP_VISION_SIZES, _IMAGE_SIZE, 32, 512), text]
    if name == "DenseNet121":
        return [FrozenDenseNet()]
    return [make_frozen_resnet(name.lower(), "float32")]


def _shapes(network: nn.Module) -> Any:
    """Return the parameter tree with shapes as leaves; nothing is allocated."""
    from stepcot_jax.encoders.transformer import CLIPText

    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = [jax.ShapeDtypeStruct((1, _IMAGE_SIZE, _IMAGE_SIZE, 3), jnp.float32)]
    if isinstance(network, CLIPText):
        inputs = [jax.ShapeDtypeStruct((1, 2), dtype) for dtype in (jnp.int32, jnp.bool_)]
    return jax.eval_shape(network.init, key, *inputs)["params"]


def count_multiply_adds(function: Callable[..., Any], *inputs: Any) -> int:
    """Count the multiply-adds of the matrix products and convolutions of a function; nothing is computed.

    Results that nothing uses do not count, as XLA leaves them out. A loop of known length counts as often as it runs,
    one of unknown length once, and of a condition all branches. Twice the number is about the number of floating-point
    operations.

    >>> import jax.numpy as jnp
    >>> count_multiply_adds(lambda x: x @ jnp.ones((5, 7)), jax.ShapeDtypeStruct((3, 5), jnp.float32))
    105
    """
    jaxpr = jax.make_jaxpr(function)(*inputs).jaxpr
    return _count(jaxpr, [True] * len(jaxpr.outvars))


def _count(jaxpr: Any, used: Sequence[bool]) -> int:
    """Return the multiply-adds of a program; `used` tells for each output whether it is needed."""
    needed = {id(output) for output, is_used in zip(jaxpr.outvars, used, strict=True) if is_used}
    total = 0
    for equation in reversed(jaxpr.eqns):
        of_outputs = [id(output) in needed for output in equation.outvars]
        if any(of_outputs) or equation.effects:
            needed |= {id(variable) for variable in equation.invars}
            total += _count_equation(equation, of_outputs)
    return total


def _count_equation(equation: Any, used: Sequence[bool]) -> int:
    name, parameters = equation.primitive.name, equation.params
    size = sum(math.prod(output.aval.shape) for output in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        return size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, parameters["dimension_numbers"]
        # Of the kernel, all but its output channels is multiplied for each element of the output.
        return size * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
    total = 0
    for inner in _jaxprs(list(parameters.values())):
        is_call = name in ("jit", "pjit") and len(inner.outvars) == len(used)
        total += _count(inner, used if is_call else [True] * len(inner.outvars))
    return total * (parameters["length"] if name == "scan" else 1)


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [jaxpr for part in value for jaxpr in _jaxprs(part)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []
