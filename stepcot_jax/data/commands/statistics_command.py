"""The command that counts a data root and draws the counts."""

import argparse
import pathlib
from typing import Any

from stepcot_jax.data.commands.root_options import add_reading_options, reading_arguments
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.errors import make_workdir


def add_command(commands: Any) -> None:
    """Add `stats` to the commands of `python -m stepcot_jax.data`."""
    parser = commands.add_parser(
        "stats",
        help="count a folder's origins, answers, reasoning and splits, and draw them",
        description="Counts origins and diagnoses, answers, lengths of reasoning, the flow of answers and splits (the "
        "paper's Figure 2 and Table 7): CSV and Markdown tables, PNG and SVG pictures.",
    )
    add_reading_options(parser)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="where tables and pictures go")
    parser.add_argument("--split-seed", type=int, default=0, help="of splits made without tables, default 0")
    parser.set_defaults(run=write_statistics)


def write_statistics(options: argparse.Namespace) -> None:
    """Count a data root and write tables and pictures; its images are not looked at."""
    from stepcot_jax.data.checks.check_printing import make_printable
    from stepcot_jax.data.splits.splits import make_splits, read_splits
    from stepcot_jax.data.statistics.count_pictures import write_pictures
    from stepcot_jax.data.statistics.count_tables import write_tables
    from stepcot_jax.data.statistics.counts import compute_statistics

    collection = read_source(options.root, require_images=False, **reading_arguments(options))
    splits, source = read_splits(collection.root, collection.cases, set_aside=collection.set_aside), "read from tables"
    if splits is None:
        splits = make_splits(collection.cases, seed=options.split_seed)
        source = f"made from seed {options.split_seed}, there being no tables"
    make_workdir(options.out)
    statistics = compute_statistics(collection.cases, collection.chain, splits, splits_source=source)
    tables = write_tables(options.out, statistics)
    pictures, missing = write_pictures(options.out, statistics)
    if collection.set_aside:
        print(f"{len(collection.set_aside)} records are set aside; `check` says why")
    if "reasoning_length.png" not in pictures:
        print("no case has reasoning: its lengths are not drawn")
    if missing:
        print(f"no font here has {make_printable(missing[:40])}: boxes in the .png, text in the .svg")
    print(make_printable(f"{statistics.num_cases:,} cases in {options.out}: {', '.join((*tables, *pictures))}"))
