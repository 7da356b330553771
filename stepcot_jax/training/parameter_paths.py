"""Parameter trees as tensors with '/'-joined paths, and back; paths may come from files that nobody vouches for."""

from collections.abc import Mapping
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten

LONGEST_NAME = 1000
MOST_PARTS = 32
"""Most characters and most '/'-separated parts of a tensor's name; ours have at most 64 and 7."""


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
