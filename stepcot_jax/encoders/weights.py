"""Files of pretrained weights as named tensors. Nothing is ever unpickled."""

import hashlib
import json
import pathlib
import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from stepcot_jax.host.errors import BadInput

INDEX = "model.safetensors.index.json"
PREFERRED = (
    "model.safetensors",
    INDEX,
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
"""Names of weights in a folder, the first that is there is read: safetensors before what needs torch."""

TORCH_SUFFIXES = (".bin", ".pt", ".pth")
ACCEPTED = f"accepted are {', '.join(PREFERRED)}, or a single file *.safetensors, *.pt or *.pth"

_MOST_MAPPED_BYTES = 1 << 27
"""Bytes read from an open file before it is opened anew: what was read of a memory map counts as resident."""


class TensorFiles(Mapping[str, np.ndarray]):
    """Tensors by name, read from safetensors files when they are asked for, so that no copy of all is held."""

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
            raise BadInput(f"{path}: {name}: found no readable tensor ({_one_line(error)})") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_tensors(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """The tensors of a file, or of the weights in a folder, by name.

    Args:
      path: a file, or a folder with one of `PREFERRED` or a single file of weights.

    Raises:
      BadInput: there are no weights or too many, a file is broken, an index names a file outside its folder or a
        tensor that is not there, or the file needs torch and torch is not installed.
    """
    file = find_weights(path)
    if file.name == INDEX:
        return _read_shards(file)
    if file.suffix in TORCH_SUFFIXES:
        return _read_torch(file)
    return TensorFiles(dict.fromkeys(_open(file).keys(), file))


def find_weights(path: pathlib.Path) -> pathlib.Path:
    """The file of weights, or the index of several, that `read_tensors` reads.

    Raises:
      BadInput: there is none, or there are several and none has a known name.
    """
    if path.is_file():
        if path.suffix not in (".safetensors", *TORCH_SUFFIXES):
            raise BadInput(f"{path}: found suffix {path.suffix!r}, {ACCEPTED}")
        return path
    if not path.is_dir():
        raise BadInput(f"{path}: found no such file or folder, {ACCEPTED}")
    for name in PREFERRED:
        if (path / name).is_file():
            return path / name
    found = sorted(file for file in path.iterdir() if file.suffix in (".safetensors", *TORCH_SUFFIXES))
    if len(found) != 1:
        raise BadInput(f"{path}: found {[file.name for file in found] or 'no file'} of weights, {ACCEPTED}")
    return found[0]


def _open(path: pathlib.Path) -> Any:
    import safetensors

    try:
        return safetensors.safe_open(path, framework="np")
    except Exception as error:  # safetensors' own error, OSError, and others for a broken header
        raise BadInput(f"{path}: found no readable tensors ({_one_line(error)}), accepted is a whole file") from None


def _read_shards(index: pathlib.Path) -> TensorFiles:
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(shard)) for name, shard in shards.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{index}: found no index ({_one_line(error)}), accepted is a JSON with a weight_map") from None
    opened: dict[str, Any] = {}
    for _, shard in pairs:
        # By name, not by where a link leads: Hugging Face's cache is made of links.
        if pathlib.PurePath(shard).name != shard or "\\" in shard or not shard.endswith(".safetensors"):
            raise BadInput(f"{index}: found file {shard!r}, accepted are names of .safetensors in the same folder")
        if shard not in opened:
            opened[shard] = _open(index.with_name(shard))
    held = {name: shard for shard, file in opened.items() for name in file.keys()}  # noqa: SIM118
    strays = sorted(name for name, shard in pairs if held.get(name) != shard)
    strays += sorted(set(held) - {name for name, _ in pairs})
    if strays:
        raise BadInput(
            f"{index}: found no agreement with its files on {', '.join(strays)}, accepted is each tensor once"
        )
    return TensorFiles({name: index.with_name(shard) for name, shard in pairs})


def _read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise BadInput(
            f"{path}: found a file that only torch reads, and no torch; accepted are .safetensors (most models have "
            'one beside it, or save_pretrained makes one), or this command after pip install "stepcot-jax[torch]"'
        ) from None
    try:
        # weights_only: the full unpickler runs whatever code the file names.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own words advise to let the file run its code
        raise BadInput(
            f"{path}: found other things than tensors, which could run code; accepted is what torch.save makes of a "
            "state_dict"
        ) from None
    except Exception as error:  # torch raises many kinds for a broken file
        raise BadInput(
            f"{path}: found no readable tensors ({_one_line(error)}); accepted is what torch.save makes of a state_dict"
        ) from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise BadInput(f"{path}: found a {type(found).__name__} of other things than tensors, accepted is a state_dict")
    # NumPy has no bfloat16; float32 holds each of its numbers exactly.
    return {
        str(name): (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in found.items()
    }


def weights_digest(tensors: Mapping[str, np.ndarray], names: Collection[str] | None = None) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names; of all tensors or of those named.

    It is the same wherever the tensors were read from, whole or in shards, and another if any number changes.

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


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "..."
