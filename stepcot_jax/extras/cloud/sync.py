"""Send a folder of this machine to a store; files that it already has are not sent again.

No lock keeps a second process from writing to the same address.
"""

import argparse
import pathlib

from stepcot_jax.extras.cloud.copies import upload
from stepcot_jax.extras.cloud.stores import StoreError
from stepcot_jax.host.download import refuse_address
from stepcot_jax.host.errors import BadInput, RunStopped, run_tool


def main(arguments: list[str] | None = None) -> None:
    """Upload the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="stepcot sync", description="Send a folder to a store.")
    parser.add_argument("folder", metavar="FOLDER", help="of this machine")
    address = "gs://BUCKET/FOLDER, or s3:// with s3fs, az:// with adlfs, and others that fsspec opens"
    parser.add_argument("address", metavar="ADDRESS", help=address)
    options = parser.parse_args(arguments)
    refuse_address(options.folder)
    folder = pathlib.Path(options.folder)
    if not options.folder or not folder.is_dir():
        raise BadInput(f"{folder}: not a folder; expected one of this machine")
    try:
        sent, same = upload(folder, options.address)
    except StoreError as error:
        raise RunStopped(f"{error}; {folder} is unchanged, and the same command sends what is missing") from None
    num_links = sum(path.is_symlink() for path in folder.rglob("*"))
    links = f"; {num_links} symbolic links are not sent" if num_links else ""
    print(f"{options.address}: {sent} files sent, {same} were there{links}")


if __name__ == "__main__":
    run_tool(main)
