"""How cost grows: `python -m benchmarks.scaling --json benchmarks/scaling.json --tables docs/results/scaling_notes.md`.

Measures compile time and step time of the joint step by chain length, number of answers and batch size, its traffic
between eight virtual devices, and the size of a stored feature. Then writes all tables of the document, also the
computed ones.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.scaling_tables import fill, make_tables

NUM_DEVICES = 8
STEPS = (2, 7, 14, 28)
ANSWERS = (2, 9, 26)
BATCHES = (8, 32, 128, 256)


def measure_steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the joint step of both sizes by chain length and batch size."""
    from benchmarks.scaling_steps import SIZES, Problem, measure_step

    rows = []
    for size in SIZES.values():
        for num_steps in STEPS:
            for batch_size in BATCHES:
                problem = Problem(size, answers=(9,) * num_steps, batch_size=batch_size)
                rows.append(measure_step(problem, rounds=options.rounds, max_megabytes=options.max_megabytes))
                print(rows[-1], flush=True)
    return rows


def measure_answers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the joint step at the published size, seven steps and batch 32, by number of answers."""
    from benchmarks.scaling_steps import PUBLISHED, Problem, measure_step

    problems = [Problem(PUBLISHED, answers=(num_answers,) * 7) for num_answers in ANSWERS]
    return [measure_step(each, rounds=options.rounds, max_megabytes=options.max_megabytes) for each in problems]


def measure_communication(options: argparse.Namespace) -> list[dict[str, Any]]:  # noqa: ARG001 - nothing is timed
    """Count the traffic of the parallel step, in a process started with virtual devices."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={NUM_DEVICES}",
    }
    command = [sys.executable, "-m", "benchmarks.scaling_steps"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)  # noqa: S603
    return json.loads(found.stdout.splitlines()[-1])


def measure_store(options: argparse.Namespace) -> dict[str, float]:  # noqa: ARG001 - nothing is timed
    """Measure the bytes of a stored feature on disk and in memory."""
    import dataclasses

    from benchmarks.scaling_sizes import measure_store

    return dataclasses.asdict(measure_store())


def count_trained_parameters(options: argparse.Namespace) -> dict[str, int]:  # noqa: ARG001 - nothing is timed
    """Count the gradients of the published size by number of steps; at seven, with the published answers."""
    from benchmarks.joint import ANSWERS as PUBLISHED_ANSWERS
    from benchmarks.scaling_steps import PUBLISHED, Problem

    counts = {str(steps): Problem(PUBLISHED, answers=(9,) * steps).trained_parameters for steps in STEPS}
    return counts | {"7": Problem(PUBLISHED, answers=PUBLISHED_ANSWERS).trained_parameters}


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "trained_parameters": count_trained_parameters,
    "store": measure_store,
    "communication": measure_communication,
    "answers": measure_answers,
    "steps": measure_steps,
}


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts that the command line names, and write the numbers and the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="How cost grows.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts of {', '.join(PARTS)} ('' for none)")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="numbers; parts not measured are kept")
    parser.add_argument("--tables", type=pathlib.Path, help="Markdown file whose tables are rewritten")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each step (default 3)")
    parser.add_argument(
        "--max-megabytes", type=float, default=6000.0, help="most working memory of a step (default 6000)"
    )
    options = parser.parse_args(arguments)
    names = [name for name in options.only.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is not one of {', '.join(PARTS)}")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not 1 or more")
    numbers: dict[str, Any] = {}
    try:
        if options.json.exists():
            numbers = json.loads(options.json.read_text(encoding="utf-8"))
        document = options.tables.read_text(encoding="utf-8") if options.tables else ""
    except (OSError, ValueError) as error:
        parser.error(f"{options.json} or {options.tables}: cannot be read ({error})")
    for name in names:
        print(f"{name} ...", flush=True)
        numbers[name] = PARTS[name](options)
        numbers["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    if options.tables:
        options.tables.write_text(fill(document, make_tables(numbers)), encoding="utf-8")


if __name__ == "__main__":
    main()
