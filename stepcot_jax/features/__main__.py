"""Work with features: `python -m stepcot_jax.features import FILE --root ROOT --store DIR` takes those made elsewhere."""

import argparse
import pathlib

from stepcot_jax.data.records import PUBLISHED_STEP_NAMES, read_records
from stepcot_jax.errors import run_tool
from stepcot_jax.features.importing import import_features


def run_import(options: argparse.Namespace) -> None:
    """Import features for the cases of a folder."""
    # The images themselves are not needed, and may not be here.
    collection = read_records(
        options.root,
        step_names=tuple(options.step_names) or PUBLISHED_STEP_NAMES,
        on_bad_record=options.on_bad_record,
        require_images=False,
    )
    counts = import_features(options.file, options.ids, collection.cases, options.store)
    prompts = f" and {counts.prompts} prompts" if counts.prompts else ""
    print(f"features of {counts.images} images{prompts}, width {counts.width}, in {options.store}")


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m stepcot_jax.features", description="Work with features.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    imports = commands.add_parser("import", help="take features that were made elsewhere")
    imports.add_argument("file", type=pathlib.Path, metavar="FILE", help=".npz (features, ids) or .npy [case, width]")
    imports.add_argument("--ids", type=pathlib.Path, help=".txt, .csv or .json with the image path of each row")
    imports.add_argument("--root", type=pathlib.Path, required=True, help="folder with data.json")
    imports.add_argument("--store", type=pathlib.Path, required=True, metavar="DIR", help="where the features go")
    imports.add_argument("--step-names", nargs="+", default=(), metavar="NAME", help="default: the published seven")
    imports.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help="default stop")
    imports.set_defaults(run=run_import)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    run_tool(main)
