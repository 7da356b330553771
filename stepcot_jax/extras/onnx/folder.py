"""Write networks of a run as ONNX, with a loader that needs only numpy and onnxruntime, and compare the logits.

A network is traced into a graph: constants are folded, inner functions inlined, loops over steps unrolled. `OPERATORS`
has the operators; an error names one that it lacks.
"""

import hashlib
import importlib
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from stepcot_jax import __version__
from stepcot_jax.export import exported_models
from stepcot_jax.export.folder import copy_loader, export_networks, name_parts, write_described, write_readme
from stepcot_jax.export.model_card import fill_use, list_files
from stepcot_jax.export.program import Program, make_gate_program
from stepcot_jax.extras.onnx import loader as onnx_loader
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_json
from stepcot_jax.host.own_folder import save
from stepcot_jax.host.text import install_extra
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored_reading import POINTS_FILE

# An ONNX graph under construction. The number of cases stays free: shapes with it are computed in the graph.


Value = Any  # A constant (np.ndarray), or the name of a tensor of the graph

Emit = Callable[["Graph", Any, Sequence[Value]], Value | list[Value]]
"""Adds the nodes of one equation and returns its outputs."""

IMAGES, CASE = "images", "case"  # Names of the input, and of the number of cases in the graph's shapes


class Graph:
    """Nodes and constants of a graph under construction; equal ones occur once, so that outputs share the encoder."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._numbers = itertools.count()
        self._constants: dict[tuple[Any, ...], tuple[str, np.ndarray]] = {}
        self._made: dict[tuple[Any, ...], list[str]] = {}
        self._num_cases: str | None = None

    def add(self, operator: str, *inputs: Value, num_outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, unless there is an equal one, and return its output's name, or the list of names of several."""
        import onnx.helper

        names = [self.name_of(value) for value in inputs]
        key = (operator, *names, repr(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = [f"v{next(self._numbers)}" for _ in range(num_outputs)]
            self.nodes.append(onnx.helper.make_node(operator, names, self._made[key], **attributes))
        outputs = self._made[key]
        return outputs[0] if num_outputs == 1 else outputs

    def name_of(self, value: Value) -> str:
        """Return the name of a value; a constant becomes an initializer."""
        if isinstance(value, str):
            return value
        key = (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
        if key not in self._constants:
            self._constants[key] = (f"c{len(self._constants)}", value)
        return self._constants[key][0]

    def shape(self, dimensions: Iterable[Any]) -> Value:
        """Return a shape as an int64 vector, with the number of cases where a dimension depends on it."""
        parts = [np.asarray([_factor(dimension)], np.int64) for dimension in dimensions]
        free = [not isinstance(dimension, int) for dimension in dimensions]
        if not any(free):
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if self._num_cases is None:
            shape = self.add("Shape", IMAGES)
            self._num_cases = self.add("Slice", shape, np.asarray([0]), np.asarray([1]))
        scaled = [self.add("Mul", part, self._num_cases) if is_free else part
                 for part, is_free in zip(parts, free, strict=True)]  # fmt: skip
        return self.add("Concat", *scaled, axis=0)

    def constants(self, used: set[str]) -> dict[str, np.ndarray]:
        """Return the constants that are used, by name."""
        return {name: array for name, array in self._constants.values() if name in used}


def _factor(dimension: Any) -> int:
    """Return a fixed dimension, or the factor between a free one and the number of cases."""
    if isinstance(dimension, int):
        return dimension
    one, two = (int(dimension._evaluate({CASE: number})) for number in (1, 2))
    if two != 2 * one:
        raise BadInput(f"ONNX: a dimension of {dimension} is no multiple of the number of cases")
    return one


# JAX's operators as ONNX nodes: those that the networks of this package use.


_SAME_NAME = {
    "abs": "Abs", "add": "Add", "and": "And", "copy": "Identity", "copy_p": "Identity", "div": "Div", "eq": "Equal",
    "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual",
    "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg",
    "not": "Not", "or": "Or", "pow": "Pow", "sign": "Sign", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub",
    "tanh": "Tanh",
}  # fmt: skip
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_sum": "ReduceSum"}
_ONE = np.asarray(1, np.float32)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _same(operator: str) -> Emit:
    return lambda graph, _, values: graph.add(operator, *values)


def _reduce(operator: str) -> Emit:
    def emit(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
        return graph.add(operator, values[0], _integers(equation.params["axes"]), keepdims=0)

    return emit


def _integers(numbers: Any) -> np.ndarray:
    return np.asarray(numbers, np.int64).reshape(-1)


def _refuse(equation: Any, what: str) -> BadInput:
    return BadInput(f"ONNX: {equation.primitive.name} with {what} has no ONNX form here")


def _select(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    if len(values) != 3 or equation.invars[0].aval.dtype != np.bool_:
        raise _refuse(equation, f"{len(values) - 1} cases")
    return graph.add("Where", values[0], values[2], values[1])


def _cast(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    import onnx.helper

    return graph.add("Cast", values[0], to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(equation.params["new_dtype"])))


def _number_of_cases(graph: Graph, equation: Any, _: Sequence[Value]) -> Value:
    import onnx

    count = graph.add("Squeeze", graph.shape([equation.params["dim"]]), _integers(0))
    return graph.add("Cast", count, to=onnx.TensorProto.INT32)


def _reshape(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Reshape", values[0], graph.shape(equation.outvars[0].aval.shape), allowzero=1)


def _broadcast(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    target, axes = equation.outvars[0].aval.shape, equation.params["broadcast_dimensions"]
    sides: list[Any] = [1] * len(target)
    for side, axis in zip(equation.invars[0].aval.shape, axes, strict=True):
        sides[axis] = side
    spread = graph.add("Reshape", values[0], graph.shape(sides), allowzero=1)
    return spread if tuple(sides) == tuple(target) else graph.add("Expand", spread, graph.shape(target))


def _stack(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    axis = equation.params["axis"]
    return graph.add("Concat", *(graph.add("Unsqueeze", value, _integers(axis)) for value in values), axis=axis)


def _split(graph: Graph, equation: Any, values: Sequence[Value]) -> list[Value]:
    sizes = _integers(equation.params["sizes"])
    outputs = graph.add("Split", values[0], sizes, num_outputs=len(sizes), axis=equation.params["axis"])
    return outputs if isinstance(outputs, list) else [outputs]


def _pad(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    low, high, interior = zip(*equation.params["padding_config"], strict=True)
    if any(interior) or min(*low, *high) < 0:
        raise _refuse(equation, f"padding {equation.params['padding_config']}")
    return graph.add("Pad", values[0], _integers([*low, *high]), values[1])


def _slice(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    params, shape = equation.params, equation.invars[0].aval.shape
    strides = params["strides"] or (1,) * len(shape)
    taken = [
        axis
        for axis, side in enumerate(shape)
        if (isinstance(side, int) and (params["start_indices"][axis], params["limit_indices"][axis]) != (0, side))
        or strides[axis] != 1
    ]  # fmt: skip
    bounds = (params["start_indices"], params["limit_indices"], range(len(shape)), strides)
    return graph.add("Slice", values[0], *(_integers([bound[axis] for axis in taken]) for bound in bounds))


def _slice_from(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    """Add a dynamic slice whose starts are constants, as they are once loops are unrolled."""
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape
    return _cut(graph, equation, values[0], values[1:], sizes, shape)


def _cut(graph: Graph, equation: Any, value: Value, starts: Sequence[Value], sizes: Any, shape: Any) -> Value:
    """Cut `sizes` from constant starts; axes that are kept in full may depend on the number of cases."""
    taken = [axis for axis, side in enumerate(shape) if sizes[axis] != side]
    if any(isinstance(starts[axis], str) for axis in taken):
        raise _refuse(equation, "an index that depends on the images")
    first = [min(max(int(starts[axis]), 0), shape[axis] - sizes[axis]) for axis in taken]
    last = [start + sizes[axis] for start, axis in zip(first, taken, strict=True)]
    return graph.add("Slice", value, _integers(first), _integers(last), _integers(taken)) if taken else value


def _gather(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    """Add the window at a constant position, as indexing with numbers needs it."""
    numbers, indices = equation.params["dimension_numbers"], values[1]
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    if isinstance(indices, str) or indices.ndim != 1 or numbers.operand_batching_dims:
        raise _refuse(equation, "indices of several places")
    starts: list[Any] = [np.asarray(0)] * len(shape)
    for position, axis in enumerate(numbers.start_index_map):
        starts[axis] = indices[position]
    window = _cut(graph, equation, values[0], starts, sizes, shape)
    return (
        graph.add("Squeeze", window, _integers(numbers.collapsed_slice_dims))
        if numbers.collapsed_slice_dims
        else window
    )


def _dot(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_rank, right_rank = (len(atom.aval.shape) for atom in equation.invars)
    if not left_batch and right_rank == 2 and tuple(right_sum) == (0,) and tuple(left_sum) == (left_rank - 1,):
        return graph.add("MatMul", *values)
    left = list(_LETTERS[:left_rank])
    right = list(_LETTERS[left_rank : left_rank + right_rank])
    for one, other in zip([*left_batch, *left_sum], [*right_batch, *right_sum], strict=True):
        right[other] = left[one]
    kept = [left[axis] for axis in left_batch]
    kept += [name for axis, name in enumerate(left) if axis not in (*left_batch, *left_sum)]
    kept += [name for axis, name in enumerate(right) if axis not in (*right_batch, *right_sum)]
    return graph.add("Einsum", *values, equation=f"{''.join(left)},{''.join(right)}->{''.join(kept)}")


def _convolution(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    params = equation.params
    numbers, rank = params["dimension_numbers"], len(equation.invars[0].aval.shape)
    if params["batch_group_count"] != 1 or any(dilation != 1 for dilation in params["lhs_dilation"]):
        raise _refuse(equation, "a dilated input or grouped cases")
    low, high = zip(*params["padding"], strict=True)
    kernel = values[1]
    if isinstance(kernel, str):
        kernel = graph.add("Transpose", kernel, perm=list(numbers.rhs_spec))
    else:
        kernel = np.ascontiguousarray(np.transpose(kernel, numbers.rhs_spec))
    convolved = graph.add(
        "Conv",
        graph.add("Transpose", values[0], perm=list(numbers.lhs_spec)),
        kernel,
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=[*low, *high],
        group=params["feature_group_count"],
    )
    return graph.add("Transpose", convolved, perm=[numbers.out_spec.index(axis) for axis in range(rank)])


def _max_pool(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    params = equation.params
    window, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
    dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    if len(window) != 4 or (window[0], window[3]) != (1, 1) or dilated:
        raise _refuse(equation, f"a window {window}")
    low, high = zip(*padding[1:3], strict=True)
    pooled = graph.add(
        "MaxPool",
        graph.add("Transpose", values[0], perm=[0, 3, 1, 2]),
        kernel_shape=list(window[1:3]),
        strides=list(strides[1:3]),
        pads=[*low, *high],
    )
    return graph.add("Transpose", pooled, perm=[0, 2, 3, 1])


OPERATORS: dict[str, Emit] = {
    **{name: _same(operator) for name, operator in _SAME_NAME.items()},
    **{name: _reduce(operator) for name, operator in _REDUCTIONS.items()},
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda graph, equation, values: graph.add("Concat", *values, axis=equation.params["dimension"]),
    "conv_general_dilated": _convolution,
    "convert_element_type": _cast,
    "dim_as_value": _number_of_cases,
    "dot_general": _dot,
    "dynamic_slice": _slice_from,
    "erfc": lambda graph, _, values: graph.add("Sub", _ONE, graph.add("Erf", values[0])),
    "expm1": lambda graph, _, values: graph.add("Sub", graph.add("Exp", values[0]), _ONE),
    "gather": _gather,
    "integer_pow": lambda graph, equation, values: graph.add("Pow", values[0], np.asarray(equation.params["y"], "f4")),
    "pad": _pad,
    "reduce_window_max": _max_pool,
    "reshape": _reshape,
    "rsqrt": lambda graph, _, values: graph.add("Reciprocal", graph.add("Sqrt", values[0])),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": lambda graph, _, values: graph.add("Mul", values[0], values[0]),
    "squeeze": lambda graph, equation, values: graph.add(
        "Squeeze", values[0], _integers(equation.params["dimensions"])
    ),
    "stack": _stack,
    "tile": lambda graph, equation, values: graph.add("Tile", values[0], _integers(equation.params["reps"])),
    "transpose": lambda graph, equation, values: graph.add(
        "Transpose", values[0], perm=[*equation.params["permutation"]]
    ),
}  # Functions that add an operator's nodes, by the name of the JAX operator

OPSET, IR_VERSION = 18, 10

_LARGEST_FOLDED = 2**16
_MOST_BYTES = 2**31 - 2**24  # a protobuf message holds 2 GiB


def trace_to_onnx(
    reads: Mapping[str, Callable[[Any, Any], Any]], tensors: Mapping[str, np.ndarray], *, size: int
) -> Any:
    """Return the ONNX model of functions (tensors, images [case, size, size, 3]) -> [case, ...] by output name."""
    if (total := sum(array.nbytes for array in tensors.values())) > _MOST_BYTES:
        raise BadInput(f"ONNX: the parameters take {total} bytes; one file holds at most {_MOST_BYTES}")
    (num_cases,) = jax.export.symbolic_shape(CASE)
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in tensors.items()}
    images = jax.ShapeDtypeStruct((num_cases, size, size, 3), jnp.float32)
    with jax.disable_jit():  # a scan is then a loop of Python over its steps
        closed = jax.make_jaxpr(lambda tensors, images: [read(tensors, images) for read in reads.values()])(
            shapes, images
        )
    graph = Graph()
    parameters = [np.ascontiguousarray(tensors[name]) for name in sorted(tensors)]  # the order of a dict's leaves
    for name, value in zip(reads, convert(graph, closed, [*parameters, IMAGES]), strict=True):
        graph.nodes.append(_rename(value, name))
    outputs = {name: value.shape for name, value in zip(reads, closed.out_avals, strict=True)}
    return _make_model(graph, size=size, outputs=outputs)


def convert(graph: Graph, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
    """Add the equations of a jaxpr and return its outputs."""
    consts = [np.asarray(const) for const in getattr(jaxpr, "consts", ())]
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    known: dict[Any, Value] = dict(zip([*inner.constvars, *inner.invars], [*consts, *inputs], strict=True))

    def value_of(atom: Any) -> Value:
        if isinstance(atom, jax.extend.core.Literal):
            return np.asarray(atom.val, atom.aval.dtype)  # type: ignore[attr-defined]
        return known[atom]

    for equation in inner.eqns:
        _check_types(equation)
        values = [value_of(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name == "platform_index":
            outputs: Any = [_ONE]  # its reader is inlined below, whatever the platform
        elif (called := _called(equation)) is not None:
            outputs = convert(graph, called, values[1:] if name == "cond" else values)
        elif _is_foldable(equation, values):
            with jax.ensure_compile_time_eval():
                outputs = equation.primitive.bind(*values, **equation.params)
            outputs = [np.asarray(output) for output in (outputs if equation.primitive.multiple_results else [outputs])]
        elif name in OPERATORS:
            outputs = OPERATORS[name](graph, equation, values)
        else:
            raise BadInput(f"ONNX: the network uses {name}, which has no ONNX form here")
        known |= zip(equation.outvars, outputs if isinstance(outputs, list) else [outputs], strict=True)
    return [value_of(atom) for atom in inner.outvars]


def _called(equation: Any) -> Any:
    """Return the function that an equation calls, to be inlined; None for an operator."""
    if equation.primitive.name in ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "remat"):
        return equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        return equation.params["call_jaxpr"]
    if equation.primitive.name == "cond" and (platforms := equation.params.get("branches_platforms")) is not None:
        return equation.params["branches"][platforms.index(None)]  # the form for any platform
    return None


def _check_types(equation: Any) -> None:
    for atom in (*equation.invars, *equation.outvars):
        if jnp.issubdtype(atom.aval.dtype, jnp.floating) and atom.aval.dtype != jnp.float32:
            raise BadInput(
                f"ONNX: the network computes in {atom.aval.dtype}; expected float32 (config.training.compute_dtype and "
                "config.image_encoder.dtype)"
            )


def _is_foldable(equation: Any, values: Sequence[Value]) -> bool:
    """Return whether an equation has constant inputs and a result that is not much larger."""
    shapes = [atom.aval.shape for atom in equation.outvars]
    if any(isinstance(value, str) for value in values) or equation.primitive.name == "dim_as_value":
        return False
    if any(not isinstance(side, int) for shape in shapes for side in shape):
        return False
    return sum(map(math.prod, shapes)) <= max(_LARGEST_FOLDED, sum(value.size for value in values))


def _rename(value: Value, name: str) -> Any:
    import onnx.helper

    return onnx.helper.make_node("Identity", [value], [name])


def _make_model(graph: Graph, *, size: int, outputs: Mapping[str, tuple[Any, ...]]) -> Any:
    """Return the model with the nodes that the outputs, by name and shape, need."""
    import onnx
    import onnx.numpy_helper

    used, kept = set(outputs), []
    for node in reversed(graph.nodes):
        if used.intersection(node.output):
            kept.append(node)
            used.update(node.input)
    floats = onnx.TensorProto.FLOAT
    images = onnx.helper.make_tensor_value_info(IMAGES, floats, [CASE, size, size, 3])
    made_of = [onnx.helper.make_tensor_value_info(name, floats, [CASE, *shape[1:]]) for name, shape in outputs.items()]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants(used).items()]
    made = onnx.helper.make_graph(kept[::-1], "stepcot_jax", [images], made_of, constants)
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="stepcot_jax"
    )
    onnx.checker.check_model(model)
    return model


# The folder of an export.

TOLERANCE = 1e-4  # Largest difference between the logits of onnxruntime and of JAX, absolute or relative

_HERE = pathlib.Path(__file__).parent
_DESCRIBED = {
    onnx_loader.MANIFEST: "the file and the temperatures of each model, versions",
    "check.safetensors": "two images of noise and what the models compute of them, for `python load.py`",
    POINTS_FILE: "operating points with their figures",
}


def export_onnx(
    workdir: str | pathlib.Path | Trained,
    out: str | pathlib.Path,
    *,
    models: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write networks of a run, or of an export of one, as ONNX files with their image encoders."""
    for name in ("onnx", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise BadInput(f"--format=onnx needs {name} ({install_extra('onnx')})") from None

    def write(folder: pathlib.Path, trained: Trained, programs: Sequence[Program]) -> None:
        _write(folder, trained, programs, say=say)

    return export_networks(workdir, out, models, write=write, check=onnx_loader.check, tolerance=TOLERANCE, say=say)


def _write(folder: pathlib.Path, trained: Trained, programs: Sequence[Program], *, say: Callable[[str], None]) -> None:
    calibrated = {} if trained.calibration is None else trained.calibration.temperatures
    models: dict[str, Any] = {}
    described: dict[str, str] = {}
    parts: dict[str, Program] = {}
    for program in programs:
        say(f"writing the {program.name}")
        gate = make_gate_program(trained, program.name)
        reads = {onnx_loader.LOGITS: program.read} | ({} if gate is None else {onnx_loader.GATE_SCORES: gate.read})
        made = trace_to_onnx(reads, program.tensors | ({} if gate is None else gate.tensors), size=program.size)
        (folder / f"{program.name}.onnx").write_bytes(made.SerializeToString())
        temperatures = list(map(float, calibrated.get(program.name, [1.0] * trained.chain.num_steps)))
        models[program.name] = {"file": f"{program.name}.onnx", "temperatures": temperatures}
        parts_of_file = "image encoder" if gate is None else "image encoder and gate"
        described[f"{program.name}.onnx"] = f"the {program.name}, {parts_of_file} included"
        parts |= name_parts(program, gate)
    write_described(folder, trained, parts)
    made_with = {"stepcot_jax": __version__, "jax": jax.__version__}
    manifest = {"format": exported_models.FORMAT, "models": models, "opset": OPSET, "made_with": made_with}
    manifest["trained_on"] = trained.trained_on
    write_json(folder / onnx_loader.MANIFEST, manifest)
    if trained.operating_points is not None:
        save(folder / POINTS_FILE, trained.operating_points)
    copy_loader(folder, onnx_loader)
    files = list_files(folder, described | _DESCRIBED)
    use = fill_use(_HERE / "use.txt", trained, models, files, opset=f"opset {OPSET}", model=next(iter(models)))
    write_readme(folder, trained, programs, use)
