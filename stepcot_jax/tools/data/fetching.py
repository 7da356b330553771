"""The command `data fetch`: copy a folder of cases from a store to this machine."""

import argparse
import pathlib
from typing import Any

from stepcot_jax.host.addresses import local_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.store_copies import copy_missing
from stepcot_jax.host.store_uploads import list_whole
from stepcot_jax.host.stores import StoreFolder
from stepcot_jax.host.terminal import Terminal


def add_fetch(commands: Any) -> None:
    """Add the command to the parser of `stepcot data`."""
    parser = commands.add_parser(
        "fetch",
        help="copy a folder from gs:// or s3:// to this machine",
        description="Copies a folder of cases, shards or anything else from a store, so that a run can read it. An "
        "interrupted copy goes on: files that are here with the size of the object are not copied again.",
    )
    parser.add_argument("address", metavar="ADDRESS", help="gs://BUCKET/FOLDER or s3://BUCKET/FOLDER (extras gcs, s3)")
    parser.add_argument("out", type=local_path, metavar="DIR", help="folder of this machine")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    number = fetch(options.address, options.out, terminal=Terminal())
    print(f"{options.out}: {number} files copied")
    return 0


def fetch(address: str, out: pathlib.Path, *, terminal: Terminal) -> int:
    """Copy the files of a store's folder that are not in a folder of this machine with the same size."""
    store = StoreFolder(address)
    found = list_whole(store)
    if not found:
        raise BadInput(f"{store.address}: holds no files; expected a folder of cases")
    make_workdir(out)
    return copy_missing(store, found, out, terminal=terminal)
