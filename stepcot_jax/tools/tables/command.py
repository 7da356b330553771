"""Make the paper's tables, and others of corrections, folds and policies, from runs on any data.

NAME is diagnosis, steps, components, transfer, cost, corrections, folds, supervision, curriculum, vqa, robustness,
self_check or stages, several of them, or all: the first five. The last four have published figures of GEMeX-RMCoT and
MEDSAGE; without --config they are printed alone, and nothing is trained.

stepcot tables NAME --config=NAME --workdir=DIR [--seeds=0,1,2] [--encoders=NAME=WEIGHTS,...]
    [--constrained=DIR,...] [--zero_shot=TABLE=REPLIES,...] [--target_config=NAME] [--out=DIR] [--resamples=1000]
    [--sizes=300,1000,3000,10000] [--withhold_at=3000] [--updates=2000] [--unseen=4000] [--partial]
    [--config.a.b=value ...]

Every run is a folder below DIR/cells and is shared by the tables that need it; the same command resumes interrupted
runs. DIR may be gs://BUCKET/FOLDER, as for `main`. Tables are written as CSV, Markdown and LaTeX
to DIR/tables, or to --out.
Human readers have their own command, stepcot readers.
"""

import dataclasses
import importlib
import itertools
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import app, flags, logging
from ml_collections import config_flags

from stepcot_jax import __version__
from stepcot_jax.host.download import is_address, refuse_address
from stepcot_jax.host.errors import EXIT_BAD_INPUT, BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.run.settings import Settings, make_settings
from stepcot_jax.tools.options import define_flags, parse

if TYPE_CHECKING:
    from stepcot_jax.tools.tables.plan import Plan, Recipe


# "all": one of `all`, the paper's; the others train anew, folds five times for each seed. "large": has rows of large
# models, from --constrained. "policy": trains policies. "printed": its published figures can be printed without runs.
# "partial": can be made from some of its cells. "zero_shot": has a row of a model without training, from --zero_shot.
TABLES: dict[str, tuple[str, ...]] = {
    "diagnosis": ("step_tables", "all", "large"),
    "steps": ("step_tables", "all", "large"),
    "components": ("step_tables", "all"),
    "transfer": ("transfer_table", "all"),
    "cost": ("cost_table", "all"),
    "corrections": ("correction_tables",),
    "folds": ("folds_table",),
    "supervision": ("supervision_table", "partial"),
    "curriculum": ("policy_tables", "policy"),
    "vqa": ("policy_tables", "policy", "printed", "zero_shot"),
    "robustness": ("robustness_table", "policy", "printed"),
    "self_check": ("policy_tables", "policy", "printed"),
    "stages": ("policy_tables", "policy", "printed", "zero_shot"),
}
"""Module with the recipe of each table, and its marks."""


def list_names(mark: str) -> list[str]:
    """Return the tables with a mark."""
    return [name for name, (_, *marks) in TABLES.items() if mark in marks]


def find_recipe(name: str) -> "Recipe":
    """Return the recipe of a table."""
    recipe: Recipe = importlib.import_module(f"stepcot_jax.tools.tables.{TABLES[name][0]}").RECIPES[name]
    return recipe


def read_names(arguments: list[str]) -> tuple[str, ...]:
    """Return the tables that the command line names, in the order of `TABLES`."""
    known = f"{', '.join(TABLES)} or all"
    if not arguments:
        raise BadInput(f"NAME is required (one or more of {known})")
    for name in arguments:
        if name not in (*TABLES, "all"):
            raise BadInput(f"table {name!r} is not one of {known} (human readers: stepcot readers)")
    chosen = {*arguments, *(list_names("all") if "all" in arguments else ())}
    return tuple(name for name in TABLES if name in chosen)


def read_pairs(entries: list[str], flag: str, form: str) -> dict[str, str]:
    """Return the values of entries such as NAME=WEIGHTS by name."""
    values: dict[str, str] = {}
    for entry in entries:
        name, _, value = map(str.strip, entry.partition("="))
        if not name or not value or name in values:
            raise BadInput(f"{flag}: {entry!r} is not {form}, each name once")
        values[name] = value
    return values


