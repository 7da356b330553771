"""Kinds of hostile files by their ending; `hostile_commands` puts each wherever a command reads such a file."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.hostile_images import PICTURES
from benchmarks.hostile_inputs import MEGABYTE, make_pipe, repeat, write_array, write_members

Write = Callable[[Path, float, bytes], None]
"""Writes a file at a path, with sizes times a factor; text begins with the bytes."""


def _fill(start: bytes, piece: bytes, megabytes: float, end: bytes = b"") -> Write:
    def write(path: Path, factor: float, head: bytes) -> None:
        with path.open("wb") as file:
            file.write(start.replace(b"HEAD", head))
            repeat(file, piece, megabytes * MEGABYTE * factor)
            file.write(end)

    return write


def _pipe(path: Path, factor: float, head: bytes = b"") -> None:
    del factor, head
    make_pipe(path.name, path.parent)


def _zero(path: Path, factor: float, head: bytes = b"") -> None:
    del factor, head
    path.symlink_to("/dev/zero")


_NOT_REGULAR: dict[str, Write] = {"pipe": _pipe, "/dev/zero": _zero}

_JSON: dict[str, Write] = {
    "200 MB of white space": _fill(b"", b" ", 200),
    "a text of 60 MB": _fill(b'{"HEAD": "', b"a", 60, b'"}'),
    "a name of 60 MB": _fill(b'{"HEAD": {"', b"a", 60, b'": []}}'),
    "lists nested without end": _fill(b'{"HEAD": ', b"[", 100),
    "200 MB of empty lists": _fill(b'{"HEAD": [[]', b",[]", 200, b"]}"),
    "a list of 200 MB": _fill(b"[1", b",1", 200, b"]"),
}


def _bomb(path: Path, factor: float, head: bytes) -> None:
    del head
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        write_array(archive, "labels", (round(3e9 * factor),), "|u1", b"\1")


def _members(path: Path, factor: float, head: bytes) -> None:
    del head
    write_members(path, num_members=round(1e6 * factor))


def _numbers(path: Path, rows: int, num_bytes: float = 64.0) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 4)})
        repeat(file, b"\0", num_bytes)


def _many_rows(path: Path, factor: float, head: bytes = b"") -> None:
    del factor, head
    _numbers(path, 10**15)


def _array_in_archive(path: Path, factor: float, head: bytes) -> None:
    del head
    _many_rows(path.with_suffix(".part"), factor)
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".part"), "labels.npy")


def _header(content: bytes, length: int | None = None) -> Write:
    def write(path: Path, factor: float, head: bytes) -> None:
        del factor, head
        path.write_bytes((len(content) if length is None else length).to_bytes(8, "little") + content)

    return write


def _tensor(**changes: object) -> bytes:
    return json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}).encode()


def _nested_header(path: Path, factor: float, head: bytes) -> None:
    del head
    content = b'{"a": ' + b"[" * round(5e7 * factor)
    path.write_bytes(len(content).to_bytes(8, "little") + content)


def _many_names(path: Path, factor: float, head: bytes) -> None:
    del head
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    content = json.dumps({f"student/{number}": entry for number in range(round(1e6 * factor))}).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content)


KINDS: dict[str, dict[str, Write]] = {
    ".json": {**_NOT_REGULAR, **_JSON},
    ".jsonl": {
        **_NOT_REGULAR,
        "a line of 100 MB": _fill(b'{"HEAD": "', b"a", 100, b'"}\n'),
        "lists nested without end": _fill(b'{"HEAD": ', b"[", 20),
        "100 MB of blank lines": _fill(b"", b"\n", 100),
        "200 MB of empty lists": _fill(b'{"HEAD": [[]', b",[]", 200, b"]}\n"),
        "50 MB of short lines": _fill(b"", b'{"id":"a"}\n', 50),
    },
    ".npz": {
        **_NOT_REGULAR,
        "zip bomb": _bomb,
        "a million arrays": _members,
        "an array of 10^15 rows in its header": _array_in_archive,
        "100 MB of zeros": _fill(b"PK\3\4", b"\0", 100),
    },
    ".safetensors": {
        **_NOT_REGULAR,
        "a header of 2^60 bytes": _header(b"{}", 2**60),
        "a header nested without end": _nested_header,
        "10^6 names": _many_names,
        "a tensor of 2^62 rows": _header(_tensor(shape=[2**62])),
        "a tensor before the file": _header(_tensor(data_offsets=[-4, 0])),
        "100 MB of zeros": _fill(b"", b"\0", 100),
    },
    ".csv": {
        **_NOT_REGULAR,
        "a cell of 100 MB": _fill(b"HEADa,", b"a", 100, b"\n"),
        "a quote that is not closed": _fill(b'HEADa,"', b"a", 50),
        "a row of 100 MB of blank cells": _fill(b"HEADa", b",", 100, b"\n"),
        "100 MB of blank lines": _fill(b"HEAD", b"\n", 100),
    },
    ".txt": {
        **_NOT_REGULAR,
        "a line of 100 MB": _fill(b"a", b"a", 100),
        "100 MB of blank lines": _fill(b"", b"\n", 100),
    },
    ".pt": {**_NOT_REGULAR, "100 MB of zeros": _fill(b"PK\3\4", b"\0", 100), "a million files": _members},
}
"""By ending and name."""


_HARMLESS = (".png: rows that unpack", ".png: 200 MB of text chunks")
"""Pictures that are read: what is beyond the rows is never unpacked, and few texts are no harm."""


def fill_folder(folder: Path, factor: float) -> None:
    """Write the hostile pictures, a pipe and a link to /dev/zero to a folder."""
    folder.mkdir(parents=True)
    for number, (name, (suffix, write)) in enumerate(PICTURES.items()):
        if not name.startswith(_HARMLESS):
            (folder / f"{number}{suffix}").write_bytes(write(factor))
    _pipe(folder / "pipe.png", factor)
    _zero(folder / "zero.png", factor)
