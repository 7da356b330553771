"""Arrays from .npy and .npz files of strangers: no pickle, headers of bounded size, rows in blocks."""

import contextlib
import dataclasses
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from stepcot_jax.host.errors import BadInput

MAX_TEXT_BYTES = 256 * 2**20
"""Most that the ids of a file may take in memory."""

MAX_WIDTH = 65_536

_BLOCK_BYTES = 16 * 2**20
_ACCEPTED = "accepted is an .npy or .npz file as numpy.save or numpy.savez writes it"


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """An array in a file of which the header has been read.

    Attributes:
      path: the file.
      member: its entry of an .npz, None of an .npy.
      shape: as its header says; what follows has been compared with it as far as the file's directory tells.
      dtype: of a value.
      offset: bytes before the first value.
    """

    path: Path
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @property
    def where(self) -> str:
        """File and entry, for messages."""
        return f"{self.path}: {self.member.removesuffix('.npy')}" if self.member else str(self.path)

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def blocks(self, *, max_rows: int = 512) -> Iterator[tuple[int, np.ndarray]]:
        """The first row's number and the rows, block by block, some megabytes at a time.

        Raises:
          BadInput: the file ends early or cannot be unpacked.
        """
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        num_rows = max(1, min(max_rows, _BLOCK_BYTES // max(1, row_bytes)))
        with _reading(self.where), _open(self.path, self.member) as file:
            file.read(self.offset)
            for start in range(0, self.shape[0], num_rows):
                count = min(num_rows, self.shape[0] - start)
                content = file.read(count * row_bytes)
                if len(content) != count * row_bytes:
                    raise ValueError(f"it ends before row {start + count} of {self.shape[0]}")
                yield start, np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn what the readers of broken files raise into one message."""
    try:
        yield
    except BadInput:
        raise
    # zipfile, zlib and numpy's header parser raise a dozen kinds of error on broken files; each is the file's fault.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(f"{where}: cannot be read ({reason}), {_ACCEPTED}") from error


@contextlib.contextmanager
def _open(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    if member is None:
        with path.open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(member) as entry:
            yield entry


def list_arrays(path: Path) -> list[str]:
    """Names of the arrays in an .npz.

    Raises:
      BadInput: it is not one.
    """
    with _reading(str(path)), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def open_array(path: Path, name: str | None = None) -> ArrayFile:
    """An array's header.

    Args:
      path: an .npy, or an .npz with `name`.
      name: of the array in an .npz.

    Raises:
      BadInput: the file cannot be read, or holds Python objects, Fortran order, or not what its header promises.
    """
    member = None if name is None else f"{name}.npy"
    where = str(path) if name is None else f"{path}: {name}"
    with _reading(where), _open(path, member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"its format version is {version}")
        offset = file.tell()
    if dtype.hasobject:
        raise BadInput(
            f"{where}: found an array of Python objects, accepted are numbers or texts, such as array.astype(str)"
        )
    if fortran and len(shape) > 1:
        raise BadInput(f"{where}: found Fortran order, accepted is C order, as numpy.ascontiguousarray gives")
    array = ArrayFile(path, member, tuple(shape), dtype, offset)
    with _reading(where):
        found = _num_bytes(path, member) - offset
    if min(shape, default=0) < 0 or found != array.num_bytes:
        raise BadInput(
            f"{where}: found {found} bytes of values, its header promises {array.num_bytes} for {shape}; {_ACCEPTED}"
        )
    return array


def _num_bytes(path: Path, member: str | None) -> int:
    if member is None:
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo(member).file_size


def check_features(array: ArrayFile) -> None:
    """Refuse what cannot be features [case, width].

    Raises:
      BadInput: other axes, another type than floats, or too wide.
    """
    if len(array.shape) != 2:
        raise BadInput(f"{array.where}: found an array of shape {array.shape}, accepted is [case, width]")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise BadInput(f"{array.where}: found values of type {array.dtype}, accepted are float16, float32, float64")
    if not 1 <= array.shape[1] <= MAX_WIDTH:
        raise BadInput(f"{array.where}: found a width of {array.shape[1]}, accepted are 1 to {MAX_WIDTH}")


def read_features(array: ArrayFile, *, max_rows: int = 512) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks float32 [case, width] with the number of their first row."""
    for start, rows in array.blocks(max_rows=max_rows):
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite and is refused as such
            yield start, rows.astype(np.float32)


def read_texts(array: ArrayFile) -> list[str]:
    """A one-dimensional array of texts or whole numbers as texts.

    Raises:
      BadInput: other axes or another type, too large, or bytes that are not UTF-8.
    """
    if len(array.shape) != 1 or array.dtype.kind not in "USiu":
        raise BadInput(
            f"{array.where}: found an array of {array.dtype} and shape {array.shape}, accepted are texts or whole "
            "numbers in one dimension"
        )
    if array.num_bytes > MAX_TEXT_BYTES:
        raise BadInput(
            f"{array.where}: found ids of {array.num_bytes / 1e6:.0f} MB, accepted are {MAX_TEXT_BYTES / 1e6:.0f} MB"
        )
    values = [value for _, rows in array.blocks() for value in rows.tolist()]
    try:
        return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as error:
        raise BadInput(f"{array.where}: found bytes that are not UTF-8 ({error}), accepted are texts") from error
