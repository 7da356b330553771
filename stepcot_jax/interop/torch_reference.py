"""The authors' PyTorch parameter names and ours, mapped both ways by one table.

Layouts: torch keeps a linear map as [out, in], Flax as [in, out]; the authors keep one step model a step, we stack
the steps' heads on a leading axis; the memory's start is [1, width] there and [width] here.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from stepcot_jax.errors import BadInput

Network = Literal["teacher", "student", "proj_t", "proj_s"]
NETWORKS: dict[str, str] = {
    "teacher": "teacher",
    "student": "student",
    "proj_t": "teacher_projection",
    "proj_s": "student_projection",
}
"""The authors' name of each network -> ours."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor: its name in the authors' state_dict, its path here, and how the layouts differ."""

    torch_name: str
    path: tuple[str, ...]
    transposed: bool = False
    step: int | None = None
    leading_one: bool = False


def _linear(torch_name: str, *path: str, step: int | None = None, bias: bool = True) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "kernel"), transposed=True, step=step)
    if bias:
        yield Entry(f"{torch_name}.bias", (*path, "bias"), step=step)


def _norm(torch_name: str, *path: str, step: int | None = None) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "scale"), step=step)
    yield Entry(f"{torch_name}.bias", (*path, "bias"), step=step)


def _block(torch_name: str, first: int, *path: str, step: int | None = None) -> Iterator[Entry]:
    yield from _linear(f"{torch_name}.{first}", *path, "linear", step=step)
    yield from _norm(f"{torch_name}.{first + 1}", *path, "norm", step=step)


def entries(network: str, *, num_steps: int, num_layers: int, memory: bool = True) -> tuple[Entry, ...]:
    """The table of one network.

    Args:
      network: "teacher", "student", "proj_t" or "proj_s".
      num_steps: steps of the chain.
      num_layers: graph-attention layers; the teacher only.
      memory: whether the teacher has a memory.
    """
    if network in ("proj_t", "proj_s"):
        return (Entry("weight", ("kernel",), transposed=True), Entry("bias", ("bias",)))
    if network == "student":
        heads = (entry for step in range(num_steps) for entry in _linear(f"step_heads.{step}", f"head_{step}"))
        return (*_block("img_proj", 0, "image_projection"), *heads)
    return tuple(_teacher_entries(num_steps, num_layers, memory))


def _teacher_entries(num_steps: int, num_layers: int, memory: bool) -> Iterator[Entry]:
    for step in range(num_steps):
        model = f"step_models.{step}"
        yield from _block(f"{model}.img_proj", 0, "image_projections", step=step)
        yield from _block(f"{model}.fusion_head", 0, "heads", "fusion_0", step=step)
        yield from _block(f"{model}.fusion_head", 4, "heads", "fusion_1", step=step)
        yield from _linear(f"{model}.classifier", f"classifier_{step}")
    for layer in range(num_layers):
        ours = ("graph_attention", f"attention_{layer}")
        yield Entry(f"memory_gat.layers.{layer}.a_src", (*ours, "target"))
        yield Entry(f"memory_gat.layers.{layer}.a_dst", (*ours, "source"))
        yield Entry(f"memory_gat.layers.{layer}.bias", (*ours, "bias"))
        yield from _linear(f"memory_gat.layers.{layer}.W", *ours, "linear", bias=False)
        yield from _linear(f"memory_gat.projs.{layer}", "graph_attention", f"residual_{layer}")
        yield from _norm(f"memory_gat.norms.{layer}", "graph_attention", f"norm_{layer}")
    yield from _block("fusion_proj", 0, "context")
    if memory:
        yield Entry("memory_init", ("memory_start",), leading_one=True)
        for torch_part, part in (("ih", "input"), ("hh", "hidden")):
            yield Entry(f"mem_gru.weight_{torch_part}", ("memory_cell", part, "kernel"), transposed=True)
            yield Entry(f"mem_gru.bias_{torch_part}", ("memory_cell", part, "bias"))
        yield from _linear("pred2mem", "conclusion")


def from_torch(network: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Flax parameters of a network from the authors' tensors.

    Args:
      network: "teacher", "student", "proj_t" or "proj_s".
      tensors: state_dict names -> arrays; sizes are read from them.

    Raises:
      BadInput: names are missing or left over; all of them are listed.
    """
    table = entries(network, **_sizes(tensors))
    expected = {entry.torch_name for entry in table}
    missing, unused = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
    if missing or unused:
        raise BadInput(f"{network}: missing tensors {missing or 'none'}, tensors without a place {unused or 'none'}")
    grouped: dict[tuple[str, ...], list[np.ndarray]] = {}
    for entry in table:
        array = np.asarray(tensors[entry.torch_name])
        array = array.T if entry.transposed else array
        grouped.setdefault(entry.path, []).append(array[0] if entry.leading_one else array)
    stacked = {entry.path for entry in table if entry.step is not None}
    params: dict[str, Any] = {}
    for path, arrays in grouped.items():
        _set(params, path, np.stack(arrays) if path in stacked else arrays[0])
    return params


def to_torch(network: str, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The authors' tensors of a network from Flax parameters; the inverse of `from_torch`.

    Raises:
      BadInput: a parameter is missing, or has no place in the authors' model; all of them are listed.
    """
    flat = dict(_flatten(params))
    pattern = re.compile(r"(?:classifier|head)_\d+")
    num_steps = len({path[0] for path in flat if pattern.fullmatch(path[0])})
    num_layers = len({path[1] for path in flat if path[0] == "graph_attention" and path[1].startswith("attention_")})
    has_memory = ("memory_start",) in flat
    table = entries(network, num_steps=num_steps, num_layers=num_layers, memory=has_memory)
    expected = {entry.path for entry in table}
    missing, unused = sorted(expected - set(flat)), sorted(set(flat) - expected)
    if missing or unused:
        raise BadInput(f"{network}: missing parameters {missing or 'none'}, without a place there {unused or 'none'}")
    tensors = {}
    for entry in table:
        array = np.asarray(flat[entry.path])
        array = array if entry.step is None else array[entry.step]
        array = array.T if entry.transposed else array
        tensors[entry.torch_name] = np.ascontiguousarray(array[None] if entry.leading_one else array)
    return tensors


def _sizes(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    def count(pattern: str) -> int:
        return len({match[1] for name in tensors if (match := re.match(pattern, name))})

    return {
        "num_steps": count(r"(?:step_models|step_heads)\.(\d+)\."),
        "num_layers": count(r"memory_gat\.layers\.(\d+)\."),
        "memory": "memory_init" in tensors or "mem_gru.weight_ih" in tensors,
    }


def _set(tree: dict[str, Any], path: tuple[str, ...], leaf: np.ndarray) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = leaf


def _flatten(tree: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            yield from _flatten(leaf, (*prefix, name))
        else:
            yield (*prefix, name), leaf
