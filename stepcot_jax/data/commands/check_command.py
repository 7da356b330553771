"""The command that says what a data root holds and whether a run can use it."""

import argparse
import math
import pathlib
import sys
from typing import Any

from stepcot_jax.data.commands.root_options import add_reading_options, reading_arguments
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole

EXIT_WOULD_STOP = 1


def add_command(commands: Any) -> None:
    """Add `check` to the commands of `python -m stepcot_jax.data`."""
    parser = commands.add_parser(
        "check",
        help="say what a folder holds and whether a run can use it",
        description="Says what a folder of cases holds, reading it as a run does. Exit code 0: a run can use it; 1: "
        "something would stop a run; 2: it cannot be read at all.",
    )
    add_reading_options(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the facts as JSON; - for stdout instead of the table"
    )
    parser.add_argument(
        "--images",
        choices=("decode", "exists", "none"),
        default="decode",
        help="decode each, only see that it exists, or do without any (as with imported features); default decode",
    )
    parser.add_argument("--max-megapixels", type=float, default=64.0, help="of an image, default 64")
    parser.add_argument("--split-seed", type=int, default=0, help="of splits made without tables, default 0")
    parser.add_argument("--num-threads", type=int, default=2, help="images decoded at a time, default 2")
    parser.set_defaults(run=run_check)


def run_check(options: argparse.Namespace) -> int:
    """Check a data root; the exit code says whether a run can use it."""
    from stepcot_jax.data.checks.check import CheckOptions, check_root
    from stepcot_jax.data.checks.check_printing import print_facts, write_facts
    from stepcot_jax.host.terminal import Terminal

    for name in ("max_megapixels", "num_threads"):
        if not 0 < getattr(options, name) < math.inf:
            raise BadInput(f"--{name.replace('_', '-')}: found {getattr(options, name)}, accepted are numbers above 0")
    facts = check_root(
        options.root,
        CheckOptions(
            **reading_arguments(options),
            images=options.images,
            max_pixels=int(options.max_megapixels * 1e6),
            split_seed=options.split_seed,
            num_threads=options.num_threads,
        ),
        terminal=Terminal(),
    )
    if options.json == "-":
        sys.stdout.write(write_facts(facts))
    else:
        if options.json:
            _write_json(pathlib.Path(options.json), write_facts(facts))
        print_facts(facts)
    return EXIT_WOULD_STOP if facts["stops"] else 0


def _write_json(path: pathlib.Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise BadInput(f"--json: {path} cannot be written ({error.strerror}), accepted is a file that can") from None
