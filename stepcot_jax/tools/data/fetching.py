"""The command `data fetch`: copy a folder of cases from a store to this machine."""

import argparse
from typing import Any

from stepcot_jax.host.download import download
from stepcot_jax.tools.options import local_path


def add_fetch(commands: Any) -> None:
    """Add the command to the parser of `stepcot data`."""
    parser = commands.add_parser(
        "fetch",
        help="copy a folder from gs:// or s3:// to this machine",
        description="Copies a folder of cases, shards, a run or anything else from a store. An interrupted copy "
        "resumes: files that are here with the size of the object are not copied again, and none is overwritten. "
        "stepcot sync DIR ADDRESS sends a folder.",
    )
    parser.add_argument("address", metavar="ADDRESS", help="gs://BUCKET/FOLDER or s3://BUCKET/FOLDER (extras gcs, s3)")
    parser.add_argument("out", type=local_path, metavar="DIR", help="folder of this machine")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    download(options.address, options.out)
    print(f"{options.address} is in {options.out}")
    return 0
