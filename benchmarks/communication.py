"""Traffic of a compiled program between devices: its collectives, read from XLA's text, and the bytes in a ring."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "bf16": 16, "token": 0}
SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.-]+)\s.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(")
_CALLEE = re.compile(r"\b(calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
CONTROL = frozenset({"while", "call", "conditional"})
NO_KERNEL = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", *CONTROL})
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: one of `KINDS`.
      num_bytes: bytes of its result on one device.
      group_size: devices in each of its groups.
      times: executions in one run of the program; more than 1 inside a loop.
      sizes: elements of each array of its result.
      in_loop: whether a loop executes it.
    """

    kind: str
    num_bytes: int
    group_size: int
    times: int
    sizes: tuple[int, ...] = ()
    in_loop: bool = False

    @property
    def sent_bytes(self) -> float:
        """Bytes that each device sends in a ring, over all executions."""
        others = self.group_size - 1
        share = {
            "all-reduce": 2 * others / self.group_size,
            "all-gather": others / self.group_size,
            "reduce-scatter": float(others),  # its result is one share of its input
            "all-to-all": others / self.group_size,
            "collective-permute": 1.0,
        }
        return self.times * self.num_bytes * share[self.kind]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a program's text: its name, opcode, the type of its result, and its line."""

    name: str
    opcode: str
    result: str
    line: str


def read_collectives(program: str, *, unknown_trips: int | None = None) -> list[Collective]:
    """Read the collectives of a compiled program.

    Args:
      program: `jax.stages.Compiled.as_text()`.
      unknown_trips: of a loop whose length the compiler does not know; None refuses one with a collective.

    Raises:
      ValueError: a collective is in a loop of unknown length, so that its bytes are unknown.
    """
    computations, entry = split(program)
    found = []
    for name, (times, in_loop) in count_runs(computations, entry, unknown_trips).items():
        for instruction in computations[name]:
            kind = instruction.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            if times is None:
                raise ValueError(f"{kind} is in a loop whose length the compiler does not know")
            arrays = SHAPE.findall(instruction.result)
            if instruction.opcode != kind and kind != "all-reduce":
                # An asynchronous start has operands, results and, of some kinds, scalar contexts.
                arrays = [array for array in arrays if array != ("u32", "")]
                arrays = arrays[len(arrays) // 2 :]
            sizes = tuple(math.prod(int(axis) for axis in axes.split(",") if axis) for _, axes in arrays)
            num_bytes = sum(size * bits(name) // 8 for (name, _), size in zip(arrays, sizes, strict=True))
            group_size = _group_size(instruction.line, program)
            found.append(Collective(kind, num_bytes, group_size, times, sizes, in_loop))
    return found


def split(program: str) -> tuple[dict[str, list[Instruction]], str]:
    """Return the instructions of each computation, and the name of the entry computation."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in program.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(Instruction(match[1], match[3], match[2], line))
    if not entry:
        raise ValueError("the text of the program has no ENTRY computation; pass Compiled.as_text()")
    return computations, entry


def count_runs(
    computations: dict[str, list[Instruction]],
    entry: str,
    unknown_trips: int | None,
    inside: frozenset[str] | None = None,
) -> dict[str, tuple[int | None, bool]]:
    """Return how often a run of the program executes each computation (None: unknown), and whether a loop does.

    Args:
      inside: instructions whose computations are visited; None for all.
    """
    runs: dict[str, tuple[int | None, bool]] = {}

    def visit(name: str, times: int | None, in_loop: bool) -> None:
        before, was_in_loop = runs.get(name, (0, False))
        runs[name] = (None if before is None or times is None else before + times, was_in_loop or in_loop)
        for instruction in computations[name]:
            if inside is not None and instruction.opcode not in inside:
                continue
            is_loop = instruction.opcode == "while"
            factor: int | None = 1
            if is_loop:
                trips = _count_trips(instruction.line, computations)
                factor = unknown_trips if trips is None else trips
            for callee in _callees(instruction.line):
                visit(callee, None if times is None or factor is None else times * factor, in_loop or is_loop)

    visit(entry, 1, False)
    return runs


def _count_trips(loop: str, computations: dict[str, list[Instruction]]) -> int | None:
    """Return the length of a loop that the compiler says, or that runs as JAX's scans do until a constant."""
    if known := _TRIPS.search(loop):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.-]+)", loop)
    lines = computations[condition[1]] if condition else []
    if lines and lines[-1].opcode == "compare" and "direction=LT" in lines[-1].line:
        last = re.search(r"([\w.-]+)\), direction", lines[-1].line)
        ends = [each.line for each in lines if last and each.name == last[1] and each.opcode == "constant"]
        return int(re.search(r"constant\((\d+)\)", ends[0])[1]) if ends else None  # type: ignore[index]
    return None


def _callees(line: str) -> Iterator[str]:
    for match in _CALLEE.finditer(line):
        yield match[2]
    for match in _BRANCHES.finditer(line):
        yield from (name.strip().lstrip("%") for name in match[1].split(","))


def bits(name: str) -> int:
    """Return the bits of an element of a type such as "f32"."""
    return _BITS[name] if name in _BITS else int(re.search(r"\d+", name)[0])  # type: ignore[index]


def _group_size(line: str, program: str) -> int:
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(iota[1])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(listed[1].split(","))
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):  # since JAX 0.12
        axes = {axis: int(size) for axis, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        return math.prod(axes[axis] for axis in re.findall(r"'(\w+)'", named[2]))
    header = program.partition("\n")[0]
    sizes = [int(size) for size in re.findall(r"(?:num_partitions|replica_count)=(\d+)", header)]
    return math.prod(sizes)


def totals(collectives: list[Collective]) -> dict[str, dict[str, float]]:
    """Return for each kind: number, executions, and the bytes that a device holds and sends."""
    found: dict[str, dict[str, float]] = {}
    for collective in collectives:
        entry = found.setdefault(collective.kind, {"count": 0, "runs": 0, "bytes": 0, "sent_bytes": 0.0})
        entry["count"] += 1
        entry["runs"] += collective.times
        entry["bytes"] += collective.times * collective.num_bytes
        entry["sent_bytes"] += collective.sent_bytes
    return found
