"""Arrays in files: .npz of unknown origin is read without pickle and unbounded memory; safetensors are written."""

import io
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_archive

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
_UNREADABLE = (OSError, ValueError, EOFError, TypeError, KeyError, MemoryError, OverflowError, RuntimeError)


def read_arrays(path: pathlib.Path, *, accepted: str, expected: str) -> dict[str, npt.NDArray]:
    """Return the arrays of an uncompressed .npz file by name: numbers and text."""
    arrays = {}
    try:
        if not path.is_file():
            raise BadInput(f"{path}: no such file; {expected}")
        with open_archive(path, accepted=accepted) as archive:
            members = archive.infolist()
            # Together they are never larger than the file: a small file cannot fill the memory.
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise BadInput(f"{path}: its arrays are compressed; {expected}")
            for member in members:
                with archive.open(member) as file:
                    arrays[member.filename.removesuffix(".npy")] = _read_array(file.read())
    except BadInput:
        raise
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{path}: cannot be read ({reason}); {expected}") from None
    return arrays


def _read_array(content: bytes) -> npt.NDArray:
    array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    if array.dtype.kind not in "iufU":
        raise ValueError(f"a member holds {array.dtype}")
    return array


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
