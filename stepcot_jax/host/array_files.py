"""Read arrays from .npz files of unknown origin: no pickle, and no more memory than the file is large."""

import io
import pathlib
import zipfile
import zlib

import numpy as np
import numpy.typing as npt

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_archive

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
