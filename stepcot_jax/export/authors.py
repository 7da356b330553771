"""Convert parameters between the authors' PyTorch networks and ours, by the table of `entries`.

Every axis has a name; each tensor votes for its length, and a tensor that disagrees with the majority is refused.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten
from stepcot_jax.training.state import flatten, unflatten

# The authors' PyTorch parameter names and our paths: one entry per tensor.
#
# Layouts: torch stores a linear map as [out, in], Flax as [in, out]; the authors have one model per step, we stack the
# heads of all steps on a leading axis; the memory's start is [1, width] in torch and [width] in Flax.


Axis = str | int  # A named length, a multiple such as "3*teacher_width", or a fixed length

NETWORKS: dict[str, str] = {
    "teacher": "teacher",
    "student": "student",
    "proj_t": "teacher_projection",
    "proj_s": "student_projection",
}  # The authors' name of each network -> ours


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor: name and axes in the authors' state_dict, our path, and the difference in layout."""

    torch_name: str
    path: tuple[str, ...]
    axes: tuple[Axis, ...]
    transposed: bool = False
    step: int | None = None
    leading_one: bool = False

    def to_flax(self, array: np.ndarray) -> np.ndarray:
        """Convert from the authors' layout, of one step where steps are stacked."""
        array = array.T if self.transposed else array
        return array[0] if self.leading_one else array

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Convert to the authors' layout; the inverse of `to_flax`."""
        array = array[None] if self.leading_one else array
        return array.T if self.transposed else array

    @property
    def flax_axes(self) -> tuple[Axis, ...]:
        """Axes of our parameter."""
        axes = self.axes[::-1] if self.transposed else self.axes
        axes = axes[1:] if self.leading_one else axes
        return axes if self.step is None else ("num_steps", *axes)


def _linear(
    torch_name: str, *path: str, out: Axis, into: Axis, step: int | None = None, bias: bool = True
) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "kernel"), (out, into), transposed=True, step=step)
    if bias:
        yield Entry(f"{torch_name}.bias", (*path, "bias"), (out,), step=step)


def _norm(torch_name: str, *path: str, width: Axis, step: int | None = None) -> Iterator[Entry]:
    yield Entry(f"{torch_name}.weight", (*path, "scale"), (width,), step=step)
    yield Entry(f"{torch_name}.bias", (*path, "bias"), (width,), step=step)


def _block(torch_name: str, first: int, *path: str, out: Axis, into: Axis, step: int | None = None) -> Iterator[Entry]:
    yield from _linear(f"{torch_name}.{first}", *path, "linear", out=out, into=into, step=step)
    yield from _norm(f"{torch_name}.{first + 1}", *path, "norm", width=out, step=step)


def entries(network: str, *, num_steps: int, num_layers: int, memory: bool = True) -> tuple[Entry, ...]:
    """List every tensor of a network."""
    if network in ("proj_t", "proj_s"):
        width = "teacher_width" if network == "proj_t" else "student_width"
        kernel = Entry("weight", ("kernel",), ("projection_width", width), transposed=True)
        return (kernel, Entry("bias", ("bias",), ("projection_width",)))
    if network == "student":
        heads = (
            entry
            for step in range(num_steps)
            for entry in _linear(f"step_heads.{step}", f"head_{step}", out=f"answers_{step}", into="student_width")
        )
        return (*_block("img_proj", 0, "image_projection", out="student_width", into="image_width"), *heads)
    return tuple(_teacher_entries(num_steps, num_layers, memory))


