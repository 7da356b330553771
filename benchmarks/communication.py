"""Traffic of a compiled program between devices: its collectives, read from XLA's text, and the bytes in a ring."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "bf16": 16, "token": 0}
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.-]+)\s.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT\s+)?%?[\w.-]+ = (\(.*?\)|\S+) ([a-z][\w-]*)\(")
_CALLEE = re.compile(r"\b(calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program.

    Attributes:
      kind: one of `KINDS`.
      num_bytes: bytes of its result on one device.
      group_size: devices in each of its groups.
      times: executions in one run of the program; more than 1 inside a loop.
    """

    kind: str
    num_bytes: int
    group_size: int
    times: int

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
class _Instruction:
    opcode: str
    result: str
    line: str


def read_collectives(program: str) -> list[Collective]:
    """Read the collectives of a compiled program.

    Args:
      program: `jax.stages.Compiled.as_text()`.

    Raises:
      ValueError: a collective is in a loop of unknown length, or split into start and end, so that its bytes are
        unknown.
    """
    computations, entry = _split(program)
    found = []
    for name, times in _runs(computations, entry).items():
        for instruction in computations[name]:
            if instruction.opcode.removesuffix("-start") not in KINDS:
                continue
            if instruction.opcode.endswith("-start"):
                raise ValueError(f"{instruction.opcode} is not a collective in one piece, as CPU programs have")
            if times is None:
                raise ValueError(f"{instruction.opcode} is in a loop whose length the compiler does not know")
            size = _group_size(instruction.line, program)
            found.append(Collective(instruction.opcode, _num_bytes(instruction.result), size, times))
    return found


def _split(program: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Return the instructions of each computation, and the name of the entry computation."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", None
    for line in program.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append(_Instruction(match[2], match[1], line))
    if not entry:
        raise ValueError("the text of the program has no ENTRY computation; pass Compiled.as_text()")
    return computations, entry


def _runs(computations: dict[str, list[_Instruction]], entry: str) -> dict[str, int | None]:
    """Return how often a run of the program executes each computation; None if a loop's length is unknown."""
    runs: dict[str, int | None] = {}

    def visit(name: str, times: int | None) -> None:
        before = runs.get(name, 0)
        runs[name] = None if before is None or times is None else before + times
        for instruction in computations[name]:
            for callee in _callees(instruction.line):
                factor: int | None = 1
                if instruction.opcode == "while":
                    trips = _TRIPS.search(instruction.line)
                    factor = int(trips[1]) if trips else None
                visit(callee, None if times is None or factor is None else times * factor)

    visit(entry, 1)
    return runs


def _callees(line: str) -> Iterator[str]:
    for match in _CALLEE.finditer(line):
        yield match[2]
    for match in _BRANCHES.finditer(line):
        yield from (name.strip().lstrip("%") for name in match[1].split(","))


def _num_bytes(result: str) -> int:
    """Return the bytes of a type such as f32[8,4]{1,0}, or of a tuple of types."""
    total = 0
    for name, axes in _SHAPE.findall(result):
        bits = _BITS[name] if name in _BITS else int(re.search(r"\d+", name)[0])  # type: ignore[index]
        total += math.prod(int(axis) for axis in axes.split(",") if axis) * bits // 8
    return total


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
