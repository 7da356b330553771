"""Make the paper's tables from runs on any data: diagnosis, steps, components, effect, transfer, cost, or all of them.

python -m stepcot_jax.tables NAME --config=NAME --workdir=DIR [--seeds=0,1,2] [--encoders=NAME=WEIGHTS,...]
    [--target_config=NAME] [--out=DIR] [--resamples=1000] [--config.a.b=value ...]

Every run is a folder below DIR/cells, is made once however many tables need it, and is found again by the next start;
one that was interrupted goes on. Tables are written as CSV, Markdown and LaTeX to DIR/tables, or to --out.
Readers have a tool of their own, python -m stepcot_jax.readers.
"""

import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from stepcot_jax.host.errors import BadInput, make_workdir, run_tool
from stepcot_jax.settings.flags import define_flags, parse
from stepcot_jax.settings.run_settings import Settings, make_settings

NAMES = ("diagnosis", "steps", "components", "effect", "transfer", "cost")


def read_names(arguments: list[str]) -> tuple[str, ...]:
    """The tables that the command line names.

    Raises:
      BadInput: it names none, or one that there is not.
    """
    accepted = f"accepted is one or more of {', '.join(NAMES)}, or all"
    if not arguments:
        raise BadInput(f"NAME: found nothing, {accepted}")
    for name in arguments:
        if name == "readers":
            raise BadInput("readers: found a table of a tool of its own, accepted is python -m stepcot_jax.readers")
        if name not in (*NAMES, "all"):
            raise BadInput(f"{name}: found no such table, {accepted}")
    return NAMES if "all" in arguments else tuple(dict.fromkeys(arguments))


def read_encoders(entries: list[str]) -> dict[str, str]:
    """Encoders by name from NAME=WEIGHTS entries.

    Raises:
      BadInput: an entry is something else, or a name comes twice.
    """
    encoders: dict[str, str] = {}
    for entry in entries:
        name, separator, weights = entry.partition("=")
        if not separator or not name.strip() or not weights.strip():
            raise BadInput(f"--encoders: found {entry!r}, accepted is NAME=WEIGHTS, such as CLIP=/path/to/clip")
        if name.strip() in encoders:
            raise BadInput(f"--encoders: found {name.strip()!r} twice, accepted is each name once")
        encoders[name.strip()] = weights.strip()
    return encoders


def read_seeds(entries: list[str], settings: Settings) -> tuple[int, ...]:
    """The seeds; without any the config's.

    Raises:
      BadInput: one is no whole number from 0.
    """
    for entry in entries:
        if not entry.strip().isdecimal():
            raise BadInput(f"--seeds: found {entry!r}, accepted are whole numbers from 0, such as --seeds=0,1,2")
    return tuple(int(entry) for entry in entries) or (settings.seed,)


def main(arguments: list[str]) -> None:
    """Make the tables that the flags describe."""

    def run() -> None:
        names = read_names(arguments[1:])
        values = flags.FLAGS
        if not values.workdir:
            raise BadInput("--workdir is required (a writable folder)")
        settings = make_settings(values.config)
        seeds, encoders = read_seeds(values.seeds, settings), read_encoders(values.encoders)
        target = make_settings(values.target_config) if values.target_config else None
        workdir = pathlib.Path(values.workdir)
        make_workdir(workdir)
        # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
        from stepcot_jax.host.terminal import Terminal
        from stepcot_jax.tables.cells import Cells
        from stepcot_jax.tables.making import make_tables
        from stepcot_jax.tables.plan import Plan

        logging.set_verbosity(logging.WARNING)  # Orbax and Grain tell of every file they touch
        plan = Plan(settings, seeds, Cells(workdir, Terminal()), encoders, target, values.resamples)
        folder = pathlib.Path(values.out) if values.out else workdir / "tables"
        command = ["python", "-m", "stepcot_jax.tables", *sys.argv[1:]]
        written = make_tables(names, plan, command=command, folder=folder)
        print(f"written to {folder}: {', '.join(written)}")

    run_tool(run)


def define_table_flags() -> None:
    """The flags beside those of a run."""
    flags.DEFINE_list("seeds", [], "Seeds of every run; the config's if none is given.")
    flags.DEFINE_list("encoders", [], "NAME=WEIGHTS of more frozen encoders, or of folders of imported features.")
    flags.DEFINE_string("out", None, "Folder for the tables; WORKDIR/tables if not given.")
    flags.DEFINE_integer("resamples", 1000, "Resamples of every bootstrap.", lower_bound=10)
    config_flags.DEFINE_config_file("target_config", None, "Settings whose data `transfer` reads.")


if __name__ == "__main__":
    define_flags()
    define_table_flags()
    app.run(main, flags_parser=parse)
