"""Arrays in files: .npz of unknown origin is read without pickle and unbounded memory; safetensors are written."""

import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_archive

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_UNREADABLE = (
    *(OSError, ValueError, EOFError, TypeError, KeyError, AttributeError, MemoryError, OverflowError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def read_arrays(
    path: pathlib.Path, *, accepted: str, expected: str, most_unpacked: int | None = None
) -> dict[str, npt.NDArray]:
    """Return the arrays of an .npz file by name, never from a pickle; uncompressed, or of `most_unpacked` bytes."""
    try:
        if not path.is_file():
            raise BadInput(f"{path}: no such file; {expected}")
        with open_archive(path, accepted=accepted, most_unpacked=most_unpacked) as archive:
            # Together they are never larger than the file: a small file cannot fill the memory.
            if most_unpacked is None and sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise BadInput(f"{path}: its arrays are compressed; {expected}")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}  # bytes of what is no array
    except BadInput:
        raise
    except _UNREADABLE as error:
        raise BadInput(f"{path}: cannot be read ({one_line(error)}); {expected}") from None


def save_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, npt.NDArray], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors; a failing disk is an `OSError`, as for every other file."""
    import safetensors.numpy

    # safetensors ignores strides and writes the underlying memory.
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    try:
        safetensors.numpy.save_file(contiguous, path, metadata)
    except safetensors.SafetensorError as error:
        if (number := _SYSTEM_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), os.fspath(path)) from None
