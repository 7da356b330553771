"""Addresses, such as gs://BUCKET/FOLDER, where a folder of this machine is expected: refused, never made a folder.

`pathlib` takes "gs://bucket/run" for the folder "gs:" of the working directory; a run would write there without a word.
"""

import argparse
import os
import pathlib
import re

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.stores import check_store_address
from stepcot_jax.host.text import shorten

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

_HERE = (
    "is an address, not a path; expected a folder or file of this machine (stepcot data fetch copies "
    "folders of gs:// and s3:// here)"
)


_OUTPUT = (
    "is an address, not a path; expected a folder or file of this machine: write there, then copy it to the store "
    "(aws s3 cp --recursive, gcloud storage cp -r)"
)


def is_address(place: object) -> bool:
    """Return whether a place begins with a scheme, as "gs://..." does, also after `pathlib` has dropped a slash.

    >>> is_address("s3://bucket/run"), is_address(pathlib.Path("s3://bucket/run")), is_address("runs/s3")
    (True, True, False)
    """
    return isinstance(place, str | os.PathLike) and _ADDRESS.match(os.fspath(place)) is not None


def refuse_address(place: str | os.PathLike[str], what: str = "", *, is_output: bool = False) -> None:
    """Refuse an address."""
    if is_address(place):
        hint = _OUTPUT if is_output else _HERE
        raise BadInput(f"{what}{': ' if what else ''}{shorten(os.fspath(place))} {hint}")


def name_place(place: str) -> str:
    """Return one name for the same folder or file: an address without a slash at its end, or a path without links."""
    return place.rstrip("/") if is_address(place) else str(pathlib.Path(place).resolve())


def refuse_source(source: str | os.PathLike[str], out: str | os.PathLike[str], name: str = "") -> None:
    """Refuse an output that is the source itself, both on a store; on this machine each command compares the paths."""
    folder = name_place(str(out))
    if is_address(out) and name_place(str(source)) in (folder, f"{folder}/{name}".rstrip("/")):
        raise BadInput(f"--out: {out} is the source itself; choose another folder")


def local_path(text: str, *, is_output: bool = False) -> pathlib.Path:
    """Return the path that an argument names; the `type=` of argparse for every path of this machine that is read."""
    try:
        refuse_address(text, is_output=is_output)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return pathlib.Path(text)


def output_place(text: str) -> pathlib.Path | str:
    """Return the path or the address that an argument names; the `type=` of argparse for what `outputs` writes."""
    if not text:
        raise argparse.ArgumentTypeError("'' names nothing; expected a path, or gs:// or s3://")
    if not is_address(text):
        return pathlib.Path(text)
    try:
        check_store_address(text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text
