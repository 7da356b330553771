"""Convert parameters between the authors' PyTorch networks and ours, by the table of `torch_names`.

Sizes are read from the tensors: every axis has a name ("teacher_width"), each tensor gives its length, and the majority
decides. So the refused tensor is the odd one out. Networks converted together must agree with one another.
"""

import collections
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stepcot_jax.convert.torch_names import NETWORKS, Axis, Entry, entries
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten
from stepcot_jax.training.state import flatten, unflatten

_NUM_LISTED = 20
_MOST_PARTS_OF_A_KIND = 1000
_LONGEST_PROBLEM = 200

Tensors = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
Axes = Mapping[str, tuple[Axis, ...]]


def from_torch_networks(networks: Mapping[str, Tensors]) -> dict[str, dict[str, Any]]:
    """Convert the authors' tensors to Flax parameters."""
    tables = _match_torch(networks)
    _refuse_misshapen(*_torch_shapes(networks, tables))
    check_numbers({f"{network}/{name}": array for network, found in networks.items() for name, array in found.items()})
    params: dict[str, dict[str, Any]] = {}
    for network, table in tables.items():
        by_path: dict[tuple[str, ...], list[np.ndarray]] = {}
        for entry in table:
            array = np.asarray(networks[network][entry.torch_name]).astype(np.float32)
            by_path.setdefault(entry.path, []).append(entry.to_flax(array))
        stacked = {entry.path for entry in table if entry.step is not None}
        leaves = {
            "/".join(path): np.stack(arrays) if path in stacked else np.ascontiguousarray(arrays[0])
            for path, arrays in by_path.items()
        }
        params[NETWORKS[network]] = unflatten(leaves)
    return params