def read_seeds(entries: list[str], settings: Settings) -> tuple[int, ...]:
    """Return the seeds; without entries, the seed of the config."""
    for entry in entries:
        if not entry.strip().isdecimal():
            raise BadInput(f"--seeds: {entry!r} is not a whole number from 0, as in --seeds=0,1,2")
    return tuple(map(int, entries)) or (settings.seed,)


def read_sizes(entries: list[str], num_sets: int) -> dict[int, int]:
    """Return the number of sets of each training size, as in 3000 or, with five sets, 10000:5."""
    sizes = {}
    for entry in entries:
        match = re.fullmatch(r"\s*0*([1-9]\d*)(?::0*([1-9]\d*))?\s*", entry)
        if not match:
            raise BadInput(f"--sizes: {entry!r} is not a number of training cases, or SIZE:SETS, as in 300,10000:5")
        sizes[int(match[1])] = min(int(match[2] or num_sets), num_sets)
    return sizes


def make_tables(
    names: Sequence[str], plan: "Plan | None", *, command: Sequence[str], folder: pathlib.Path | str
) -> list[str]:
    """Run the unfinished cells, then make and write the tables."""
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.pages.sheets import write_table
    from stepcot_jax.run.places import Place

    recipes = {name: find_recipe(name) for name in names}
    terminal = Terminal()
    written = []
    target = Place(folder, say=terminal.say)
    target.bring()
    if plan is not None and not plan.partial:
        plan.cells.run([cell for recipe in recipes.values() for cell in recipe.list_cells(plan)])
    for name, recipe in recipes.items():
        terminal.say(f"table {name}")
        for table in recipe.tabulate(plan):
            notes = (*table.notes, f"Made by stepcot_jax {__version__}: {shlex.join(command)}")
            written += write_table(target.folder, dataclasses.replace(table, notes=notes))
    target.finish()
    return written


def _make_plan(workdir: pathlib.Path | str) -> "Plan":
    from stepcot_jax.evaluation.published import read_constrained
    from stepcot_jax.host.download import find_path
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.tools.tables.cells import Cells
    from stepcot_jax.tools.tables.plan import Grid, Plan

    values = flags.FLAGS
    settings = make_settings(values.config)
    if settings.trains_policy or "grpo.epochs" in settings.trains.epochs:  # the tables choose the job themselves
        settings = dataclasses.replace(settings, job="distill")
    seeds = read_seeds(values.seeds, settings)
    zero_shot = read_pairs(values.zero_shot, "--zero_shot", "TABLE=REPLIES, such as vqa=replies.jsonl")
    if other := sorted(zero_shot.keys() - set(list_names("zero_shot"))):
        raise BadInput(f"--zero_shot: {other[0]!r} is not one of {', '.join(list_names('zero_shot'))}")
    constrained = tuple(read_constrained(find_path(folder, "--constrained")) for folder in values.constrained)
    models = [large.model for large in constrained]
    if len(set(models)) < len(models):
        raise BadInput(f"--constrained: two models have one name ({', '.join(models)}); run constrain with --name")
    logging.set_verbosity(logging.WARNING)  # Orbax and Grain log every file
    return Plan(
        settings,
        seeds,
        Cells(workdir, Terminal()),
        read_pairs(values.encoders, "--encoders", "NAME=WEIGHTS, such as CLIP=/path/to/clip"),
        make_settings(values.target_config) if values.target_config else None,
        values.resamples,
        constrained,
        {name: find_path(path, "--zero_shot") for name, path in zero_shot.items()},
        Grid(read_sizes(values.sizes, len(seeds)), values.withhold_at, values.updates, values.unseen),
        values.partial,
    )


