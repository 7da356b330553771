"""The state of training: one tree of everything that updates change, saved in checkpoints."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import flax.struct
import jax
import numpy as np
from jaxtyping import Array

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten

if TYPE_CHECKING:
    import optax

Params = dict[str, Any]


class TrainState(flax.struct.PyTreeNode):
    """State of a run between two updates.

    Attributes:
      step: int32 scalar, updates since the start of the run.
      params: by part, such as "teacher", "student" or "image_encoder".
      optimizers: optimizer states by network, and the states of schedules.
      key: data of the run's random key, uint32; the keys of an update are folded from it and `step`.
    """

    step: Array
    params: Params
    optimizers: "dict[str, optax.OptState]"
    key: Array

    def key_of_update(self) -> Array:
        """Return the random key of the next update."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.step)


def apply_gradients(
    state: TrainState, network: str, optimizer: "optax.GradientTransformation", gradients: Params
) -> TrainState:
    """Return the state after one network's optimizer has applied its gradients; `step` stays.

    Args:
      state: of a run.
      network: name of the optimizer in `state.optimizers`.
      optimizer: what made that state.
      gradients: by the names in `state.params` that it trains.
    """
    import optax  # here, as it takes 0.2 s and readers of checkpoints do not need it

    trained = {name: state.params[name] for name in gradients}
    updates, optimizer_state = optimizer.update(gradients, state.optimizers[network], trained)
    params: Params = {**state.params, **optax.apply_updates(trained, updates)}
    return state.replace(params=params, optimizers={**state.optimizers, network: optimizer_state})


def put_given(params: Any, given: Any) -> Any:
    """Return parameters with some replaced by given arrays, cast to their dtypes and put on their devices.

    Each array is awaited before the next is read: transfers are asynchronous and hold the cast shares on the host.
    """
    if not isinstance(given, dict):
        if given.shape != params.shape:
            raise ValueError(f"given: shape {given.shape} does not fit {params.shape}")
        values = np.asarray(given)
        placed = jax.make_array_from_callback(
            params.shape, params.sharding, lambda index: values[index].astype(params.dtype)
        )
        return jax.block_until_ready(placed)
    if unknown := sorted(given.keys() - params.keys()):
        raise ValueError(f"given: {unknown[0]!r} is not among {', '.join(sorted(params))}")
    return {name: put_given(part, given[name]) if name in given else part for name, part in params.items()}


def count_parameters(params: Any) -> int:
    """Return the number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a state or of a checkpoint's metadata, without the random key."""
    shapes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        if name != "key":
            shapes[name] = tuple(leaf.shape)
    return shapes


def refuse_misfit(where: str, tree: Any, expected: Any, *, source: str) -> None:
    """Refuse a tree whose arrays have other names or shapes than those that `source` needs; `where` names the tree."""
    found, needed = shapes_by_name(tree), shapes_by_name(expected)
    other = sorted(name for name in found.keys() | needed.keys() if found.get(name) != needed.get(name))
    if other:
        name = other[0]
        raise BadInput(
            f"{where}, {name}: {found.get(name, 'missing')} does not fit {source}, which needs "
            f"{needed.get(name, 'no such tensor')}; {len(other)} tensors differ"
        )


# Parameter trees as tensors with '/'-joined paths, and back; paths may come from untrusted files.


LONGEST_NAME = 1000
MOST_PARTS = 32
"""Limits of a tensor's name, in characters and in '/'-separated parts; ours have at most 64 and 7."""


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of nested mappings by their '/'-joined paths.

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a/b': 1, 'c': 2}
    """
    leaves: dict[str, Any] = {}
    _flatten(tree, "", 0, leaves)
    return leaves


def _flatten(tree: Mapping[str, Any], prefix: str, depth: int, leaves: dict[str, Any]) -> None:
    for name, leaf in tree.items():
        path = f"{prefix}{name}"
        if depth == MOST_PARTS or len(path) > LONGEST_NAME:
            raise _bad_name(path)
        if isinstance(leaf, Mapping):
            _flatten(leaf, f"{path}/", depth + 1, leaves)
        else:
            leaves[path] = leaf


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings from '/'-joined paths; the inverse of `flatten`.

    >>> unflatten({"a/b": 1, "c": 2})
    {'a': {'b': 1}, 'c': 2}
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        if len(path) > LONGEST_NAME or path.count("/") >= MOST_PARTS:
            raise _bad_name(path)
        *parents, name = path.split("/")
        node: Any = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise BadInput(f"{shorten(path)}: {parent!r} is a tensor itself; expected names that nest")
        if name in node:
            raise BadInput(f"{shorten(path)} is a tensor and a group of tensors; expected names that nest")
        node[name] = leaf
    return tree


def _bad_name(path: str) -> BadInput:
    return BadInput(
        f"{shorten(path)}: a name of {len(path)} characters and {path.count('/') + 1} parts; at most {LONGEST_NAME} "
        f"and {MOST_PARTS} are accepted"
    )


def require_counts(params: Any, stated: Mapping[str, tuple[int, str]]) -> None:
    """Refuse layers or steps that a file states in other numbers than the tensors have; laying them out takes hours.

    Args:
      stated: by file and key, the number, and the pattern of a tensor's path whose group is the number of its part.
    """
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    for where, (number, pattern) in stated.items():
        held = len({match[1] for path in paths if (match := re.match(pattern, path))})
        if number != held:
            raise BadInput(f"{where}: {number}, but the tensors have {held}")
