"""The encoders that baselines are made of: the config's own, those a user names, and small ones without weights."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepcot_jax.encoders.checkpoint_files import has_text_encoder, resolve
from stepcot_jax.features.spec import DESCRIPTION_FILE
from stepcot_jax.features.transformers_encoder import PREFIX
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.tables.cells import Cell, Cells

TRAINED_ALONG, OF_TEACHER, RANDOM = "trained along", "from the teacher, frozen", "random ViT, frozen"

_RANDOM_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
    "projection_dim": 128,
}


@dataclasses.dataclass(frozen=True)
class Encoder:
    """An image encoder as a baseline uses it.

    Attributes:
      name: for the tables.
      changes: of the settings, see `cells.vary`.
      prepare: makes what the settings name; None where it is there.
      note: what a reader must know of it; "" for nothing.
    """

    name: str
    changes: Mapping[str, Any]
    prepare: Callable[[], None] | None = None
    note: str = ""


def list_encoders(settings: Settings, cells: Cells, main: Cell, named: Mapping[str, str]) -> list[Encoder]:
    """The encoders for a config.

    A config with a frozen encoder has that one. A config whose encoder is trained along has it trained along with the
    baseline, as the teacher left it (frozen), and a vision transformer with random weights as the floor. Those that the
    user names come after.

    Args:
      settings: of the config.
      cells: where the runs and what is made for them are.
      main: the cell whose teacher leaves an encoder.
      named: by name, a folder or id of weights, or a folder of imported features.
    """
    own = settings.image_encoder
    if own.is_frozen:
        encoders = [Encoder(pathlib.PurePath(own.weights).name or own.weights, {})]
    else:
        folder = cells.workdir / "encoders"
        of_teacher, random = folder / f"teacher-{cells.digest(main)}", folder / "random"
        encoders = [
            Encoder(f"{own.name}, {TRAINED_ALONG}", {}),
            Encoder(
                f"{own.name}, {OF_TEACHER}",
                _imported(of_teacher),
                prepare=lambda: make_teacher_features(main, cells, of_teacher),
                note="The frozen encoder from the teacher was trained with all steps, so that its row without steps "
                "has learned from them too.",
            ),
            Encoder(
                RANDOM,
                _pretrained(random),
                prepare=lambda: write_random_encoder(random),
                note="The random vision transformer is untrained: what an encoder must beat.",
            ),
        ]
    for name, weights in named.items():
        if name in {encoder.name for encoder in encoders}:
            raise BadInput(f"--encoders: found {name!r} twice, accepted is each name once")
        encoders.append(_with_own_text(name, weights, settings))
    return encoders


def _with_own_text(name: str, weights: str, settings: Settings) -> Encoder:
    """An encoder that a user names: its texts are its own where it has some, and otherwise the config's."""
    folder = pathlib.Path(weights)
    prompts: dict[str, Any] = {}
    if (folder / "images" / DESCRIPTION_FILE).is_file():
        changes, whose = _imported(folder), "imported with the images' features"
        if (folder / "prompts" / DESCRIPTION_FILE).is_file():
            prompts = {"prompts.encoder": "imported", "prompts.weights": ""}
    else:
        changes, whose = _pretrained(weights), "by the text encoder of the same checkpoint"
        if not weights.startswith(PREFIX) and has_text_encoder(resolve(weights)):
            prompts = {"prompts.encoder": "pretrained", "prompts.weights": weights, "prompts.pooling": "cls"}
    if not prompts:
        if settings.prompts.encoder == "imported":
            raise BadInput(
                f"--encoders: found {name!r}, which has no text features of its own, with "
                "config.prompts.encoder='imported', accepted are encoders that have some, or 'hashed' or 'pretrained'"
            )
        whose = f"those of the config ({settings.prompts.weights or settings.prompts.encoder})"
    return Encoder(name, {**changes, **prompts}, note=f"Text vectors of {name}: {whose}.")


def _imported(folder: pathlib.Path | str) -> dict[str, Any]:
    # Whoever made the features did what is done to the images: what an encoder of our own would be told is left out.
    return {"image_encoder.name": "imported", "image_encoder.weights": str(folder), "data.augment": "none"}


def _pretrained(weights: pathlib.Path | str) -> dict[str, Any]:
    return {"image_encoder.name": "pretrained", "image_encoder.weights": str(weights), "data.augment": "none"}


def make_teacher_features(main: Cell, cells: Cells, folder: pathlib.Path) -> None:
    """The features of all cases by the image encoder that the teacher of a finished cell was trained with.

    Args:
      main: the cell.
      cells: where it is.
      folder: of the feature store; one that is there stays.
    """
    if (folder / "images" / DESCRIPTION_FILE).is_file():
        return
    import jax

    from stepcot_jax.data.loading import load_dataset
    from stepcot_jax.features.importing import import_features
    from stepcot_jax.features.inputs import trained_preprocessing
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.systems.networks import encode_images
    from stepcot_jax.tables.cell_networks import load_weights

    trained = load_weights(cells.folder(main), ("teacher",))
    dataset = load_dataset(main.settings, preprocessing=trained_preprocessing(main.settings), progress=Terminal().watch)
    encode = jax.jit(lambda params, images: encode_images(trained.networks, params, {"images": images}))
    size, features = main.settings.evaluation.batch_size, []
    for start in range(0, len(dataset.cases), size):
        images = read_images(dataset, range(start, min(start + size, len(dataset.cases))), num_rows=size)
        features.append(np.asarray(encode(trained.params["teacher"], images)))
    rows = np.concatenate(features)[: len(dataset.cases)]
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a start that was interrupted
    partial.mkdir(parents=True)
    path = partial / "features.npz"
    np.savez(path, features=rows, ids=np.array([case.image_path for case in dataset.cases]))
    import_features(path, None, dataset.cases, partial)
    path.unlink()
    partial.rename(folder)


def read_images(dataset: Any, indices: range, *, num_rows: int) -> np.ndarray:
    """Normalised images float32 [row, size, size, 3] of some cases; rows beyond them repeat the last."""
    from stepcot_jax.data.images.preprocessing import normalise

    pixels = [dataset.pixels[index] for index in indices]
    return normalise(np.stack(pixels + [pixels[-1]] * (num_rows - len(pixels))), dataset.preprocessing)


def write_random_encoder(folder: pathlib.Path, *, seed: int = 0) -> None:
    """A small CLIP image tower with random weights, in the files that a user would bring.

    Args:
      folder: made unless it is there; weights that are there stay.
      seed: of the weights.
    """
    from safetensors.numpy import save_file

    from stepcot_jax.encoders.architecture import recognise
    from stepcot_jax.encoders.assignment import LAYOUTS

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
    for name, place in architecture.table.items():
        target = shapes[place.path].shape
        shape = LAYOUTS[place.layout].shape_before((*target[:-1], target[-1] // place.parts))
        tensors[name] = np.ascontiguousarray(_draw(rng, place.path.rpartition("/")[2], shape))
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial)
    partial.replace(weights)


def _draw(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Weights that keep the size of what passes through; scales are 1 and biases 0."""
    if kind in ("scale", "bias"):
        return np.full(shape, float(kind == "scale"), np.float32)
    deviation = float(np.prod(shape[1:])) ** -0.5 if kind == "kernel" else 1.0
    return (deviation * rng.standard_normal(shape)).astype(np.float32)
