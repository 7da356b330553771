"""The authors' PyTorch parameters and ours, converted both ways by the table of `torch_names`.

Sizes are read from the tensors, see `tensor_shapes`; networks that are converted together must fit one another.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from stepcot_jax.convert.tensor_shapes import Axis, find_lengths, refuse_misshapen
from stepcot_jax.convert.torch_names import NETWORKS, Entry, entries
from stepcot_jax.host.errors import BadInput

Tensors = Mapping[str, np.ndarray]


def from_torch(network: str, tensors: Tensors) -> dict[str, Any]:
    """Flax parameters of one network from the authors' tensors, see `from_torch_networks`."""
    return from_torch_networks({network: tensors})[NETWORKS[network]]


def from_torch_networks(networks: Mapping[str, Tensors]) -> dict[str, dict[str, Any]]:
    """Flax parameters of several networks from the authors' tensors.

    Args:
      networks: "teacher", "student", "proj_t", "proj_s", any of them -> state_dict names -> arrays.

    Returns:
      Our name of each network -> nested parameters, float32.

    Raises:
      BadInput: tensors are missing, left over, contradict the others in shape (within a network or between them),
        are not floating point or not finite; all of them are listed.
    """
    tables = _match_torch(networks)
    refuse_misshapen(*_torch_shapes(networks, tables))
    check_numbers({f"{network}/{name}": array for network, found in networks.items() for name, array in found.items()})
    params: dict[str, dict[str, Any]] = {}
    for network, table in tables.items():
        by_path: dict[tuple[str, ...], list[np.ndarray]] = {}
        for entry in table:
            array = np.asarray(networks[network][entry.torch_name]).astype(np.float32)
            by_path.setdefault(entry.path, []).append(entry.to_flax(array))
        stacked = {entry.path for entry in table if entry.step is not None}
        tree = params.setdefault(NETWORKS[network], {})
        for path, arrays in by_path.items():
            _set(tree, path, np.stack(arrays) if path in stacked else np.ascontiguousarray(arrays[0]))
    return params


