"""Files of named tensors: .safetensors and, with torch installed, .pt and .pth."""

import pathlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepcot_jax.encoders import weights
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole
from stepcot_jax.training.parameter_paths import flatten

TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Read tensors by name; names of nested mappings are joined with '/'."""
    _check_suffix(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    if path.suffix == ".safetensors":
        return dict(weights.read_tensors(path))
    found = weights.load_torch(path)
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} holds a {type(found).__name__}; expected a state_dict or a dict of them")
    return {name: weights.to_numpy(leaf) for name, leaf in flatten(found).items()}


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], *, overwrite: bool = False) -> None:
    """Write named tensors atomically.

    Args:
      path: a .safetensors, or a .pt or .pth, which maps each network to its state_dict.
    """
    check_destination(path, overwrite=overwrite)
    with writing_whole(path) as file:
        if path.suffix in TORCH_SUFFIXES:
            _write_torch(path, file, tensors)
        else:
            import safetensors.numpy

            # safetensors ignores strides and writes the underlying memory.
            whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
            safetensors.numpy.save_file(whole, file.name)  # by name: a file object would need twice the memory


def check_destination(path: pathlib.Path, *, overwrite: bool) -> None:
    """Check a destination of `write_tensors` before long work."""
    _check_suffix(path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; choose another name, or pass --force to replace a file")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: the folder {path.parent} does not exist")
    if path.suffix in TORCH_SUFFIXES:
        weights.import_torch(path)


def _check_suffix(path: pathlib.Path) -> None:
    if path.suffix not in SUFFIXES:
        raise BadInput(f"{path}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}")


def _write_torch(path: pathlib.Path, file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> None:
    torch = weights.import_torch(path)
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        network, _, rest = name.rpartition("/")
        # Arrays from JAX are read-only, torch tensors cannot be.
        tensor = torch.from_numpy(np.array(array))
        (tree.setdefault(network, {}) if network else tree)[rest] = tensor
    torch.save(tree, file)
