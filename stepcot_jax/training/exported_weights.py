"""Tensors of an export, compared with its SHA256SUMS; nothing of the export is run."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from stepcot_jax.encoders.weights import read_tensors
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_file
from stepcot_jax.host.text import shorten

MANIFEST_FILE, SUMS_FILE = "export.json", "SHA256SUMS"

READ_SUFFIXES = (".json", ".npz")
"""Suffixes of the files that readers use besides the tensors."""

_MOST_SUMS_BYTES = 2**16
_MOST_BYTES = 4 * 2**30


def is_file_name(name: str) -> bool:
    """Return whether a name is that of a file, without a path to another folder."""
    return bool(name) and name not in (".", "..") and pathlib.PurePath(name).name == name and "\\" not in name


def is_export(folder: pathlib.Path) -> bool:
    """Return whether a folder is an export and not a run's workdir."""
    return (folder / MANIFEST_FILE).is_file() or (folder / SUMS_FILE).is_file()


def list_files(folder: pathlib.Path) -> list[str]:
    """Return the names of the files that an export has digests of."""
    return list(_read_sums(folder / SUMS_FILE))


def require_read(folder: pathlib.Path) -> None:
    """Compare all files that readers use besides the tensors with their digests."""
    check_digests(folder, [name for name in list_files(folder) if name.endswith(READ_SUFFIXES)])


def require_counts(params: Any, stated: Mapping[str, tuple[int, str]]) -> None:
    """Refuse layers or steps that a file states in other numbers than the tensors have; laying them out takes hours.

    Args:
      stated: by file and key, the number, and the pattern of a tensor's path whose group is the number of its part.
    """
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    for where, (number, pattern) in stated.items():
        held = len({match[1] for path in paths if (match := re.match(pattern, path))})
        if number != held:
            raise BadInput(f"{where}: {number}, but the tensors have {held}")


def check_digests(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Compare files of an export with their digests."""
    digests = _read_sums(folder / SUMS_FILE)
    for name in names:
        if name not in digests:
            raise BadInput(f"{folder / SUMS_FILE}: no digest of {shorten(name)!r}; expected one for each file")
        try:
            _, digest = digest_file(folder / name)
        except OSError as error:
            raise BadInput(f"{folder / name}: cannot be read ({error.strerror}); the export is incomplete") from None
        if digest != digests[name]:
            raise BadInput(f"{folder / name}: has changed since the export, or is incomplete: not its {SUMS_FILE}")


def read_weights(folder: pathlib.Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the tensors of .safetensors files of an export by name, float32."""
    names = list(names)
    for name in names:
        if not is_file_name(name) or not name.endswith(".safetensors"):
            raise BadInput(f"{folder / MANIFEST_FILE}: {shorten(name)!r} is not a .safetensors file of the same folder")
    check_digests(folder, names)
    if (total := sum((folder / name).stat().st_size for name in names)) > _MOST_BYTES:
        raise BadInput(f"{folder}: the tensors take {total} bytes; the limit is {_MOST_BYTES}")
    tensors = {key: tensor for name in names for key, tensor in read_tensors(folder / name).items()}
    for key, tensor in tensors.items():
        if tensor.dtype != np.float32:
            raise BadInput(f"{folder}: tensor {shorten(key)} has the type {tensor.dtype}; expected float32")
    return tensors


def _read_sums(path: pathlib.Path) -> dict[str, str]:
    try:
        text = read_file(path, max_bytes=_MOST_SUMS_BYTES, accepted="the digests of an export").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); the export is incomplete") from None
    pairs = [line.partition("  ") for line in text.splitlines()]
    for digest, _, name in pairs:
        if len(digest) != 64 or not is_file_name(name):
            raise BadInput(f"{path}: {shorten(f'{digest}  {name}')!r} is not a digest and the name of a file there")
    return {name: digest for digest, _, name in pairs}
