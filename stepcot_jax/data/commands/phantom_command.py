"""The command that draws chest phantoms into a new folder."""

import argparse
import pathlib
from typing import Any

from stepcot_jax.host.errors import BadInput, make_workdir
from stepcot_jax.host.terminal import Terminal


def add_command(commands: Any) -> None:
    """Add `phantom` to the commands of `python -m stepcot_jax.data`."""
    parser = commands.add_parser("phantom", help="draw chest phantoms with all seven answers, boxes and masks")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--num-cases", type=int, default=1000, help="default 1000")
    parser.add_argument("--size", type=int, default=256, help="height and width in pixels, default 256")
    parser.add_argument("--prevalence", choices=("published", "flat"), default="published", help="of the diagnoses")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.set_defaults(run=draw_phantom)


def draw_phantom(options: argparse.Namespace) -> None:
    """Export phantom cases to a new folder."""
    from stepcot_jax.data.phantom.phantom import export_phantom

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
