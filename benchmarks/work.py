"""Work of a compiled program on one device, read from XLA's text: products, bytes of memory, kernels."""

import dataclasses
import math
import re
from collections.abc import Sequence

from benchmarks.communication import CONTROL, NO_KERNEL, SHAPE, Instruction, bits, count_runs, split

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_CALLS = re.compile(r"\bcalls=%?([\w.-]+)")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](\{[^}]*\})?")
_FAST = re.compile(r"S\([1-9]\d*\)")  # in a layout: an array in the fast memory of a TPU's core
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_SAME = frozenset({"bitcast", "copy", "convert", "reshape", "transpose"})


@dataclasses.dataclass(frozen=True)
class Work:
    """What one run of a program does on a device.

    Attributes:
      flops: of matrix products and convolutions, two a multiplication, by the type of their inputs.
      num_bytes: that kernels read and write, each of their arrays once.
      num_kernels: that are started.
      loop_kernels: instructions inside loops that start a kernel, each once.
    """

    flops: dict[str, float]
    num_bytes: float
    num_kernels: int
    loop_kernels: int


def read_work(program: str, *, unknown_trips: int = 1) -> Work:
    """Read the work of a compiled program; loops count times their length, both branches of a condition count.

    Args:
      program: `jax.stages.Compiled.as_text()`.
      unknown_trips: of a loop whose length the compiler does not know.
    """
    computations, entry = split(program)
    tables = {name: {each.name: each for each in lines} for name, lines in computations.items()}
    flops: dict[str, float] = {}
    for name, (times, _) in count_runs(computations, entry, unknown_trips).items():
        for each in computations[name]:
            kind, number = _count_flops(each, tables[name])
            if number:
                flops[kind] = flops.get(kind, 0.0) + number * (times or 1)
    num_bytes, num_kernels, loop_kernels = 0.0, 0, 0
    for name, (times, in_loop) in count_runs(computations, entry, unknown_trips, inside=CONTROL).items():
        for each in computations[name]:
            if each.opcode in NO_KERNEL or each.opcode.endswith(("-done", "-update")):
                continue
            num_bytes += (times or 1) * _count_bytes(each, tables[name], computations)
            num_kernels += times or 1
            loop_kernels += in_loop
    return Work(flops, num_bytes, num_kernels, loop_kernels)


def _operands(instruction: Instruction, table: dict[str, Instruction]) -> list[str]:
    """Return the names of an instruction's operands; the text may have their types too, and "%" before names."""
    line = instruction.line
    start = line.index(f" {instruction.opcode}(") + len(instruction.opcode) + 2
    depth, end = 1, start
    while depth and end < len(line):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return [name for name in _NAME.findall(line[start : end - 1]) if name in table]


def _shape(type_text: str) -> tuple[str, list[int]]:
    """Return element type and axes of the first array of a type."""
    name, axes = SHAPE.findall(type_text)[0]
    return name, [int(axis) for axis in axes.split(",") if axis]


def _size(type_text: str) -> float:
    """Return the bytes of a type's arrays that are not in fast memory."""
    found = 0.0
    for name, axes, layout in _ARRAY.findall(type_text):
        if not _FAST.search(layout):
            found += math.prod(int(axis) for axis in axes.split(",") if axis) * bits(name) / 8
    return found


# Products.


def _count_flops(each: Instruction, table: dict[str, Instruction]) -> tuple[str, float]:
    """Return the type of the inputs and the operations of a product; 0 for another instruction."""
    if each.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.line)
        return _count_product(each, table, axes[1].split(",") if axes else [])
    if each.opcode == "convolution":
        return _count_convolution(each, table, forward=True)
    if each.opcode == "custom-call":
        if "__cublas$" in each.line:
            axes = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', each.line)
            return _count_product(each, table, re.findall(r"\d+", axes[1]) if axes else [])
        if "__cudnn$conv" in each.line:
            return _count_convolution(each, table, forward="convBackward" not in each.line)
    return "", 0.0


def _count_product(each: Instruction, table: dict[str, Instruction], axes: Sequence[str]) -> tuple[str, float]:
    kind, left = _shape(table[_operands(each, table)[0]].result)
    _, result = _shape(each.result)
    return kind, 2.0 * math.prod(result) * math.prod(left[int(axis)] for axis in axes if axis)


