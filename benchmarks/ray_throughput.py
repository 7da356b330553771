"""Throughput of the Ray engine by workers: `python -m benchmarks.ray_throughput FOLDER`.

Images of phantoms are encoded by `stepcot features`, and reports annotated by rules by `stepcot annotate`, with the
local engine and with each number of Ray workers, each command in a process of its own.
A rate is the difference of a large and a small run, so that starts and compilations cancel. The order of the engines is
rotated in each round, and the median over the rounds is given.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

REPORTS = (
    "FINDINGS: The lungs are clear. IMPRESSION: No acute disease.",
    "FINDINGS: There is a small right pleural effusion. IMPRESSION: Effusion.",
    "FINDINGS: The heart is enlarged. The lungs are clear. IMPRESSION: Cardiomegaly.",
    "FINDINGS: A 2 cm nodule in the left upper lobe. No effusion. IMPRESSION: Nodule.",
)


def write_reports(path: pathlib.Path, number: int) -> None:
    """Write reports that all differ."""
    rows = ({"id": f"r{n}", "report": f"{REPORTS[n % 4]} Number {n}.", "image": f"{n}.png"} for n in range(number))
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def encode_command(folder: pathlib.Path, weights: str, number: int) -> list[str]:
    """Return the command that encodes phantoms."""
    flags = ["--config=quickstart", f"--workdir={folder}", f"--encoder={weights}"]
    return ["stepcot_jax", "features", *flags, f"--config.phantom.num_cases={number}"]


def annotate_command(folder: pathlib.Path, reports: pathlib.Path) -> list[str]:
    """Return the command that annotates reports."""
    return ["stepcot_jax", "annotate", str(reports), f"--out={folder}", "--images=none"]


def engine_flags(workers: int, *, is_absl: bool) -> list[str]:
    """Return the flags of an engine; 0 workers stand for the local one."""
    name = "--ray_workers" if is_absl else "--ray-workers"
    return ["--engine=ray", f"{name}={workers}"] if workers else ["--engine=local"]


def rate(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return items per second from a small and a large run.

    >>> rate([100, 300], [2.0, 4.0])
    100.0
    """
    return (sizes[1] - sizes[0]) / (seconds[1] - seconds[0])


def _time(command: Sequence[str], out: pathlib.Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    return time.monotonic() - started


def main() -> None:
    """Measure and print a table; FOLDER/ray_throughput.json has every time."""
    parser = argparse.ArgumentParser(prog="benchmarks.ray_throughput", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="for stores and results; it must not exist")
    parser.add_argument("--weights", default="", help="folder or Hugging Face id; default: a small random encoder")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--images", type=int, nargs=2, default=[1024, 4096], metavar=("SMALL", "LARGE"))
    parser.add_argument("--reports", type=int, nargs=2, default=[5_000, 40_000], metavar=("SMALL", "LARGE"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir()
    weights, out = options.weights, options.folder / "out"
    if not weights:
        from stepcot_jax.tools.tables.encoders import write_random_encoder

        weights = str(options.folder / "encoder")
        write_random_encoder(pathlib.Path(weights))
    sources = [options.folder / f"{number}.jsonl" for number in options.reports]
    for path, number in zip(sources, options.reports, strict=True):
        write_reports(path, number)
    tasks = {
        "images": (options.images, [encode_command(out, weights, number) for number in options.images], True),
        "reports": (options.reports, [annotate_command(out, path) for path in sources], False),
    }
    engines = [0, *options.workers]
    rates: dict[str, dict[int, list[float]]] = {name: {each: [] for each in engines} for name in tasks}
    for number in range(options.rounds):
        for workers in engines[number % len(engines) :] + engines[: number % len(engines)]:
            for name, (sizes, commands, is_absl) in tasks.items():
                flags = engine_flags(workers, is_absl=is_absl)
                seconds = [_time([*command, *flags], out) for command in commands]
                rates[name][workers].append(rate(sizes, seconds))
                print(
                    f"round {number + 1}, {workers or 'no'} workers: {rates[name][workers][-1]:.1f} {name}/s",
                    flush=True,
                )
    (options.folder / "ray_throughput.json").write_text(json.dumps({"cores": os.cpu_count(), **rates}, indent=1) + "\n")
    print("| engine | images/s | reports/s |\n| --- | --- | --- |")
    for workers in engines:
        found = [statistics.median(rates[name][workers]) for name in tasks]
        print(f"| {f'Ray, {workers} workers' if workers else 'local'} | {found[0]:.1f} | {found[1]:.0f} |")


if __name__ == "__main__":
    main()