def _teacher_entries(num_steps: int, num_layers: int, memory: bool) -> Iterator[Entry]:
    width, both = "teacher_width", "2*teacher_width"
    for step in range(num_steps):
        model = f"step_models.{step}"
        yield from _block(f"{model}.img_proj", 0, "image_projections", out=width, into="image_width", step=step)
        yield from _block(f"{model}.fusion_head", 0, "heads", "fusion_0", out=width, into=both, step=step)
        yield from _block(f"{model}.fusion_head", 4, "heads", "fusion_1", out=width, into=width, step=step)
        yield from _linear(f"{model}.classifier", f"classifier_{step}", out=f"answers_{step}", into=width)
    for layer in range(num_layers):
        yield from _graph_attention_entries(layer)
    yield from _block("fusion_proj", 0, "context", out=width, into=both if memory else width)
    if memory:
        yield Entry("memory_init", ("memory_start",), (1, width), leading_one=True)
        for torch_part, part in (("ih", "input"), ("hh", "hidden")):
            kernel, bias = ("memory_cell", part, "kernel"), ("memory_cell", part, "bias")
            yield Entry(f"mem_gru.weight_{torch_part}", kernel, ("3*teacher_width", width), transposed=True)
            yield Entry(f"mem_gru.bias_{torch_part}", bias, ("3*teacher_width",))
        yield from _linear("pred2mem", "conclusion", out=width, into=width)