def to_torch(network: str, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The authors' tensors of one network from Flax parameters, see `to_torch_networks`."""
    return to_torch_networks({NETWORKS[network]: params})[network]


def to_torch_networks(params: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """The authors' tensors of several networks from Flax parameters; the inverse of `from_torch_networks`.

    Args:
      params: our name of each network -> nested parameters.

    Returns:
      The authors' name of each network -> state_dict names -> arrays.

    Raises:
      BadInput: a parameter is missing, has no place in the authors' model, or contradicts the others in shape; all
        of them are listed.
    """
    theirs = {ours: name for name, ours in NETWORKS.items()}
    flat = {name: flatten(tree) for name, tree in params.items()}
    tables = {name: _match_flax(theirs[name], leaves) for name, leaves in flat.items()}
    shapes = {f"{name}/{path}": np.shape(leaf) for name, leaves in flat.items() for path, leaf in leaves.items()}
    axes = {f"{name}/{'/'.join(entry.path)}": entry.flax_axes for name, table in tables.items() for entry in table}
    refuse_misshapen(shapes, axes)
    tensors: dict[str, dict[str, np.ndarray]] = {}
    for name, table in tables.items():
        found = tensors.setdefault(theirs[name], {})
        for entry in table:
            leaf = np.asarray(flat[name]["/".join(entry.path)])
            found[entry.torch_name] = np.ascontiguousarray(
                entry.to_torch(leaf if entry.step is None else leaf[entry.step])
            )
    return tensors


def find_sizes(networks: Mapping[str, Tensors]) -> dict[str, int]:
    """Length of every named axis ("teacher_width", "answers_0", "num_steps", ...) of the authors' tensors."""
    sizes = find_lengths(*_torch_shapes(networks, _match_torch(networks)))
    return {**_counts(name for tensors in networks.values() for name in tensors), **sizes}


def check_numbers(tensors: Mapping[str, Any]) -> None:
    """Refuse what no parameter can be.

    Args:
      tensors: names -> arrays, or whatever else a file held there.

    Raises:
      BadInput: something is not an array of finite floating-point numbers; all of them are listed.
    """
    refused = []
    for name, found in tensors.items():
        dtype = getattr(found, "dtype", None)
        if dtype is None:
            refused.append(f"{name} (found {type(found).__name__})")
        elif not (np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"):
            refused.append(f"{name} (found {dtype})")
        elif not np.isfinite(np.asarray(found, np.float32)).all():
            refused.append(f"{name} (found numbers that are not finite)")
    if refused:
        raise BadInput(f"refused tensors: {'; '.join(refused)}; accepted are arrays of finite floating-point numbers")


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by their '/'-joined paths.

    >>> flatten({"a": {"b": 1}, "c": 2})
    {'a/b': 1, 'c': 2}
    """
    leaves: dict[str, Any] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            leaves.update(flatten(leaf, f"{prefix}{name}/"))
        else:
            leaves[f"{prefix}{name}"] = leaf
    return leaves


def _set(tree: dict[str, Any], path: tuple[str, ...], leaf: np.ndarray) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _match_torch(networks: Mapping[str, Iterable[str]]) -> dict[str, tuple[Entry, ...]]:
    """The table of each network, after a check that its names are those of the tensors."""
    tables, problems = {}, []
    for network, names in networks.items():
        if network not in NETWORKS:
            raise BadInput(f"found a network {network!r}, accepted are {', '.join(NETWORKS)}")
        found = set(names)
        memory = bool(found & {"memory_init", "mem_gru.weight_ih", "mem_gru.weight_hh"})
        tables[network] = entries(network, **_counts(found), memory=memory)
        problems += _compare_names(network, found, {entry.torch_name for entry in tables[network]})
    steps = {network: _counts(names)["num_steps"] for network, names in networks.items()}
    if "teacher" in steps and "student" in steps and steps["teacher"] != steps["student"]:
        problems.append(f"teacher has {steps['teacher']} steps and student {steps['student']}, accepted is one number")
    if problems:
        raise BadInput("; ".join(problems))
    return tables


def _match_flax(network: str, leaves: Iterable[str]) -> tuple[Entry, ...]:
    """The table of a network, after a check that its paths are those of the leaves."""
    found = set(leaves)

    def count(pattern: str) -> int:
        return len({match[1] for path in found if (match := re.match(pattern, path))})

    table = entries(
        network,
        num_steps=count(r"(?:classifier|head)_(\d+)/"),
        num_layers=count(r"graph_attention/attention_(\d+)/"),
        memory=any(path.startswith("memory_") for path in found),
    )
    problems = _compare_names(NETWORKS[network], found, {"/".join(entry.path) for entry in table})
    if problems:
        raise BadInput("; ".join(problems))
    return table


def _compare_names(network: str, found: set[str], expected: set[str]) -> list[str]:
    missing, unused = sorted(expected - found), sorted(found - expected)
    if not missing and not unused:
        return []
    return [
        f"{network}: missing tensors: {', '.join(missing) or 'none'}; tensors without a place: "
        f"{', '.join(unused) or 'none'}"
    ]


def _counts(names: Iterable[str]) -> dict[str, int]:
    """How many steps and layers the authors' names speak of."""
    names = list(names)

    def count(pattern: str) -> int:
        return len({match[1] for name in names if (match := re.match(pattern, name))})

    return {
        "num_steps": count(r"(?:step_models|step_heads)\.(\d+)\."),
        "num_layers": count(r"memory_gat\.(?:layers|projs|norms)\.(\d+)\."),
    }


def _torch_shapes(
    networks: Mapping[str, Tensors], tables: Mapping[str, tuple[Entry, ...]]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[Axis, ...]]]:
    """Shape and axes of every tensor, by NETWORK/NAME."""
    shapes = {
        f"{network}/{name}": np.shape(array) for network, found in networks.items() for name, array in found.items()
    }
    axes = {f"{network}/{entry.torch_name}": entry.axes for network, table in tables.items() for entry in table}
    return shapes, axes
