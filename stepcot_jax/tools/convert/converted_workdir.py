"""A workdir from converted parameters: predict, demo, explain, export and `start.checkpoint` read it like a run's."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.sources.csv_table import read_chain
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.encoders import weights
from stepcot_jax.export.authors import NETWORKS, find_sizes, from_torch_networks
from stepcot_jax.host.array_files import save_safetensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, make_new_folder, write_whole, writing_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.run.inputs import encode_prompts
from stepcot_jax.run.networks import load_frozen_encoder, make_networks
from stepcot_jax.run.settings import Settings, load_settings, write_settings
from stepcot_jax.run.stored_reading import CONVERTED_FILE, write_reading
from stepcot_jax.systems.networks import init_params
from stepcot_jax.training.checkpoints import Checkpoints
from stepcot_jax.training.state import Params, TrainState, flatten

_Tensors = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings that a checkpoint of the authors' code lacks."""

    config: str
    chain: pathlib.Path
    root: str
    image_encoder: str = ""
    text_encoder: str = ""


def write_workdir(workdir: pathlib.Path, networks: _Tensors, recipe: Recipe, *, source: pathlib.Path) -> dict[str, Any]:
    """Write converted networks as the workdir of a run that was not trained here; an error leaves no folder."""
    if "teacher" not in networks:
        raise BadInput(f"{source}: found {', '.join(networks)}; a workdir needs the teacher's tensors")
    sizes = find_sizes(networks)
    converted = from_torch_networks(networks)
    settings, chain = _read_recipe(recipe, sizes, converted)
    _check_chain(chain, sizes, recipe)
    make_new_folder(workdir)
    try:
        content = _write(workdir, converted, settings, chain, source=source)
        load_trained(workdir)
    except BaseException:
        shutil.rmtree(workdir)
        raise
    return content


def _read_recipe(recipe: Recipe, sizes: Mapping[str, int], converted: Params) -> tuple[Settings, Chain]:
    """Return settings with the sizes of the tensors, and the chain."""
    changes: dict[str, Any] = {
        "job": "distill" if "student" in converted else "teacher",
        "data.source": "folder",
        "data.root": recipe.root,
        "teacher.width": sizes["teacher_width"],
        "teacher.num_heads": sizes["num_heads"],
        "teacher.num_layers": sizes["num_layers"],
        "teacher.memory": "memory_start" in converted["teacher"],
        "teacher.write_back": "memory_start" in converted["teacher"],
        "teacher.text": True,
    }
    changes |= {"student.width": sizes["student_width"]} if "student_width" in sizes else {}
    changes |= {"loss.projection_width": sizes["projection_width"]} if "projection_width" in sizes else {}
    changes |= {"image_encoder.weights": recipe.image_encoder} if recipe.image_encoder else {}
    changes |= {"prompts.weights": recipe.text_encoder} if recipe.text_encoder else {}
    if recipe.chain.is_file():
        chain = read_chain(recipe.chain)
        changes["data.step_names"] = tuple(step.name for step in chain.steps)
        return _load_settings(recipe, changes), chain
    settings = _load_settings(recipe, changes)
    data = settings.data
    collection = read_source(
        recipe.chain,
        layout=data.layout,
        step_names=data.step_names,
        on_bad_record=data.on_bad_record,
        require_images=False,
        single_label=data.single_label,
        labels_from=data.labels_from,
    )
    return settings, collection.chain


def _load_settings(recipe: Recipe, changes: Mapping[str, Any]) -> Settings:
    try:
        return load_settings(recipe.config, **changes)
    except BadInput as error:
        if recipe.image_encoder and recipe.text_encoder:
            raise
        raise BadInput(f"{error}; --image-encoder and --text-encoder name the frozen encoders") from None


