"""Time from a new process to the first printed answer: `python -m benchmarks.first_answer WORKDIR [--rounds 7]`.

Prints for each network of a run the seconds of `predict` with one image, wall and CPU, and the ratio to a process that
starts JAX and makes one array. The processes alternate, so that a slow minute of the machine hits all of them.
"""

import argparse
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from PIL import Image

from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.reading.trained_model import load_trained

JAX = ["-c", "import jax; jax.numpy.zeros(1)"]


def measure_first_answer(workdir: pathlib.Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Return median wall and CPU seconds of each network's first answer, and of "jax" alone."""
    names = sorted(load_trained(workdir).params)
    with tempfile.TemporaryDirectory() as folder:
        image = pathlib.Path(folder) / "phantom.png"
        Image.fromarray(draw_case(0, size=512).image).save(image)
        predict = ["-m", "stepcot_jax", "predict", str(image), f"--checkpoint={workdir}"]
        commands = {"jax": JAX, **{name: [*predict, f"--model={name}"] for name in names}}
        for command in commands.values():
            _run(command)  # fills the caches of files and of compiled programs
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                found[name].append(_run(command))
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}  # type: ignore[misc]


def _run(command: list[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of a Python process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_answer")
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found = measure_first_answer(options.workdir, options.rounds)
    for name, (wall, cpu) in found.items():
        ratios = f"{wall / found['jax'][0]:.2f} and {cpu / found['jax'][1]:.2f} times jax"
        print(f"{name}: {wall:.2f} s, CPU {cpu:.2f} s; {ratios}")


if __name__ == "__main__":
    main()
