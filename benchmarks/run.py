"""Measure this machine: `python -m benchmarks.run [--only NAME,...] [--json FILE]`.

Shared machines change speed by a factor of two within minutes, so ratios are taken between things measured in turn,
the sgemm yardstick included; absolute numbers mean something beside the yardstick alone.
"""

import argparse
import json
import os
import pathlib
import platform
from collections.abc import Callable

from benchmarks.measure import make_sgemm, sgemm_gflop, time_in_turn


def measure_peak(rounds: int) -> dict[str, float]:
    """Rate of large float32 matrix products, in units of 10^9 operations a second."""
    timing = time_in_turn({"sgemm": make_sgemm()}, rounds=3 * rounds, warm_up=2)["sgemm"]
    return {"peak_gflops": sgemm_gflop() / timing.median, "peak_spread": timing.spread}


def measure_joint(rounds: int) -> dict[str, float]:
    """The joint step, see `benchmarks.joint`."""
    from benchmarks.joint import measure_joint

    return measure_joint(rounds)


def measure_published(rounds: int) -> dict[str, float]:
    """The published way, see `benchmarks.published`."""
    from benchmarks.published import measure_published

    return measure_published(rounds)


def measure_encoders(rounds: int) -> dict[str, float]:
    """The encoders, see `benchmarks.encoders`."""
    from benchmarks.encoders import measure_encoders

    return measure_encoders(rounds)


def measure_latency(rounds: int) -> dict[str, float]:
    """One radiograph, see `benchmarks.latency`."""
    from benchmarks.latency import measure_latency

    return measure_latency(rounds)


def measure_pipeline(rounds: int) -> dict[str, float]:
    """The input pipeline, see `benchmarks.pipeline`."""
    from benchmarks.pipeline import measure_pipeline

    return measure_pipeline(rounds)


def measure_memory(rounds: int) -> dict[str, float]:
    """Peak memory of whole runs, see `benchmarks.memory`."""
    from benchmarks.memory import measure_memory

    return measure_memory(rounds)


def measure_checkpoints(rounds: int) -> dict[str, float]:
    """What saving costs a run, see `benchmarks.checkpoints`."""
    from benchmarks.checkpoints import measure_checkpoints

    return measure_checkpoints(rounds)


PARTS: dict[str, Callable[[int], dict[str, float]]] = {
    "peak": measure_peak,
    "joint": measure_joint,
    "published": measure_published,
    "encoders": measure_encoders,
    "latency": measure_latency,
    "memory": measure_memory,
    "pipeline": measure_pipeline,
    "checkpoints": measure_checkpoints,
}


def print_table(numbers: dict[str, float]) -> None:
    """The numbers, each with the spread of its rounds where it was timed: (slowest - fastest) / median."""
    for name, number in numbers.items():
        if name.endswith("_spread"):
            continue
        family = max(
            (other for other in numbers if other.endswith("_spread") and name.startswith(other[: -len("_spread")])),
            key=len,
            default=None,
        )
        spread = "" if family is None else f"  +- {100 * numbers[family]:.0f} %"
        print(f"{name:<34} {number:>12.4g}{spread}", flush=True)


def main() -> None:
    """Measure the parts that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Speed and memory on this machine.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, of {', '.join(PARTS)}; all by default")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers here, as one flat object")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each task, default 7")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"found parts {unknown}, accepted are {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error(f"found {options.rounds} rounds, accepted are whole numbers from 1")
    if options.json:
        try:
            options.json.write_text("{}\n")  # that this works should be known before minutes of measuring
        except OSError as error:
            parser.error(f"{options.json}: cannot be written ({error.strerror}), accepted is a file that can")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    numbers: dict[str, float] = {}
    for name in names:
        found = PARTS[name](options.rounds)
        print_table(found)
        numbers |= found
        if options.json:
            options.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
