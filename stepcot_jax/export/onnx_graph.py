"""An ONNX graph under construction. The number of cases stays free: shapes with it are computed in the graph."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from stepcot_jax.host.errors import BadInput

Value = Any
"""A constant (np.ndarray), or the name of a tensor of the graph."""

Emit = Callable[["Graph", Any, Sequence[Value]], Value | list[Value]]
"""Adds the nodes of one equation and returns its outputs."""

IMAGES, CASE = "images", "case"
"""Names of the input, and of the number of cases in the graph's shapes."""


class Graph:
    """Nodes and constants of a graph under construction; equal ones are there once.

    So outputs that read the same features share the encoder: onnxruntime does not find equal weights.
    """

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
        parts = [np.asarray([_factor(each)], np.int64) for each in dimensions]
        free = [not isinstance(each, int) for each in dimensions]
        if not any(free):
            return np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if self._num_cases is None:
            shape = self.add("Shape", IMAGES)
            self._num_cases = self.add("Slice", shape, np.asarray([0]), np.asarray([1]))
        found = [self.add("Mul", part, self._num_cases) if is_free else part
                 for part, is_free in zip(parts, free, strict=True)]  # fmt: skip
        return self.add("Concat", *found, axis=0)

    def constants(self, used: set[str]) -> dict[str, np.ndarray]:
        """Return the constants that are used, by name."""
        return {name: array for name, array in self._constants.values() if name in used}


def _factor(dimension: Any) -> int:
    """Return a fixed dimension, or how many times the number of cases a free one is."""
    if isinstance(dimension, int):
        return dimension
    one, two = (int(dimension._evaluate({CASE: number})) for number in (1, 2))
    if two != 2 * one:
        raise BadInput(f"ONNX: a dimension of {dimension} is no multiple of the number of cases")
    return one