def _check_chain(chain: Chain, sizes: Mapping[str, int], recipe: Recipe) -> None:
    if chain.num_steps != sizes["num_steps"]:
        raise BadInput(f"{recipe.chain}: {chain.num_steps} steps; the tensors have {sizes['num_steps']}")
    for index, step in enumerate(chain.steps):
        if step.num_answers != sizes[f"answers_{index}"]:
            raise BadInput(
                f"{recipe.chain}, step {step.name!r}: {step.num_answers} options; the tensors have "
                f"{sizes[f'answers_{index}']} answers"
            )


def _write(
    workdir: pathlib.Path, converted: Params, settings: Settings, chain: Chain, *, source: pathlib.Path
) -> dict[str, Any]:
    if not settings.image_encoder.is_frozen or settings.image_encoder.name == "imported":
        raise BadInput(
            f"config.image_encoder.name: {settings.image_encoder.name!r}; expected 'pretrained': the authors' networks "
            "read the features of a frozen encoder"
        )
    encoder = load_frozen_encoder(settings)
    text = encode_prompts(settings, workdir, Terminal(), chain)
    networks = make_networks(settings, chain, None)
    batch = {"image_features": jnp.zeros((1, encoder.width))}
    fresh = jax.device_get(
        init_params(networks, key=jax.random.key(settings.seed), batch=batch, text_features=jnp.asarray(text))
    )
    missing = [ours for ours in NETWORKS.values() if ours not in converted]
    params = {name: converted.get(name, fresh[name]) for name in fresh}
    write_settings(workdir / "settings.json", settings)
    trained_on = f"data of its authors (converted from {source.name})"
    write_reading(workdir, chain, text, encoder_digest=encoder.digest, trained_on=trained_on)
    content: dict[str, Any] = {"source": source.name, "sha256": digest_file(source)[1], "fresh": missing}
    write_whole(workdir / CONVERTED_FILE, (json.dumps(content, indent=2) + "\n").encode())
    state = TrainState(np.int32(0), params, {}, np.asarray(jax.random.key_data(jax.random.key(settings.seed))))
    checkpoints = Checkpoints(workdir / "checkpoints")
    checkpoints.save(state, {"batches": {}, "metrics": {}, "seconds": 0.0, "data": ""}, {})
    checkpoints.wait()
    checkpoints.close()
    return content


# Files of named tensors: .safetensors and, with torch installed, .pt and .pth.


TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Read tensors by name; names of nested mappings are joined with '/'."""
    _check_suffix(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix == ".safetensors":
        return dict(weights.read_tensors(path))
    content = weights.load_torch(path)
    if not isinstance(content, Mapping):
        raise BadInput(f"{path} holds a {type(content).__name__}; expected a state_dict or a dict of them")
    return {name: weights.to_numpy(leaf) for name, leaf in flatten(content).items()}


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], *, overwrite: bool = False) -> None:
    """Write named tensors atomically."""
    check_destination(path, overwrite=overwrite)
    with writing_whole(path) as file:
        if path.suffix in TORCH_SUFFIXES:
            _write_torch(path, file, tensors)
        else:
            save_safetensors(file.name, tensors)  # by name: a file object would need twice the memory


def check_destination(path: pathlib.Path, *, overwrite: bool) -> None:
    """Check a destination of `write_tensors` before long work."""
    _check_suffix(path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; choose another name, or pass --force to replace a file")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: the folder {path.parent} does not exist")
    if path.suffix in TORCH_SUFFIXES:
        weights.import_torch(path)


def _check_suffix(path: pathlib.Path) -> None:
    if path.suffix not in SUFFIXES:
        raise BadInput(f"{path}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}")


def _write_torch(path: pathlib.Path, file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> None:
    torch = weights.import_torch(path)
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        network, _, rest = name.rpartition("/")
        # Arrays from JAX are read-only, torch tensors cannot be.
        tensor = torch.from_numpy(np.array(array))
        (tree.setdefault(network, {}) if network else tree)[rest] = tensor
    torch.save(tree, file)
