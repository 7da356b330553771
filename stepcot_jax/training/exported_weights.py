"""Tensors of an export, compared with their digests; nothing of the export is run."""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import SUMS, Files, is_file_name, read_sums
from stepcot_jax.host.text import shorten

MANIFEST_FILE = "export.json"

READ_SUFFIXES = (".json", ".npz")
"""Suffixes of the files that readers use besides the tensors."""

_MOST_BYTES = 4 * 2**30


def is_export(folder: pathlib.Path) -> bool:
    """Return whether a folder is an export and not a run's workdir."""
    return (folder / MANIFEST_FILE).is_file() or (folder / SUMS).is_file()


def require_read(folder: pathlib.Path) -> None:
    """Compare all files that readers use besides the tensors with their digests."""
    Files(folder, [name for name in read_sums(folder) if name.endswith(READ_SUFFIXES)])


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


def read_weights(folder: pathlib.Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the tensors of .safetensors files of an export by name, float32."""
    names = list(names)
    for name in names:
        if not is_file_name(name) or not name.endswith(".safetensors"):
            raise BadInput(f"{folder / MANIFEST_FILE}: {shorten(name)!r} is not a .safetensors file of the same folder")
    files = Files(folder, names)
    if (total := sum((folder / name).stat().st_size for name in names)) > _MOST_BYTES:
        raise BadInput(f"{folder}: the tensors take {total} bytes; the limit is {_MOST_BYTES}")
    tensors = {key: tensor for name in names for key, tensor in files.read_tensors(name).items()}
    for key, tensor in tensors.items():
        if tensor.dtype != np.float32:
            raise BadInput(f"{folder}: tensor {shorten(key)} has the type {tensor.dtype}; expected float32")
    return {key: tensor.copy() for key, tensor in tensors.items()}  # of a file that may change
