"""How a data root is read: the options that every subcommand shares, by the names of a run's settings."""

import argparse
import pathlib
from typing import Any

from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.data.sources.layouts import AUTO, LAYOUTS


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add ROOT and what a run's `config.data` says of reading it."""
    parser.add_argument("root", type=pathlib.Path, metavar="ROOT", help="folder or file in any layout that is read")
    parser.add_argument("--layout", choices=(AUTO, *LAYOUTS), default=AUTO, help="default: told by the files")
    parser.add_argument("--step-names", nargs="+", default=PUBLISHED_STEP_NAMES, metavar="NAME", help="as in a run")
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help="as in a run, default stop")
    parser.add_argument(
        "--several-labels",
        action="store_true",
        help="keep images with several findings (a run's data.single_label=False), in layouts with lists of findings",
    )
    parser.add_argument(
        "--labels-from",
        choices=("auto", "boxes", "entries"),
        default="auto",
        help="as in a run: the table that ChestX-ray8's labels are from",
    )


def reading_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The options as keyword arguments of `layouts.read_source`."""
    return {
        "layout": options.layout,
        "step_names": tuple(options.step_names),
        "on_bad_record": options.on_bad_record,
        "single_label": not options.several_labels,
        "labels_from": options.labels_from,
    }
