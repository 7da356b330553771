"""JAX's operators as ONNX nodes, as far as the networks of this package use them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepcot_jax.export.onnx_graph import Emit, Graph, Value
from stepcot_jax.host.errors import BadInput

_SAME_NAME = {
    "abs": "Abs", "add": "Add", "and": "And", "copy": "Identity", "copy_p": "Identity", "div": "Div", "eq": "Equal",
    "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual",
    "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg",
    "not": "Not", "or": "Or", "pow": "Pow", "sign": "Sign", "sqrt": "Sqrt", "stop_gradient": "Identity", "sub": "Sub",
    "tanh": "Tanh",
}  # fmt: skip
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_sum": "ReduceSum"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _same(operator: str) -> Emit:
    return lambda graph, _, values: graph.add(operator, *values)


def _reduce(operator: str) -> Emit:
    def emit(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
        return graph.add(operator, values[0], _whole(equation.params["axes"]), keepdims=0)

    return emit


def _whole(numbers: Any) -> np.ndarray:
    return np.asarray(numbers, np.int64).reshape(-1)


def _refuse(equation: Any, what: str) -> BadInput:
    return BadInput(f"ONNX: {equation.primitive.name} with {what} has no ONNX form here")


def _square(graph: Graph, _: Any, values: Sequence[Value]) -> Value:
    return graph.add("Mul", values[0], values[0])


def _rsqrt(graph: Graph, _: Any, values: Sequence[Value]) -> Value:
    return graph.add("Reciprocal", graph.add("Sqrt", values[0]))


def _expm1(graph: Graph, _: Any, values: Sequence[Value]) -> Value:
    return graph.add("Sub", graph.add("Exp", values[0]), np.float32(1).reshape(()))


def _erfc(graph: Graph, _: Any, values: Sequence[Value]) -> Value:
    return graph.add("Sub", np.asarray(1, np.float32), graph.add("Erf", values[0]))


def _integer_pow(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Pow", values[0], np.asarray(equation.params["y"], np.float32))


def _select(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    if len(values) != 3 or equation.invars[0].aval.dtype != np.bool_:
        raise _refuse(equation, f"{len(values) - 1} cases")
    return graph.add("Where", values[0], values[2], values[1])


def _cast(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    import onnx.helper

    return graph.add("Cast", values[0], to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(equation.params["new_dtype"])))


def _number_of_cases(graph: Graph, equation: Any, _: Sequence[Value]) -> Value:
    import onnx

    count = graph.add("Squeeze", graph.shape([equation.params["dim"]]), _whole(0))
    return graph.add("Cast", count, to=onnx.TensorProto.INT32)


def _reshape(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Reshape", values[0], graph.shape(equation.outvars[0].aval.shape), allowzero=1)


def _broadcast(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    target, places = equation.outvars[0].aval.shape, equation.params["broadcast_dimensions"]
    sides: list[Any] = [1] * len(target)
    for side, place in zip(equation.invars[0].aval.shape, places, strict=True):
        sides[place] = side
    spread = graph.add("Reshape", values[0], graph.shape(sides), allowzero=1)
    return spread if tuple(sides) == tuple(target) else graph.add("Expand", spread, graph.shape(target))


def _transpose(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Transpose", values[0], perm=list(equation.params["permutation"]))


def _concatenate(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Concat", *values, axis=equation.params["dimension"])


def _stack(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    axis = equation.params["axis"]
    return graph.add("Concat", *(graph.add("Unsqueeze", value, _whole(axis)) for value in values), axis=axis)


def _split(graph: Graph, equation: Any, values: Sequence[Value]) -> list[Value]:
    sizes = _whole(equation.params["sizes"])
    found = graph.add("Split", values[0], sizes, num_outputs=len(sizes), axis=equation.params["axis"])
    return found if isinstance(found, list) else [found]


def _tile(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Tile", values[0], _whole(equation.params["reps"]))


def _pad(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    low, high, interior = zip(*equation.params["padding_config"], strict=True)
    if any(interior) or min(*low, *high) < 0:
        raise _refuse(equation, f"padding {equation.params['padding_config']}")
    return graph.add("Pad", values[0], _whole([*low, *high]), values[1])


def _slice(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    params, shape = equation.params, equation.invars[0].aval.shape
    strides = params["strides"] or (1,) * len(shape)
    taken = [
        axis
        for axis, side in enumerate(shape)
        if (isinstance(side, int) and (params["start_indices"][axis], params["limit_indices"][axis]) != (0, side))
        or strides[axis] != 1
    ]  # fmt: skip
    found = (params["start_indices"], params["limit_indices"], range(len(shape)), strides)
    return graph.add("Slice", values[0], *(_whole([each[axis] for axis in taken]) for each in found))


def _slice_from(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    """A dynamic slice whose starts are constants, as they are once loops are unrolled."""
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape
    return _cut(graph, equation, values[0], values[1:], sizes, shape)


def _cut(graph: Graph, equation: Any, value: Value, starts: Sequence[Value], sizes: Any, shape: Any) -> Value:
    """Cut `sizes` from constant starts; axes of which all is taken may depend on the number of cases."""
    taken = [axis for axis, side in enumerate(shape) if sizes[axis] != side]
    if any(isinstance(starts[axis], str) for axis in taken):
        raise _refuse(equation, "an index that depends on the images")
    first = [min(max(int(starts[axis]), 0), shape[axis] - sizes[axis]) for axis in taken]
    last = [start + sizes[axis] for start, axis in zip(first, taken, strict=True)]
    return graph.add("Slice", value, _whole(first), _whole(last), _whole(taken)) if taken else value


def _gather(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    """One window at a constant place, which is what indexing with numbers is."""
    numbers, indices = equation.params["dimension_numbers"], values[1]
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    if isinstance(indices, str) or indices.ndim != 1 or numbers.operand_batching_dims:
        raise _refuse(equation, "indices of several places")
    starts: list[Any] = [np.asarray(0)] * len(shape)
    for place, axis in enumerate(numbers.start_index_map):
        starts[axis] = indices[place]
    found = _cut(graph, equation, values[0], starts, sizes, shape)
    return graph.add("Squeeze", found, _whole(numbers.collapsed_slice_dims)) if numbers.collapsed_slice_dims else found


def _squeeze(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    return graph.add("Squeeze", values[0], _whole(equation.params["dimensions"]))


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
    if params["batch_group_count"] != 1 or any(each != 1 for each in params["lhs_dilation"]):
        raise _refuse(equation, "a dilated input or grouped cases")
    low, high = zip(*params["padding"], strict=True)
    kernel = values[1]
    if isinstance(kernel, str):
        kernel = graph.add("Transpose", kernel, perm=list(numbers.rhs_spec))
    else:
        kernel = np.ascontiguousarray(np.transpose(kernel, numbers.rhs_spec))
    found = graph.add(
        "Conv",
        graph.add("Transpose", values[0], perm=list(numbers.lhs_spec)),
        kernel,
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        pads=[*low, *high],
        group=params["feature_group_count"],
    )
    return graph.add("Transpose", found, perm=[numbers.out_spec.index(axis) for axis in range(rank)])


def _max_pool(graph: Graph, equation: Any, values: Sequence[Value]) -> Value:
    params = equation.params
    window, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
    dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    if len(window) != 4 or (window[0], window[3]) != (1, 1) or dilated:
        raise _refuse(equation, f"a window {window}")
    low, high = zip(*padding[1:3], strict=True)
    found = graph.add(
        "MaxPool",
        graph.add("Transpose", values[0], perm=[0, 3, 1, 2]),
        kernel_shape=list(window[1:3]),
        strides=list(strides[1:3]),
        pads=[*low, *high],
    )
    return graph.add("Transpose", found, perm=[0, 2, 3, 1])


OPERATORS: dict[str, Emit] = {
    **{name: _same(operator) for name, operator in _SAME_NAME.items()},
    **{name: _reduce(operator) for name, operator in _REDUCTIONS.items()},
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "convert_element_type": _cast,
    "dim_as_value": _number_of_cases,
    "dot_general": _dot,
    "dynamic_slice": _slice_from,
    "erfc": _erfc,
    "expm1": _expm1,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "pad": _pad,
    "reduce_window_max": _max_pool,
    "reshape": _reshape,
    "rsqrt": _rsqrt,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": _square,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
}
"""By the name of the JAX operator."""
