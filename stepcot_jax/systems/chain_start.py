"""Weights that a run starts from: the teacher of a finished run on the same data (`policy.start`)."""

import pathlib

import jax
import jax.numpy as jnp

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.store_cache import find_workdir
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.stored_settings import changed_keys, read_settings
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.state import Params

_KEY = "config.policy.start"
_SAME = tuple(f"config.{section}." for section in ("data", "phantom", "image_encoder", "prompts", "teacher"))
_MAY_DIFFER = ("config.data.sampling", "config.data.augment")


def read_start(workdir: str, settings: Settings) -> Params:
    """Read the best teacher of a run, and the image encoder trained with it.

    The data must be the same, with the same splits: a test case must not have been a training case of the start.
    """
    found = find_workdir(workdir, _KEY)
    try:
        if not found.is_dir():
            raise BadInput(f"{workdir} is not a folder; expected the workdir of a run with a teacher")
        return _read_teacher(found, settings, name=workdir)
    except BadInput as error:
        raise BadInput(f"{_KEY}: {error}") from None


def _read_teacher(workdir: pathlib.Path, settings: Settings, *, name: str) -> Params:
    """Return the weights of a run's best teacher; `name` of the workdir is for messages."""
    before = read_settings(workdir / "settings.json")
    changed = [key for key in changed_keys(before, settings) if key.startswith(_SAME) and key not in _MAY_DIFFER]
    if changed:
        raise BadInput(
            f"{name} has other values of {', '.join(changed)}; expected a run with the same data and networks"
        )
    folder = workdir / "checkpoints"
    latest, best = read_best(folder)
    params = restore_params(folder, best["teacher"].step if "teacher" in best else latest)
    if "teacher" not in params:
        raise BadInput(f"{name} has no teacher; it trained {', '.join(sorted(params))}")
    parts = [part for part in ("teacher", "image_encoder") if part in params]
    return {part: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params[part]) for part in parts}


def check_same_shapes(found: Params, expected: Params) -> Params:
    """Return weights that fit the networks."""
    shapes = [
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (found, expected)
    ]
    differing = sorted(
        path for path in shapes[0].keys() | shapes[1].keys() if shapes[0].get(path) != shapes[1].get(path)
    )
    if differing:
        path = differing[0]
        raise BadInput(
            f"{_KEY}: {path} is {shapes[0].get(path, 'missing')}; expected "
            f"{shapes[1].get(path, 'no such tensor')}; {len(differing)} tensors differ"
        )
    return found
