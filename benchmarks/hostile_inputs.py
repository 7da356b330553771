"""Registry of hostile files, and what their makers share; `hostile_files` runs the commands on them."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.records.records import write_records
from stepcot_jax.record import Record

Command = list[str]
Make = Callable[[Path, float], Command]

MEGABYTE = 10**6
NUM_CASES = 6

MAKERS: dict[str, Make] = {}
"""By name: writes a hostile file below a folder, with sizes times a factor, and returns the command that reads it."""


def hostile(name: str) -> Callable[[Make], Make]:
    """Register a maker under a name."""

    def keep(make: Make) -> Make:
        MAKERS[name] = make
        return make

    return keep


def repeat(file: BinaryIO, piece: bytes, num_bytes: float) -> None:
    """Write a piece again and again, `num_bytes` in all."""
    block = piece * max(1, 2**20 // len(piece))
    for _ in range(max(1, round(num_bytes / len(block)))):
        file.write(block)


def published_folder(root: Path) -> Command:
    """Write a good folder of the published layout without images or split tables."""
    answers, reasoning = DEFAULT_CHAIN.num_steps * (0,), DEFAULT_CHAIN.num_steps * ("",)
    cases = [
        Record(patient=f"p{number}", image=f"images/{number}.png", answers=answers, reasoning=reasoning)
        for number in range(NUM_CASES)
    ]
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)
    return ["data", "check", str(root), "--images=none"]


def split_folder(root: Path) -> tuple[Command, Path]:
    """Write a good folder with tables for val and test; the hostile one is train."""
    command = published_folder(root)
    (root / "val.csv").write_text("patient_id\np1\n")
    (root / "test.csv").write_text("patient_id\np2\n")
    return command, root / "train"


def make_pipe(name: str, root: Path) -> Path:
    """Make a pipe that nobody writes to."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / name)
    return root / name


def write_members(path: Path, *, num_members: int) -> None:
    """Write a zip archive whose directory lists so many empty arrays."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(min(num_members, 2000)):
            archive.writestr(f"{number}.npy", b"")
    # The directory repeated: quicker than writing a million entries, and as long.
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    size, start = (int.from_bytes(content[end + place : end + place + 4], "little") for place in (12, 16))
    times = max(1, num_members // 2000)
    tail = bytearray(content[end:])
    tail[12:16] = (size * times).to_bytes(4, "little")
    path.write_bytes(content[:start] + content[start:end] * times + bytes(tail))


def write_array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str, fill: bytes) -> None:
    """Write an array of a repeated element to an .npz."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        file.write(header.getvalue())
        for start in range(0, num_bytes, 2**20):
            file.write((fill * (2**20 // len(fill)))[: min(2**20, num_bytes - start)])
