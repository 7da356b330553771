"""Files of named tensors: .safetensors, and .pt or .pth where torch is installed. Nothing is ever unpickled."""

import pathlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole

TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """The tensors of a file by name; nested mappings are joined with '/'.

    Args:
      path: a .safetensors, or a .pt or .pth of tensors in (nested) mappings.

    Returns:
      NumPy arrays, and as they are whatever else a .pt holds beside the tensors.

    Raises:
      BadInput: the file is missing, broken or of another kind, holds objects that only unpickling would restore, or
        is a .pt and torch is not installed.
    """
    check_suffix(path)
    if not path.is_file():
        raise BadInput(f"{path}: found no such file, accepted are {', '.join(SUFFIXES)}")
    if path.suffix in TORCH_SUFFIXES:
        return _read_torch(path)
    import safetensors.numpy

    try:
        return dict(safetensors.numpy.load_file(path))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path}: found no readable tensors ({_one_line(error)}), accepted is a whole file") from None


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], *, overwrite: bool = False) -> None:
    """Write named tensors, whole or not at all.

    Args:
      path: a .safetensors, or a .pt or .pth, which gets a mapping of each network's state_dict.
      tensors: names, with '/' between network and tensor -> arrays.
      overwrite: replace a file that is there.

    Raises:
      BadInput: the file is there and `overwrite` is not set, its folder is not, or the suffix is another.
    """
    check_destination(path, overwrite=overwrite)
    with writing_whole(path) as file:
        if path.suffix in TORCH_SUFFIXES:
            _write_torch(path, file, tensors)
        else:
            import safetensors.numpy

            # Exactly contiguous: safetensors writes the memory of a strided array as it lies.
            whole = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
            safetensors.numpy.save_file(whole, file.name)  # through the file itself it would hold all of it twice


def check_suffix(path: pathlib.Path) -> None:
    """Refuse a path of another kind."""
    if path.suffix not in SUFFIXES:
        raise BadInput(f"{path}: found suffix {path.suffix!r}, accepted are {', '.join(SUFFIXES)}")


def check_destination(path: pathlib.Path, *, overwrite: bool) -> None:
    """Refuse a destination that `write_tensors` would refuse; asked before long work."""
    check_suffix(path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path}: found something there, accepted are a new name or --force, which replaces a file")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: found no folder {path.parent}, accepted are files in folders that exist")
    if path.suffix in TORCH_SUFFIXES:
        _import_torch(path)


def _import_torch(path: pathlib.Path) -> Any:
    try:
        import torch
    except ImportError:
        raise BadInput(
            f"{path}: found no torch to handle {path.suffix} files; accepted are .safetensors (where torch is "
            'installed: safetensors.torch.save_file), or this command after pip install "stepcot-jax[torch]"'
        ) from None
    return torch


def _read_torch(path: pathlib.Path) -> dict[str, Any]:
    torch = _import_torch(path)
    try:
        # weights_only: the full unpickler runs whatever code the file names.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise BadInput(
            f"{path}: found no readable tensors ({_one_line(error)}); accepted is what torch.save makes of a "
            "state_dict or of a dict of them, without other objects"
        ) from None
    if not isinstance(found, Mapping):
        raise BadInput(f"{path}: found a {type(found).__name__}, accepted is a state_dict or a dict of them")
    return _flatten_torch(torch, found)


def _flatten_torch(torch: Any, tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            leaves.update(_flatten_torch(torch, leaf, f"{prefix}{name}/"))
        elif isinstance(leaf, torch.Tensor):
            leaf = leaf.detach()
            # NumPy has no bfloat16; float32 holds each of its numbers exactly.
            leaves[f"{prefix}{name}"] = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
        else:
            leaves[f"{prefix}{name}"] = leaf
    return leaves


def _write_torch(path: pathlib.Path, file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> None:
    torch = _import_torch(path)
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        network, _, rest = name.rpartition("/")
        # Copied: an array from JAX is read-only, which a torch tensor cannot be.
        tensor = torch.from_numpy(np.array(array))
        (tree.setdefault(network, {}) if network else tree)[rest] = tensor
    torch.save(tree, file)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