def _graph_attention_entries(layer: int) -> Iterator[Entry]:
    theirs, ours = f"memory_gat.layers.{layer}", ("graph_attention", f"attention_{layer}")
    # The names suggest the reverse: in the authors' code `a_src` multiplies the attending node i (a row of the
    # attention matrix, our "target") and `a_dst` the attended node j (our "source"). The golden numbers show it:
    # `gat/attention_layer0` agrees to 2e-7 this way and differs by 0.7 the other way.
    yield Entry(f"{theirs}.a_src", (*ours, "target"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.a_dst", (*ours, "source"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.bias", (*ours, "bias"), ("teacher_width",))
    yield from _linear(f"{theirs}.W", *ours, "linear", out="teacher_width", into="teacher_width", bias=False)
    residual = ("graph_attention", f"residual_{layer}")
    yield from _linear(f"memory_gat.projs.{layer}", *residual, out="teacher_width", into="teacher_width")
    yield from _norm(f"memory_gat.norms.{layer}", "graph_attention", f"norm_{layer}", width="teacher_width")


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
    check_numbers(
        {f"{network}/{name}": array for network, tensors in networks.items() for name, array in tensors.items()}
    )
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
        of_network = tensors.setdefault(theirs[name], {})
        for entry in table:
            leaf = np.asarray(flat[name]["/".join(entry.path)])
            leaf = leaf if entry.step is None else leaf[entry.step]
            of_network[entry.torch_name] = np.ascontiguousarray(entry.to_torch(leaf))
    return tensors


def find_sizes(networks: Mapping[str, Tensors]) -> dict[str, int]:
    """Return the length of every named axis ("teacher_width", "answers_0", "num_steps", ...)."""
    sizes = _find_lengths(*_torch_shapes(networks, _match_torch(networks)))
    return {**_counts(name for tensors in networks.values() for name in tensors), **sizes}


def check_numbers(tensors: Mapping[str, Any]) -> None:
    """Require arrays of finite floating-point numbers."""
    refused = []
    for name, array in tensors.items():
        dtype = getattr(array, "dtype", None)
        if dtype is None:
            refused.append(f"{name} ({type(array).__name__})")
        elif not (np.issubdtype(dtype, np.floating) or dtype.name == "bfloat16"):
            refused.append(f"{name} ({dtype})")
        elif not np.isfinite(np.asarray(array, np.float32)).all():
            refused.append(f"{name} (not finite)")
    if refused:
        raise BadInput(f"{list_problems(refused)}: expected arrays of finite floating-point numbers")


def list_problems(problems: Iterable[str], separator: str = "; ") -> str:
    """Join problems of a file for a message: the first twenty, and the number of the others."""
    listed = list(problems)
    more = [f"and {len(listed) - _NUM_LISTED} more"] if len(listed) > _NUM_LISTED else []
    return separator.join([*(problem[:_LONGEST_PROBLEM] for problem in listed[:_NUM_LISTED]), *more])


def _match_torch(networks: Mapping[str, Iterable[str]]) -> dict[str, tuple[Entry, ...]]:
    """Return the table of each network, checked against the tensors' names."""
    tables, problems = {}, []
    for network, names in networks.items():
        if network not in NETWORKS:
            raise BadInput(f"{network!r} is not one of the networks {', '.join(NETWORKS)}")
        present = set(names)
        memory = bool(present & {"memory_init", "mem_gru.weight_ih", "mem_gru.weight_hh"})
        tables[network] = entries(network, **_counts(present), memory=memory)
        problems += _compare_names(network, present, {entry.torch_name for entry in tables[network]})
    steps = {network: _counts(names)["num_steps"] for network, names in networks.items()}
    if "teacher" in steps and "student" in steps and steps["teacher"] != steps["student"]:
        problems.append(f"teacher has {steps['teacher']} steps and student {steps['student']}; expected equal numbers")
    if problems:
        raise BadInput("; ".join(problems))
    return tables


def _match_flax(network: str, leaves: Iterable[str]) -> tuple[Entry, ...]:
    """Return the table of a network, checked against the leaves' paths."""
    paths = set(leaves)
    table = entries(
        network,
        num_steps=_count(paths, r"(?:classifier|head)_(\d+)/"),
        num_layers=_count(paths, r"graph_attention/attention_(\d+)/"),
        memory=any(path.startswith("memory_") for path in paths),
    )
    problems = _compare_names(NETWORKS[network], paths, {"/".join(entry.path) for entry in table})
    if problems:
        raise BadInput("; ".join(problems))
    return table


def _compare_names(network: str, actual: set[str], expected: set[str]) -> list[str]:
    missing, unknown = (
        list_problems(map(shorten, sorted(names)), ", ") for names in (expected - actual, actual - expected)
    )
    if not missing and not unknown:
        return []
    return [f"{network}: missing tensors: {missing or 'none'}; unknown tensors: {unknown or 'none'}"]


def _counts(names: Iterable[str]) -> dict[str, int]:
    names = set(names)
    return {
        "num_steps": _count(names, r"(?:step_models|step_heads)\.(\d+)\."),
        "num_layers": _count(names, r"memory_gat\.(?:layers|projs|norms)\.(\d+)\."),
    }


def _count(names: Iterable[str], pattern: str) -> int:
    number = len({match[1] for name in names if (match := re.match(pattern, name))})
    if number > _MOST_PARTS_OF_A_KIND:
        raise BadInput(f"names count {number} steps or layers; at most {_MOST_PARTS_OF_A_KIND} are accepted")
    return number


def _torch_shapes(networks: Mapping[str, Tensors], tables: Mapping[str, tuple[Entry, ...]]) -> tuple[Shapes, Axes]:
    """Return shape and axes of every tensor, by NETWORK/NAME."""
    shapes = {
        f"{network}/{name}": np.shape(array) for network, tensors in networks.items() for name, array in tensors.items()
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
    if {"num_heads", "teacher_width"} <= set(sizes):  # the heads share the width; a_src and a_dst are not trusted
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


# Convert tensors by name: NETWORK/NAME or NETWORK.NAME of the authors, '/'-joined Flax paths of ours.


def to_jax_tensors(tensors: Mapping[str, Any], *, network: str | None = None) -> dict[str, np.ndarray]:
    """Convert the authors' tensors to ours."""
    return flatten(from_torch_networks(group_by_network(tensors, network=network)))


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
    check_numbers(tensors)
    unknown = [shorten(name) for name in tensors if name.partition("/")[0] not in NETWORKS.values() or "/" not in name]
    if unknown:
        shown = list_problems(unknown, ", ")
        raise BadInput(
            f"unknown tensors: {shown}; names start with {', '.join(NETWORKS.values())} and '/'; --ignore=PREFIX skips "
            "others, such as image_encoder"
        )
    if not tensors:
        raise BadInput("the source holds no tensors")
    networks = to_torch_networks(unflatten(tensors))
    if network is None:
        return flatten(networks)
    if set(networks) != {network}:
        raise BadInput(f"--network {network}: the source holds {', '.join(networks)}")
    return networks[network]


def drop_ignored(tensors: Mapping[str, Any], prefixes: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the tensors that match no prefix of a name, whole or within its network, and how many match each."""
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
        network, sign, rest = name.partition(separator)
        if sign and network in NETWORKS:
            return network, rest
    raise BadInput(
        f"{shorten(name)} does not start with a network ({', '.join(NETWORKS)}) and '/' or '.'; pass --network for a "
        "bare state_dict"
    )