def main(arguments: list[str]) -> None:
    """Make the tables that the flags describe."""

    def run() -> None:
        names = read_names(arguments[1:])
        values = flags.FLAGS
        printed, large, zero_shot, partial = map(list_names, ("printed", "large", "zero_shot", "partial"))
        for flag, fits, accepted in (
            ("published", set(names) <= set(printed), ", ".join(printed)),
            ("partial", set(names) <= set(partial), ", ".join(partial)),
            ("constrained", set(names) & set(large), " and ".join(large)),
            ("zero_shot", set(names) & set(zero_shot) and not values.published, f"runs of {' and '.join(zero_shot)}"),
        ):
            if getattr(values, flag) and not fits:
                raise BadInput(f"--{flag} is accepted only with {accepted}; got {', '.join(names)}")
        if not values.workdir:
            raise BadInput("--workdir is required (a writable folder)")
        workdir = values.workdir.rstrip("/") if is_address(values.workdir) else values.workdir
        if values.out:
            refuse_address(values.out)
        folder = values.out or f"{workdir}/tables"
        command = ["stepcot", "tables", *sys.argv[1:]]
        plan = None if values.published else _make_plan(workdir)
        if not is_address(workdir):
            make_workdir(pathlib.Path(workdir))
        written = make_tables(names, plan, command=command, folder=folder)
        print(f"written to {folder}: {', '.join(written)}")

    run_tool(run)


def _define_table_flags() -> None:
    flags.DEFINE_list("seeds", [], "Seeds of every run; the config's by default.")
    flags.DEFINE_list("encoders", [], "NAME=WEIGHTS of more frozen encoders, or of folders of imported features.")
    large = "Folders of stepcot constrain: large models beside the networks, in diagnosis and steps."
    flags.DEFINE_list("constrained", [], large)
    zero_shot = "TABLE=REPLIES of stepcot answer: an untrained model's replies to the test questions of vqa and stages."
    flags.DEFINE_list("zero_shot", [], zero_shot)
    flags.DEFINE_string("out", None, "Folder for the tables; WORKDIR/tables by default.")
    flags.DEFINE_integer("resamples", 1000, "Resamples of every bootstrap.", lower_bound=10)
    flags.DEFINE_bool("published", False, f"Print the published figures of {', '.join(list_names('printed'))} alone.")
    sizes = "Training cases of supervision, each with its number of sets if that is not all, as in 10000:5."
    flags.DEFINE_list("sizes", ["300", "1000", "3000", "10000"], sizes)
    flags.DEFINE_integer("withhold_at", 3000, "Size of supervision at which labels are withheld.", lower_bound=1)
    flags.DEFINE_integer("updates", 2000, "Updates of every network of supervision.", lower_bound=10)
    flags.DEFINE_integer("unseen", 4000, "Chests of supervision that no run draws.", lower_bound=1)
    flags.DEFINE_bool("partial", False, "Make supervision of its finished cells, and run no others.")
    config_flags.DEFINE_config_file("target_config", None, "Settings whose data `transfer` reads.")


def parse_tables(arguments: list[str]) -> list[str]:
    """Parse the command line; without a config, published figures are printed alone."""
    if words := list(itertools.takewhile(lambda word: not word.startswith("-"), arguments[1:])):
        try:
            read_names(words)  # before the flags, of which a wrong name has no use
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(EXIT_BAD_INPUT)
    named = [TABLES.get(word, ()) for word in arguments[1:] if word in (*TABLES, "all")]
    is_of_policies = bool(named) and all("policy" in marks for marks in named)
    if named and all("printed" in marks for marks in named) and not any("--config" in word for word in arguments):
        arguments = [*arguments, "--config=quickstart", "--published"]
    return parse(arguments, example="tables_vqa" if is_of_policies else "quickstart")


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure-cost"]:  # each network in a process of its own
        from stepcot_jax.tools.tables.cost_table import main as measure_cost

        run_tool(lambda: measure_cost(sys.argv[2:]))
    define_flags()
    _define_table_flags()
    app.run(main, flags_parser=parse_tables)
