"""Trace a network into an ONNX graph: constants are folded, inner functions inlined, loops over steps unrolled.

`onnx_operators` has the operators; one that it lacks stops the export by name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from stepcot_jax.export.onnx_graph import CASE, IMAGES, Graph, Value
from stepcot_jax.export.onnx_operators import OPERATORS
from stepcot_jax.host.errors import BadInput

OPSET, IR_VERSION = 18, 10

_LARGEST_FOLDED = 2**16
_MOST_BYTES = 2**31 - 2**24  # a protobuf message holds 2 GiB


def trace_to_onnx(
    reads: Mapping[str, Callable[[Any, Any], Any]], tensors: Mapping[str, np.ndarray], *, size: int
) -> Any:
    """Return the ONNX model of a network, its parameters inside.

    Args:
      reads: by the name of an output: (tensors, images float32 [case, size, size, 3]) -> float32 [case, ...], such as
        logits [case, step, answer]. What they share, onnxruntime computes once.
    """
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
        if (called := _called(equation)) is not None:
            found: Any = convert(graph, called, values)
        elif _is_foldable(equation, values):
            with jax.ensure_compile_time_eval():
                found = equation.primitive.bind(*values, **equation.params)
            found = [np.asarray(each) for each in (found if equation.primitive.multiple_results else [found])]
        elif name in OPERATORS:
            found = OPERATORS[name](graph, equation, values)
        else:
            raise BadInput(f"ONNX: the network uses {name}, which has no ONNX form here")
        known |= zip(equation.outvars, found if isinstance(found, list) else [found], strict=True)
    return [value_of(atom) for atom in inner.outvars]


def _called(equation: Any) -> Any:
    """Return the function that an equation calls, to be inlined; None for an operator."""
    if equation.primitive.name in ("jit", "pjit", "closed_call", "core_call", "remat2", "checkpoint", "remat"):
        return equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        return equation.params["call_jaxpr"]
    return None


def _check_types(equation: Any) -> None:
    for atom in (*equation.invars, *equation.outvars):
        if jnp.issubdtype(atom.aval.dtype, jnp.floating) and atom.aval.dtype != jnp.float32:
            raise BadInput(
                f"ONNX: the network computes in {atom.aval.dtype}; expected float32 (config.training.compute_dtype and "
                "config.image_encoder.dtype)"
            )


def _is_foldable(equation: Any, values: Sequence[Value]) -> bool:
    """Whether an equation of constants gives a constant that is not much larger."""
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
