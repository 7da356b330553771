"""Prepare a folder in the published layout as the dataset `step_cot` of tensorflow_datasets, without tensorflow."""

import argparse
import pathlib

from stepcot_jax.data.tfds.source import QUARANTINE_NAME, Reading, import_tfds, open_prepared
from stepcot_jax.host.download import find_path
from stepcot_jax.tools.options import local_path


def main(arguments: list[str] | None = None) -> None:
    """Prepare the folder from the command line and print the numbers of cases."""
    parser = argparse.ArgumentParser(prog="stepcot data tfds", description=__doc__)
    parser.add_argument("root", metavar="ROOT", help="folder with data.json and images; or gs://, s3://")
    data_dir = "where datasets are kept"
    parser.add_argument("data_dir", type=local_path, metavar="DIR", help=data_dir)
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help="default stop")
    parser.add_argument("--split-seed", type=int, default=0, help="of splits that are made; default 0")
    parser.add_argument(
        "--near-duplicate-radius", type=int, default=0, help="in bits, for splits that are made; default 0, for none"
    )
    options = vars(parser.parse_args(arguments))
    root, data_dir = options.pop("root"), options.pop("data_dir")
    import_tfds()
    root = find_path(root, "ROOT")
    from stepcot_jax.data.tfds.builder import prepare  # imports tensorflow_datasets

    folder = prepare(root, data_dir, Reading(**options))
    lines = _describe(folder)
    print("\n".join(lines))


def _describe(folder: pathlib.Path) -> list[str]:
    prepared = open_prepared(folder)
    counts = ", ".join(f"{len(indices)} {name}" for name, indices in prepared.splits.by_name().items())
    lines = [f"{len(prepared.collection.cases)} cases in {folder}: {counts} ({prepared.splits_source})"]
    if prepared.collection.set_aside:
        num_aside = len(prepared.collection.set_aside)
        lines.append(f"{num_aside} records are set aside, each with its reason in {folder / QUARANTINE_NAME}")
    return lines
