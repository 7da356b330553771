"""The authors' PyTorch parameter names and ours, mapped both ways by one table.

Layouts: torch keeps a linear map as [out, in], Flax as [in, out]; the authors keep one step model a step, we stack
the steps' heads on a leading axis; the memory's start is [1, width] there and [width] here.

Sizes are not asked for: each axis in the table has a name ("teacher_width"), every tensor says how long it takes
that axis to be, and the length most tensors agree on is taken. So the tensor that contradicts the others is the one
that is refused, whichever it is.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stepcot_jax.errors import BadInput

NETWORKS: dict[str, str] = {
    "teacher": "teacher",
    "student": "student",
    "proj_t": "teacher_projection",
    "proj_s": "student_projection",
}
"""The authors' name of each network -> ours."""

Axis = str | int
"""A named length, "3*teacher_width" and "2*teacher_width" included, or a fixed one."""

Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor: its name and axes in the authors' state_dict, its path here, and how the layouts differ."""

    torch_name: str
    path: tuple[str, ...]
    axes: tuple[Axis, ...]
    transposed: bool = False
    step: int | None = None
    leading_one: bool = False

    def to_flax(self, array: np.ndarray) -> np.ndarray:
        """The authors' layout -> ours, of one step where steps are stacked."""
        array = array.T if self.transposed else array
        return array[0] if self.leading_one else array

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """Our layout -> the authors'; the inverse of `to_flax`."""
        array = array[None] if self.leading_one else array
        return array.T if self.transposed else array

    @property
    def flax_axes(self) -> tuple[Axis, ...]:
        """Axes of the leaf at `path`."""
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
    """The table of one network.

    Args:
      network: "teacher", "student", "proj_t" or "proj_s".
      num_steps: steps of the chain.
      num_layers: graph-attention layers; the teacher only.
      memory: whether the teacher has a memory.

    Returns:
      Every tensor of the network, once.
    """
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
    # The names promise the reverse: in the authors' code `a_src` multiplies the node i that attends (the row of the
    # attention matrix, here "target") and `a_dst` the node j that is attended to (here "source"). Nothing written
    # says so; the golden numbers do: the other way round their `gat/attention_layer0` comes out transposed in kind,
    # off by far more than rounding, this way to 1e-6.
    yield Entry(f"{theirs}.a_src", (*ours, "target"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.a_dst", (*ours, "source"), ("num_heads", "head_width"))
    yield Entry(f"{theirs}.bias", (*ours, "bias"), ("teacher_width",))
    yield from _linear(f"{theirs}.W", *ours, "linear", out="teacher_width", into="teacher_width", bias=False)
    residual = ("graph_attention", f"residual_{layer}")
    yield from _linear(f"memory_gat.projs.{layer}", *residual, out="teacher_width", into="teacher_width")
    yield from _norm(f"memory_gat.norms.{layer}", "graph_attention", f"norm_{layer}", width="teacher_width")


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
    _refuse_misshapen(*_torch_shapes(networks, tables))
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
    _refuse_misshapen(shapes, axes)
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
    sizes = _vote(*_torch_shapes(networks, _match_torch(networks)))
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
    shapes = {f"{network}/{name}": np.shape(array) for network, found in networks.items() for name, array in found.items()}
    axes = {f"{network}/{entry.torch_name}": entry.axes for network, table in tables.items() for entry in table}
    return shapes, axes


def _vote(shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[Axis, ...]]) -> dict[str, int]:
    """The length of each named axis that most tensors agree on."""
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
    """An axis as factor and name; the name is empty for a fixed length."""
    if isinstance(axis, int):
        return axis, ""
    factor, _, name = axis.rpartition("*")
    return int(factor or 1), name


def _refuse_misshapen(shapes: Mapping[str, tuple[int, ...]], axes: Mapping[str, tuple[Axis, ...]]) -> None:
    """Refuse the tensors whose shapes contradict those of the others."""
    sizes = _vote(shapes, axes)
    if {"num_heads", "teacher_width"} <= set(sizes):  # the heads share the width, whatever a_src and a_dst say
        sizes["head_width"] = sizes["teacher_width"] // sizes["num_heads"]
    problems = []
    for name, shape in shapes.items():
        expected = []
        for axis in axes[name]:
            factor, axis_name = _parse(axis)
            expected.append(factor * sizes.get(axis_name, 0) if axis_name else factor)
        if tuple(expected) != tuple(shape):
            problems.append(f"{name}: found shape {list(shape)}, expected {expected} {_words(axes[name])}")
    if problems:
        raise BadInput("; ".join(problems))


def _words(axes: tuple[Axis, ...]) -> str:
    return f"({', '.join(str(axis) for axis in axes)})"
