"""Measure this machine: `python -m benchmarks.run [--only NAME,...] [--json FILE]`.

Shared machines change speed by a factor of two within minutes. So tasks are measured in turn and compared by ratios,
also with sgemm as a reference; absolute numbers are meaningful only relative to this reference.
"""

import argparse
import json
import os
import pathlib
import platform
from collections.abc import Callable

from benchmarks.measure import make_sgemm, sgemm_gflop, time_in_turn


def measure_peak(rounds: int) -> dict[str, float]:
    """Return the rate of large float32 matrix products, in units of 10^9 operations per second."""
    timing = time_in_turn({"sgemm": make_sgemm()}, rounds=3 * rounds, warm_up=2)["sgemm"]
    return {"peak_gflops": sgemm_gflop() / timing.median, "peak_spread": timing.spread}


def measure_joint(rounds: int) -> dict[str, float]:
    """Measure the joint step, see `benchmarks.joint`."""
    from benchmarks.joint import measure_joint

    return measure_joint(rounds)


def measure_published(rounds: int) -> dict[str, float]:
    """Measure the published method, see `benchmarks.published`."""
    from benchmarks.published import measure_published

    return measure_published(rounds)


def measure_encoders(rounds: int) -> dict[str, float]:
    """Measure the encoders, see `benchmarks.encoders`."""
    from benchmarks.encoders import measure_encoders

    return measure_encoders(rounds)


def measure_encoding(rounds: int) -> dict[str, float]:
    """Measure the encoding of files into a feature store, see `benchmarks.encoding`."""
    from benchmarks.encoding import measure_encoding

    return measure_encoding(rounds)


def measure_latency(rounds: int) -> dict[str, float]:
    """Measure the latency of one radiograph, see `benchmarks.latency`."""
    from benchmarks.latency import measure_latency

    return measure_latency(rounds)


def measure_pipeline(rounds: int) -> dict[str, float]:
    """Measure the input pipeline, see `benchmarks.pipeline`."""
    from benchmarks.pipeline import measure_pipeline

    return measure_pipeline(rounds)


def measure_memory(rounds: int) -> dict[str, float]:
    """Measure the peak memory of whole runs, see `benchmarks.memory`."""
    from benchmarks.memory import measure_memory

    return measure_memory(rounds)


def measure_checkpoints(rounds: int) -> dict[str, float]:
    """Measure the cost of checkpoints, see `benchmarks.checkpoints`."""
    from benchmarks.checkpoints import measure_checkpoints

    return measure_checkpoints(rounds)


def measure_policy(rounds: int) -> dict[str, float]:
    """Measure rollouts and updates of a policy, see `benchmarks.policy`."""
    from benchmarks.policy import measure_policy

    return measure_policy(rounds)


def measure_qwen(rounds: int) -> dict[str, float]:
    """Measure replies at the shape of Qwen2.5-0.5B, see `benchmarks.qwen`."""
    from benchmarks.qwen import measure_qwen

    return measure_qwen(rounds)


PARTS: dict[str, Callable[[int], dict[str, float]]] = {
    "peak": measure_peak,
    "joint": measure_joint,
    "published": measure_published,
    "encoders": measure_encoders,
    "encoding": measure_encoding,
    "latency": measure_latency,
    "memory": measure_memory,
    "pipeline": measure_pipeline,
    "checkpoints": measure_checkpoints,
    "policy": measure_policy,
    "qwen": measure_qwen,
}


def print_table(numbers: dict[str, float]) -> None:
    """Print the numbers; timed ones with the spread of their rounds, (slowest - fastest) / median."""
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
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts of {', '.join(PARTS)} (default all)")
    parser.add_argument("--json", type=pathlib.Path, help="JSON file for the numbers, one flat object")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds of each task (default 7)")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is not one of {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not 1 or more")
    if options.json:
        try:
            options.json.write_text("{}\n")  # fail before minutes of measuring
        except OSError as error:
            parser.error(f"--json: {options.json} cannot be written ({error.strerror})")
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
