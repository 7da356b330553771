"""Score finished runs on phantoms that they never drew: `python -m benchmarks.further_chests RUN [RUN ...]`."""

import argparse
import pathlib

from benchmarks.corrections import NETWORKS, read_cases
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.settings import read_settings
from stepcot_jax.tools.tables.cell_networks import load_weights


def main(arguments: list[str] | None = None) -> int:
    """Print the share of right steps and diagnoses of each run's networks, each step alone."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.further_chests", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN", help="finished workdirs")
    parser.add_argument("--first", type=int, default=60_000, help="number of the first chest (default: %(default)s)")
    parser.add_argument("--num-cases", type=int, default=2000, help="chests (default: %(default)s)")
    options = parser.parse_args(arguments)
    terminal = Terminal()
    print("| run | network | steps (%) | diagnosis (%) |\n|---|---|---|---|", flush=True)
    for workdir in options.runs:
        phantom, weights = read_settings(workdir / "settings.json").phantom, load_weights(workdir, NETWORKS)
        if phantom.num_cases > options.first:
            raise BadInput(f"--first: {options.first} is below the {phantom.num_cases} phantoms of {workdir}")
        numbers = range(options.first, options.first + options.num_cases)
        drawn = [draw_case(number, **phantom.drawing) for number in terminal.watch(numbers, "drawing chests")]
        for name in NETWORKS:
            cases, sizes = read_cases(weights, name, drawn), weights.chain.answers_per_step
            right = [cases.logits[:, step, :size].argmax(1) == cases.labels[:, step] for step, size in enumerate(sizes)]
            shares = [100 * float(step.mean()) for step in right]
            print(f"| {workdir.name} | {name} | {sum(shares) / len(shares):.1f} | {shares[-1]:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    run_tool(main)
