"""Read files of pretrained weights as named tensors, without unpickling."""

import hashlib
import json
import pathlib
import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import install_extra, list_texts, one_line, shorten
from stepcot_jax.host.untrusted import require_file

INDEX = "model.safetensors.index.json"
PREFERRED = (
    "model.safetensors", INDEX, "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin",
)  # fmt: skip
"""Names of weights in a folder, in order of preference: safetensors before files that need torch."""

TORCH_SUFFIXES = (".bin", ".pt", ".pth")
ACCEPTED = f"expected one of {', '.join(PREFERRED)}, or a single *.safetensors, *.pt or *.pth"

_MOST_INDEX_BYTES = 1 << 26
_MOST_TENSORS = 100_000
_NUM_LISTED = 20

_MOST_MAPPED_BYTES = 1 << 27
"""Bytes read before a file is reopened: pages read from a memory map count as resident memory."""


class TensorFiles(Mapping[str, np.ndarray]):
    """Tensors by name, read from safetensors files on access."""

    def __init__(self, files: Mapping[str, pathlib.Path]):
        """`files`: tensor names -> the file that holds them."""
        self._files = files
        self._opened: dict[pathlib.Path, Any] = {}
        self._num_bytes = 0

    def __getitem__(self, name: str) -> np.ndarray:
        path = self._files[name]
        if self._num_bytes > _MOST_MAPPED_BYTES:
            self._opened.clear()
            self._num_bytes = 0
        if path not in self._opened:
            self._opened[path] = _open(path)
        try:
            tensor = self._opened[path].get_tensor(name)
            self._num_bytes += tensor.nbytes
            return tensor
        except Exception as error:  # safetensors raises several kinds for a dtype that NumPy does not have
            raise BadInput(f"{path}: tensor {name} cannot be read ({one_line(error)})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_tensors(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Return the tensors of a file, or of the weights in a folder, by name.

    Args:
      path: a file, or a folder with one of `PREFERRED` or a single file of weights.
    """
    file = find_weights(path)
    if file.name == INDEX:
        return _read_shards(file)
    if file.suffix in TORCH_SUFFIXES:
        return _read_torch(file)
    return TensorFiles(dict.fromkeys(_list_names(_open(file), file), file))


def _list_names(opened: Any, path: pathlib.Path) -> list[str]:
    names: list[str] = opened.keys()
    if len(names) > _MOST_TENSORS:
        raise BadInput(f"{path}: {len(names)} tensors; at most {_MOST_TENSORS} are accepted")
    return names


def find_weights(path: pathlib.Path) -> pathlib.Path:
    """Return the file that `read_tensors` reads: weights, or the index of their shards."""
    if path.is_file():
        if path.suffix not in (".safetensors", *TORCH_SUFFIXES):
            raise BadInput(f"{path}: suffix {path.suffix!r} is not supported; {ACCEPTED}")
        return path
    if not path.is_dir():
        problem = "not a regular file" if path.exists() else "no such file or folder"
        raise BadInput(f"{path}: {problem}; {ACCEPTED}")
    for name in PREFERRED:
        if (path / name).is_file():
            return path / name
    found = sorted(file for file in path.iterdir() if file.suffix in (".safetensors", *TORCH_SUFFIXES))
    if len(found) != 1:
        names = list_texts([file.name for file in found]) if found else "none"
        raise BadInput(f"{path}: no unambiguous file of weights (found {names}); {ACCEPTED}")
    return found[0]


def _open(path: pathlib.Path) -> Any:
    import safetensors

    _require(path)
    try:
        return safetensors.safe_open(path, framework="np")
    except Exception as error:  # safetensors raises several kinds for a broken header
        raise BadInput(f"{path}: not a complete safetensors file ({one_line(error)})") from None


def _require(path: pathlib.Path) -> None:
    try:
        require_file(path, accepted="a file of weights")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def _read_shards(index: pathlib.Path) -> TensorFiles:
    try:
        shards = json.loads(read_file(index, max_bytes=_MOST_INDEX_BYTES, accepted="an index"))["weight_map"]
        pairs = [(str(name), str(shard)) for name, shard in shards.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{index}: not an index of weights ({one_line(error)}); expected JSON with a weight_map"
        ) from None
    opened: dict[str, Any] = {}
    for _, shard in pairs:
        # Compare names and do not follow links: Hugging Face's cache consists of links.
        if pathlib.PurePath(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise BadInput(f"{index}: file {shard!r} is not a .safetensors file name in the same folder")
        if shard not in opened:
            opened[shard] = _open(index.with_name(shard))
    held = {name: shard for shard, file in opened.items() for name in _list_names(file, index.with_name(shard))}
    strays = sorted(name for name, shard in pairs if held.get(name) != shard)
    strays += sorted(set(held) - {name for name, _ in pairs})
    if strays:
        shown = ", ".join(map(shorten, strays[:_NUM_LISTED]))
        raise BadInput(f"{index}: index and files disagree on {shown} (expected each tensor once)")
    return TensorFiles({name: index.with_name(shard) for name, shard in pairs})


def _read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    found = load_torch(path)
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    tensors = {str(name): to_numpy(tensor) for name, tensor in found.items()} if isinstance(found, Mapping) else {}
    if not tensors or not all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        raise BadInput(f"{path}: expected a state_dict of tensors; got a {type(found).__name__}")
    return tensors


def import_torch(path: pathlib.Path) -> Any:
    """Return the module torch."""
    try:
        import torch
    except ImportError:
        raise BadInput(
            f"{path}: {path.suffix} files need torch ({install_extra('torch')}); without it, use .safetensors "
            "(safetensors.torch.save_file or save_pretrained, where torch is installed)"
        ) from None
    return torch


def load_torch(path: pathlib.Path) -> Any:
    """Return the content of a .bin, .pt or .pth file without unpickling objects."""
    torch = import_torch(path)
    _require(path)
    try:
        # weights_only: the full unpickler would run code from the file.
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's message advises to allow code
        reason = "contains objects that could run code"
    except Exception as error:  # torch raises many kinds for a broken file
        reason = f"cannot be read ({one_line(error)})"
    raise BadInput(f"{path}: {reason}; expected a state_dict written by torch.save")


def to_numpy(tensor: Any) -> Any:
    """Return a torch tensor as a NumPy array, bfloat16 as float32; anything else unchanged."""
    if not hasattr(tensor, "detach"):
        return tensor
    # NumPy has no bfloat16; float32 represents it exactly.
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).detach().numpy()


def weights_digest(tensors: Mapping[str, np.ndarray], names: Collection[str] | None = None) -> str:
    """Return the SHA-256 of names, dtypes, shapes and bytes, sorted by name, of all tensors or of `names`.

    It does not depend on how the tensors are divided into files.

    >>> weights_digest({"a": np.zeros(2)}) == weights_digest({"a": np.zeros((2, 1))})
    False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors if names is None else names):
        found = tensors[name]
        tensor = np.ascontiguousarray(found)
        header = json.dumps([name, str(tensor.dtype), list(np.shape(found))])
        digest.update(f"{header}\n".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
