"""Read and write files of named tensors without unpickling: .safetensors, and .pt or .pth if torch is installed."""

import pathlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole

TORCH_SUFFIXES = (".pt", ".pth")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)


def read_tensors(path: pathlib.Path) -> dict[str, Any]:
    """Read tensors by name; names of nested mappings are joined with '/'.

    Args:
      path: a .safetensors, or a .pt or .pth of tensors in nested mappings.

    Returns:
      NumPy arrays; other values of a .pt are returned unchanged.

    Raises:
      BadInput: the file is missing, broken, of another kind or needs unpickling, or torch is not installed.
    """
    _check_suffix(path)
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    if path.suffix in TORCH_SUFFIXES:
        return _read_torch(path)
    import safetensors.numpy

    try:
        return dict(safetensors.numpy.load_file(path))
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a readable .safetensors file ({_one_line(error)})") from None


def write_tensors(path: pathlib.Path, tensors: Mapping[str, np.ndarray], *, overwrite: bool = False) -> None:
    """Write named tensors atomically.

    Args:
      path: a .safetensors, or a .pt or .pth, which maps each network to its state_dict.
      tensors: NETWORK/NAME or NAME -> arrays.
      overwrite: replace an existing file.

    Raises:
      BadInput: the file exists without `overwrite`, its folder does not exist, or the suffix is unknown.
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
    """Check a destination of `write_tensors` before long work.

    Raises:
      BadInput: as `write_tensors`.
    """
    _check_suffix(path)
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadInput(f"{path} exists; choose another name, or pass --force to replace a file")
    if not path.parent.is_dir():
        raise BadInput(f"{path}: the folder {path.parent} does not exist")
    if path.suffix in TORCH_SUFFIXES:
        _import_torch(path)


def _check_suffix(path: pathlib.Path) -> None:
    if path.suffix not in SUFFIXES:
        raise BadInput(f"{path}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}")


def _import_torch(path: pathlib.Path) -> Any:
    try:
        import torch
    except ImportError:
        raise BadInput(
            f'{path}: {path.suffix} files require torch (pip install "stepcot-jax[torch]"); without it, use '
            ".safetensors (safetensors.torch.save_file where torch is installed)"
        ) from None
    return torch


def _read_torch(path: pathlib.Path) -> dict[str, Any]:
    torch = _import_torch(path)
    try:
        # The full unpickler would run code that the file names.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise BadInput(
            f"{path} has no readable tensors ({_one_line(error)}); expected a state_dict, or a dict of them, saved "
            "by torch.save without other objects"
        ) from None
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} holds a {type(found).__name__}; expected a state_dict or a dict of them")
    return _flatten_torch(torch, found)


def _flatten_torch(torch: Any, tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, leaf in tree.items():
        if isinstance(leaf, Mapping):
            leaves.update(_flatten_torch(torch, leaf, f"{prefix}{name}/"))
        elif isinstance(leaf, torch.Tensor):
            leaf = leaf.detach()
            # NumPy has no bfloat16; float32 represents it exactly.
            leaves[f"{prefix}{name}"] = (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).numpy()
        else:
            leaves[f"{prefix}{name}"] = leaf
    return leaves


def _write_torch(path: pathlib.Path, file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> None:
    torch = _import_torch(path)
    tree: dict[str, Any] = {}
    for name, array in tensors.items():
        network, _, rest = name.rpartition("/")
        # Arrays from JAX are read-only, torch tensors cannot be.
        tensor = torch.from_numpy(np.array(array))
        (tree.setdefault(network, {}) if network else tree)[rest] = tensor
    torch.save(tree, file)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
