"""Encoders of the baselines: the config's own, those that the user names, and ones without downloaded weights."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepcot_jax.encoders.checkpoints import IMPORT_FEATURES, has_text_encoder, resolve
from stepcot_jax.features.importing import IMPORTED, PROMPTS
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_folder
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
                lambda: cells.make_folder(of_teacher, lambda folder: _make_teacher_features(main, cells, folder)),
                "The frozen encoder from the teacher was trained with all steps: its row without steps has "
                "learned from them too.",
            ),
            Encoder(
                RANDOM,
                _frozen("pretrained", cells.name(random)),
                lambda: cells.make_folder(random, write_random_encoder),
                "The random vision transformer is untrained: the floor for an encoder.",
            ),
        ]
    for name, weights in named.items():
        if name in {encoder.name for encoder in encoders}:
            raise BadInput(f"--encoders: {name!r} comes twice or is the name of a baseline")
        encoders.append(_make_named(name, weights, settings))
    return encoders


def _make_named(name: str, weights: str, settings: Settings) -> Encoder:
    """Return an encoder that the user names, with its own text features if it has any, else the config's."""
    is_torch, changes, prompts = weights.startswith(TRANSFORMERS), _frozen("pretrained", weights), dict[str, Any]()
    is_remote = is_address(weights) and not is_torch
    folder = find_path(weights, "--encoders") if is_remote else pathlib.Path(weights)
    whose = f"those of the config ({settings.prompts.weights or settings.prompts.encoder})"
    if (folder / IMPORTED).is_file():
        changes = _frozen("imported", weights if is_remote else str(folder))
        if (folder / PROMPTS).is_file():
            whose = "imported with the images' features"
            prompts = {"prompts.encoder": "imported", "prompts.weights": ""}
    elif not is_torch and has_text_encoder(resolve(weights, alternative=IMPORT_FEATURES)):
        whose = "by the text encoder of the same checkpoint"
        prompts = {"prompts.encoder": "pretrained", "prompts.weights": weights, "prompts.pooling": "cls"}
    if not prompts and settings.prompts.encoder == "imported":
        raise BadInput(
            f"--encoders: {name!r} has no text features of its own, which config.prompts.encoder='imported' "
            "requires; use 'hashed' or 'pretrained'"
        )
    return Encoder(name, {**changes, **prompts}, note=f"Text vectors of {name}: {whose}.")


def _frozen(kind: str, weights: str) -> dict[str, Any]:
    return {"image_encoder.name": kind, "image_encoder.weights": weights, "data.augment": "none"}


def _make_teacher_features(main: Cell, cells: Cells, folder: pathlib.Path) -> None:
    """Store the features of all cases from the image encoder that a finished cell's teacher trained, once."""
    if (folder / IMPORTED).is_file():
        return
    from stepcot_jax.data.images.preprocessing import normalise
    from stepcot_jax.features.importing import import_features
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.run.loading import load_dataset
    from stepcot_jax.run.networks import trained_preprocessing
    from stepcot_jax.systems.networks import encode_in_parts
    from stepcot_jax.tools.tables.cell_networks import load_weights

    trained = load_weights(cells.folder(main), ("teacher",))
    dataset = load_dataset(main.settings, preprocessing=trained_preprocessing(main.settings), progress=Terminal().watch)
    size, features = main.settings.evaluation.batch_size, []
    for start in range(0, len(dataset.cases), size):
        pixels = [dataset.pixels[case] for case in range(start, min(start + size, len(dataset.cases)))]
        images = normalise(np.stack(pixels), dataset.preprocessing)
        features.append(encode_in_parts(trained.networks, trained.params["teacher"], {"images": images}, size=size))
    with writing_folder(folder) as partial:
        path = partial / "features.npz"
        np.savez(path, features=np.concatenate(features), ids=np.array([case.image for case in dataset.cases]))
        import_features(path, None, dataset.cases, partial)
        path.unlink()


def write_random_encoder(folder: pathlib.Path) -> None:
    """Write a small CLIP image tower with random weights as a checkpoint folder."""
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
    rng = np.random.default_rng(0)
    tensors = {}
    for name, destination in architecture.table.items():
        target = shapes[destination.path].shape
        shape = LAYOUTS[destination.layout].shape_before((*target[:-1], target[-1] // destination.parts))
        tensors[name] = np.ascontiguousarray(_draw(rng, destination.path.rpartition("/")[2], shape))
    partial = folder / "model.safetensors.partial"
    save_safetensors(partial, tensors)
    partial.replace(weights)


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights that preserve the scale of activations; scales are 1 and biases 0."""
    if kind in ("scale", "bias"):
        return np.full(shape, float(kind == "scale"), np.float32)
    deviation = float(np.prod(shape[1:])) ** -0.5 if kind == "kernel" else 1.0
    return (deviation * rng.standard_normal(shape)).astype(np.float32)