def _count_convolution(each: Instruction, table: dict[str, Instruction], *, forward: bool) -> tuple[str, float]:
    """Return the operations of a convolution, as XLA counts them: none in the padding and between dilated inputs."""
    labels = _LABELS.search(each.line)
    (kind, first), (_, second) = (_shape(table[name].result) for name in _operands(each, table)[:2])
    _, result = _shape(each.result)
    if labels is None:
        raise ValueError(f"a convolution without dim_labels: {each.line.strip()[:200]}")
    if not forward:  # as many operations as the convolution that it is a gradient of, with its padding
        kernel, outputs = (result, second) if "BackwardFilter" in each.line else (second, first)
        return kind, 2.0 * math.prod(outputs) * math.prod(kernel) / kernel[labels[2].index("o")]
    number = 2.0 * result[labels[3].index("b")] * second[labels[2].index("o")] * second[labels[2].index("i")]
    for axis in range(len(result) - 2):
        number *= _count_positions(
            each.line, axis, first[labels[1].index(str(axis))], result[labels[3].index(str(axis))]
        )
    return kind, number


def _count_positions(line: str, axis: int, num_inputs: int, num_outputs: int) -> int:
    """Return the pairs of an output and a place in the window, along one axis, that meet an input."""

    def read(name: str, default: str) -> str:
        found = re.search(rf"[{{ ]{name}=([\dx_-]+)", line)
        return found[1].split("x")[axis] if found else default

    window, stride, low = int(read("size", "1")), int(read("stride", "1")), int(read("pad", "0_0").rpartition("_")[0])
    spread, apart = int(read("lhs_dilate", "1")), int(read("rhs_dilate", "1"))
    places = (output * stride + place * apart - low for output in range(num_outputs) for place in range(window))
    return sum(0 <= place <= (num_inputs - 1) * spread and place % spread == 0 for place in places)


# Bytes.


def _count_bytes(each: Instruction, table: dict[str, Instruction], computations: dict[str, list[Instruction]]) -> float:
    """Return the bytes that a kernel reads and writes."""
    operands = [table[name].result for name in _operands(each, table)]
    if each.opcode.endswith("-start"):
        return _size(each.result)  # a tuple of operands and results
    if each.opcode in _SLICES:
        return 2 * _size(each.result)
    if each.opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    if each.opcode == "custom-call" and "__cu" in each.line:  # of a library: the second result is its workspace
        return sum(map(_size, operands)) + _size(_ARRAY.search(each.result)[0])  # type: ignore[index]
    called = _CALLS.search(each.line)
    if each.opcode == "fusion" and called:
        return _count_fusion(each, operands, computations[called[1]])
    return sum(map(_size, operands)) + _size(each.result)


def _count_fusion(each: Instruction, operands: list[str], inside: list[Instruction]) -> float:
    """Return the bytes of a fusion: of an array of which it reads or writes slices, only these."""
    table = {line.name: line for line in inside}
    users: dict[str, list[tuple[Instruction, int]]] = {}
    for line in inside:
        for place, name in enumerate(_operands(line, table)):
            users.setdefault(name, []).append((line, place))

    def read(name: str, whole: float) -> float:
        """Return the bytes read of an array inside."""
        total = 0.0
        for line, place in users.get(name, []):
            if line.opcode in _SLICES and place == 0:
                total += _size(line.result)
            elif line.opcode == "dynamic-update-slice" and place == 0:
                continue
            elif line.opcode in _SAME and users.get(line.name):
                total += read(line.name, whole)
            else:
                return whole
        return min(total, whole)

    found = 0.0
    for line in inside:
        if line.opcode == "parameter":
            place = int(re.search(r"parameter\((\d+)\)", line.line)[1])  # type: ignore[index]
            whole = _size(operands[place])
            found += min(read(line.name, whole), whole)
    return found + _count_written(inside[-1], _size(each.result), table)


def _count_written(root: Instruction, whole: float, table: dict[str, Instruction]) -> float:
    """Return the bytes that a fusion writes: of an array that it updates in place, the update."""
    if root.opcode == "dynamic-update-slice":
        return min(whole, _size(table[_operands(root, table)[1]].result))
    if root.opcode in _SAME:
        return _count_written(table[_operands(root, table)[0]], whole, table)
    if root.opcode == "tuple":
        parts = [table[name] for name in _operands(root, table)]
        return min(whole, sum(_count_written(part, _size(part.result), table) for part in parts))
    return whole
