"""Convert tensors by name: NETWORK/NAME or NETWORK.NAME of the authors, '/'-joined Flax paths of ours."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepcot_jax.convert import torch_reference
from stepcot_jax.convert.torch_names import NETWORKS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten
from stepcot_jax.training.state import flatten, unflatten


def to_jax_tensors(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, np.ndarray]:
    """Convert the authors' tensors to ours."""
    return flatten(torch_reference.from_torch_networks(group_by_network(tensors, network=network)))


def group_by_network(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the authors' tensors by network and name."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, array in tensors.items():
        owner, rest = (network, name) if network else _split_torch_name(name)
        if rest in grouped.setdefault(owner, {}):
            raise BadInput(f"{shorten(f'{owner}/{rest}')} appears twice, once as {shorten(name)}")
        grouped[owner][rest] = array
    if not grouped:
        raise BadInput("the source holds no tensors")
    return grouped


def to_torch_tensors(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, np.ndarray]:
    """Convert our tensors to the authors'; the inverse of `to_jax_tensors`."""
    torch_reference.check_numbers(tensors)
    unknown = [shorten(name) for name in tensors if name.partition("/")[0] not in NETWORKS.values() or "/" not in name]
    if unknown:
        shown = torch_reference.list_problems(unknown, ", ")
        raise BadInput(
            f"unknown tensors: {shown}; names start with {', '.join(NETWORKS.values())} and '/'; --ignore=PREFIX skips "
            "others, such as image_encoder"
        )
    if not tensors:
        raise BadInput("the source holds no tensors")
    found = torch_reference.to_torch_networks(unflatten(tensors))
    if network is None:
        return flatten(found)
    if set(found) != {network}:
        raise BadInput(f"--network {network}: the source holds {', '.join(found)}")
    return found[network]


def drop_ignored(tensors: Mapping[str, Any], prefixes: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the tensors that match no prefix, and the number of tensors that match each.

    A prefix matches a whole name ("teacher/clip_model.") or a name within its network ("clip_model.").
    """
    kept, counts = {}, dict.fromkeys(prefixes, 0)
    for name, array in tensors.items():
        inside = name.partition("/")[2] if "/" in name else name.partition(".")[2]
        matched = next((prefix for prefix in prefixes if name.startswith(prefix) or inside.startswith(prefix)), None)
        if matched is None:
            kept[name] = array
        else:
            counts[matched] += 1
    return kept, counts


def _split_torch_name(name: str) -> tuple[str, str]:
    for separator in ("/", "."):
        network, found, rest = name.partition(separator)
        if found and network in NETWORKS:
            return network, rest
    raise BadInput(
        f"{shorten(name)} does not start with a network ({', '.join(NETWORKS)}) and '/' or '.'; pass --network for a "
        "bare state_dict"
    )