def to_torch_networks(params: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """Convert Flax parameters to the authors' tensors; the inverse of `from_torch_networks`."""
    theirs = {ours: name for name, ours in NETWORKS.items()}
    flat = {name: flatten(tree) for name, tree in params.items()}
    tables = {name: _match_flax(theirs[name], leaves) for name, leaves in flat.items()}
    shapes = {f"{name}/{path}": np.shape(leaf) for name, leaves in flat.items() for path, leaf in leaves.items()}
    axes = {f"{name}/{'/'.join(entry.path)}": entry.flax_axes for name, table in tables.items() for entry in table}
    _refuse_misshapen(shapes, axes)
    tensors: dict[str, dict[str, np.ndarray]] = {}
    for name, table in tables.items():
        found = tensors.setdefault(theirs[name], {})
        for entry in table:
            leaf = np.asarray(flat[name]["/".join(entry.path)])
            leaf = leaf if entry.step is None else leaf[entry.step]
            found[entry.torch_name] = np.ascontiguousarray(entry.to_torch(leaf))
    return tensors


def find_sizes(networks: Mapping[str, Tensors]) -> dict[str, int]:
    """Return the length of every named axis ("teacher_width", "answers_0", "num_steps", ...)."""
    sizes = _find_lengths(*_torch_shapes(networks, _match_torch(networks)))
    return {**_counts(name for tensors in networks.values() for name in tensors), **sizes}


def check_numbers(tensors: Mapping[str, Any]) -> None:
    """Require arrays of finite floating-point numbers."""
    refused = []
    for name, found in tensors.items():
        dtype = getattr(found, "dtype", None)
        if dtype is None:
            refused.append(f"{name} ({type(found).__name__})")
        elif not (np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"):
            refused.append(f"{name} ({dtype})")
        elif not np.isfinite(np.asarray(found, np.float32)).all():
            refused.append(f"{name} (not finite)")
    if refused:
        raise BadInput(f"{list_problems(refused)}: expected arrays of finite floating-point numbers")


def list_problems(problems: Iterable[str], separator: str = "; ") -> str:
    """Join problems of a file for a message: the first twenty, and the number of the others.

    >>> list_problems(["a", "b"])
    'a; b'
    """
    found = list(problems)
    more = [f"and {len(found) - _NUM_LISTED} more"] if len(found) > _NUM_LISTED else []
    return separator.join([*(problem[:_LONGEST_PROBLEM] for problem in found[:_NUM_LISTED]), *more])


def _match_torch(networks: Mapping[str, Iterable[str]]) -> dict[str, tuple[Entry, ...]]:
    """Return the table of each network, checked against the tensors' names."""
    tables, problems = {}, []
    for network, names in networks.items():
        if network not in NETWORKS:
            raise BadInput(f"{network!r} is not one of the networks {', '.join(NETWORKS)}")
        found = set(names)
        memory = bool(found & {"memory_init", "mem_gru.weight_ih", "mem_gru.weight_hh"})
        tables[network] = entries(network, **_counts(found), memory=memory)
        problems += _compare_names(network, found, {entry.torch_name for entry in tables[network]})
    steps = {network: _counts(names)["num_steps"] for network, names in networks.items()}
    if "teacher" in steps and "student" in steps and steps["teacher"] != steps["student"]:
        problems.append(f"teacher has {steps['teacher']} steps and student {steps['student']}; expected equal numbers")
    if problems:
        raise BadInput("; ".join(problems))
    return tables


def _match_flax(network: str, leaves: Iterable[str]) -> tuple[Entry, ...]:
    """Return the table of a network, checked against the leaves' paths."""
    found = set(leaves)
    table = entries(
        network,
        num_steps=_count(found, r"(?:classifier|head)_(\d+)/"),
        num_layers=_count(found, r"graph_attention/attention_(\d+)/"),
        memory=any(path.startswith("memory_") for path in found),
    )
    problems = _compare_names(NETWORKS[network], found, {"/".join(entry.path) for entry in table})
    if problems:
        raise BadInput("; ".join(problems))
    return table


def _compare_names(network: str, found: set[str], expected: set[str]) -> list[str]:
    missing, unknown = (
        list_problems(map(shorten, sorted(names)), ", ") for names in (expected - found, found - expected)
    )
    if not missing and not unknown:
        return []
    return [f"{network}: missing tensors: {missing or 'none'}; unknown tensors: {unknown or 'none'}"]


def _counts(names: Iterable[str]) -> dict[str, int]:
    """Return the number of steps and layers in the authors' names."""
    names = set(names)
    return {
        "num_steps": _count(names, r"(?:step_models|step_heads)\.(\d+)\."),
        "num_layers": _count(names, r"memory_gat\.(?:layers|projs|norms)\.(\d+)\."),
    }


def _count(names: Iterable[str], pattern: str) -> int:
    found = len({match[1] for name in names if (match := re.match(pattern, name))})
    if found > _MOST_PARTS_OF_A_KIND:
        raise BadInput(f"names count {found} steps or layers; at most {_MOST_PARTS_OF_A_KIND} are accepted")
    return found


def _torch_shapes(networks: Mapping[str, Tensors], tables: Mapping[str, tuple[Entry, ...]]) -> tuple[Shapes, Axes]:
    """Return shape and axes of every tensor, by NETWORK/NAME."""
    shapes = {
        f"{network}/{name}": np.shape(array) for network, found in networks.items() for name, array in found.items()
    }
    axes = {f"{network}/{entry.torch_name}": entry.axes for network, table in tables.items() for entry in table}
    return shapes, axes


def _find_lengths(shapes: Shapes, axes: Axes) -> dict[str, int]:
    """Return the length of each named axis on which most tensors agree."""
    votes: dict[str, collections.Counter[int]] = {}
    for name, shape in shapes.items():
        if len(shape) != len(axes[name]):
            continue
        for length, axis in zip(shape, axes[name], strict=True):
            factor, axis_name = _parse(axis)
            if axis_name and length % factor == 0:
                votes.setdefault(axis_name, collections.Counter())[length // factor] += 1
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def _parse(axis: Axis) -> tuple[int, str]:
    """Return an axis as factor and name; the name of a fixed length is empty."""
    if isinstance(axis, int):
        return axis, ""
    factor, _, name = axis.rpartition("*")
    return int(factor or 1), name


def _refuse_misshapen(shapes: Shapes, axes: Axes) -> None:
    sizes = _find_lengths(shapes, axes)
    if {"num_heads", "teacher_width"} <= set(sizes):  # the heads share the width, whatever a_src and a_dst say
        sizes["head_width"] = sizes["teacher_width"] // sizes["num_heads"]
    problems = []
    for name, shape in shapes.items():
        parsed = map(_parse, axes[name])
        expected = [factor * sizes.get(axis, 0) if axis else factor for factor, axis in parsed]
        if tuple(expected) != tuple(shape):
            words = ", ".join(map(str, axes[name]))
            problems.append(f"{name} has shape {list(shape)}; expected {expected} ({words})")
    if problems:
        raise BadInput(list_problems(problems))
