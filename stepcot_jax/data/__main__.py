"""Work with folders of cases: draw chest phantoms in the published layout."""

import argparse
import pathlib

from stepcot_jax.data.phantom import export_phantom
from stepcot_jax.errors import BadInput, make_workdir, run_tool
from stepcot_jax.terminal import Terminal


def draw_phantom(options: argparse.Namespace) -> None:
    """Export phantom cases to a new folder."""
    folder: pathlib.Path = options.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: found something there, accepted is a folder that is new or empty")
    make_workdir(folder)
    export_phantom(
        folder,
        num_cases=options.num_cases,
        seed=options.seed,
        size=options.size,
        prevalence=options.prevalence,
        progress=lambda indices: Terminal().watch(indices, "drawing the phantom"),
    )
    print(f"{options.num_cases} cases in {folder}")


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m stepcot_jax.data", description="Work with folders of cases.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    phantom = commands.add_parser("phantom", help="draw chest phantoms with all seven answers, boxes and masks")
    phantom.add_argument("folder", type=pathlib.Path, metavar="DIR")
    phantom.add_argument("--num-cases", type=int, default=1000, help="default 1000")
    phantom.add_argument("--size", type=int, default=256, help="height and width in pixels, default 256")
    phantom.add_argument("--prevalence", choices=("published", "flat"), default="published", help="of the diagnoses")
    phantom.add_argument("--seed", type=int, default=0, help="default 0")
    phantom.set_defaults(run=draw_phantom)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    run_tool(main)
