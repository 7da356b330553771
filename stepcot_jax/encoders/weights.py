"""Read files of pretrained weights as named tensors, without unpickling."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import msgspec
import numpy as np
from numpy.typing import DTypeLike

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
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
    """Return the tensors of a file, or of the weights in a folder (`PREFERRED`, or a single file), by name."""
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
    files = sorted(file for file in path.iterdir() if file.suffix in (".safetensors", *TORCH_SUFFIXES))
    if len(files) != 1:
        names = list_texts([file.name for file in files]) if files else "none"
        raise BadInput(f"{path}: no unambiguous file of weights (found {names}); {ACCEPTED}")
    return files[0]


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


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _read_shards(index: pathlib.Path) -> TensorFiles:
    pairs = read_json(index, _Index, accepted="expected a weight_map", max_bytes=_MOST_INDEX_BYTES).weight_map.items()
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
    content = load_torch(path)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    tensors = {str(name): to_numpy(tensor) for name, tensor in content.items()} if isinstance(content, Mapping) else {}
    if not tensors or not all(isinstance(tensor, np.ndarray) for tensor in tensors.values()):
        raise BadInput(f"{path}: expected a state_dict of tensors; got a {type(content).__name__}")
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
    """Return the SHA-256 of names, dtypes, shapes and bytes, however the tensors are divided into files."""
    digest = hashlib.sha256()
    for name in sorted(tensors if names is None else names):
        stored = tensors[name]
        tensor = np.ascontiguousarray(stored)
        header = json.dumps([name, str(tensor.dtype), list(np.shape(stored))])
        digest.update(f"{header}\n".encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# Assign the named tensors of a PyTorch checkpoint to Flax parameters, each exactly once.


Shape = tuple[int, ...]


class Layout(NamedTuple):
    """Converts PyTorch's tensor to Flax's, before the reshape, and Flax's shape to PyTorch's."""

    turn: Callable[[np.ndarray], np.ndarray]
    shape_before: Callable[[Shape], Shape]


LAYOUTS: Mapping[str, Layout] = {
    "same": Layout(lambda tensor: tensor, lambda shape: shape),
    # [out, in] -> [in, out]
    "dense": Layout(lambda tensor: tensor.T, lambda shape: shape[::-1]),
    # [out, in, height, width] -> [height, width, in, out]
    "conv": Layout(lambda tensor: tensor.transpose(2, 3, 1, 0), lambda shape: (shape[3], shape[2], *shape[:2])),
    # [out, 3, size, size] -> [size * size * 3, out]: a patch embedding as a matmul
    "patch": Layout(
        lambda tensor: tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0]),
        lambda shape: (shape[1], 3, *[math.isqrt(shape[0] // 3)] * 2),
    ),
    # [out, 3, 2, size, size] -> [3 * 2 * size * size, out]: Qwen2.5-VL's patch embedding as a matmul
    "frames": Layout(
        lambda tensor: tensor.reshape(tensor.shape[0], -1).T,
        lambda shape: (shape[1], 3, 2, *[math.isqrt(shape[0] // 6)] * 2),
    ),
    # weight [head * width, in] -> [in, head, width], its bias, and weight [out, head * width] -> [head, width, out]
    "to_heads": Layout(lambda tensor: tensor.T, lambda shape: (shape[1] * shape[2], shape[0])),
    "head_bias": Layout(lambda tensor: tensor, lambda shape: (shape[0] * shape[1],)),
    "from_heads": Layout(lambda tensor: tensor.T, lambda shape: (shape[2], shape[0] * shape[1])),
    # leading axes of length 1: cls_token [1, 1, width] -> [width], pos_embed [1, token, width] -> [token, width]
    "leading": Layout(
        lambda tensor: tensor.reshape(tensor.shape[-1:] if tensor.shape[1] == 1 else tensor.shape[1:]),
        lambda shape: (1,) * (3 - len(shape)) + shape,
    ),
}


@dataclasses.dataclass(frozen=True)
class Slot:
    """The parameter, or part of one, that a tensor fills."""

    path: str  # names in the parameter tree, joined with "/"
    layout: str = "same"
    part: int = 0  # index of this tensor among `parts`
    parts: int = 1  # tensors concatenated along the last axis, such as queries, keys and values


def dense_slots(name: str, path: str, *, part: int = 0, parts: int = 1) -> dict[str, Slot]:
    """Return the slots of the weight and bias of a linear layer."""
    return {
        f"{name}.weight": Slot(f"{path}/kernel", "dense", part, parts),
        f"{name}.bias": Slot(f"{path}/bias", "same", part, parts),
    }


def norm_slots(name: str, path: str, *, legacy: bool = False) -> dict[str, Slot]:
    """Return the slots of a LayerNorm's weight and bias, named gamma and beta if `legacy`."""
    weight, bias = ("gamma", "beta") if legacy else ("weight", "bias")
    return {f"{name}.{weight}": Slot(f"{path}/scale"), f"{name}.{bias}": Slot(f"{path}/bias")}


def assign(
    table: Mapping[str, Slot],
    tensors: Mapping[str, np.ndarray],
    *,
    shapes: Mapping[str, Any],
    unused: Collection[str] = (),
    only: str | None = "",
    source: str = "weights",
    dtype: DTypeLike | None = np.float32,
) -> dict[str, Any]:
    """Return the parameters below `only` (None: none) made from tensors, each used once; all tensors are checked."""
    targets = {path: tuple(leaf.shape) for path, leaf in flax.traverse_util.flatten_dict(shapes, sep="/").items()}
    paths = {slot.path for slot in table.values()}
    if paths != set(targets):
        raise ValueError(f"table and network differ in {sorted(paths ^ set(targets))}")
    flat, wrong = _fill(table, tensors, targets, only, None if dtype is None else np.dtype(dtype))
    require_names(table, tensors, unused=unused, wrong=wrong, source=source)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def require_names(
    table: Collection[str],
    tensors: Collection[str],
    *,
    unused: Collection[str] = (),
    wrong: Collection[str] = (),
    source: str,
    most: int = 10**9,
) -> None:
    """Refuse tensors that the table lacks, and the reverse, and name `most` of each; `wrong` has further problems."""
    unexpected, missing = sorted(set(tensors) - set(table) - set(unused)), sorted(set(table) - set(tensors))
    problems = []
    for kind, names in (("unexpected", unexpected), ("missing", missing), ("wrong", list(wrong))):
        more = f" and {len(names) - most} more" if len(names) > most else ""
        listed = ("; " if kind == "wrong" else ", ").join(names[:most])
        problems += [f"{kind}: {listed}{more}"] if names else []
    if problems:
        raise BadInput(f"{source}: the tensors do not match the config: {'. '.join(problems)}")


class Deferred:
    """A parameter that `numpy.asarray` reads from its tensors at every call, without keeping the values."""

    def __init__(self, shape: Shape, read: Callable[[], np.ndarray]) -> None:
        self.shape, self._read = shape, read

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._read(), dtype, copy=copy)


def assign_later(
    table: Mapping[str, Slot],
    tensors: Mapping[str, np.ndarray],
    *,
    shapes: Mapping[str, Any],
    unused: Collection[str] = (),
    source: str = "weights",
) -> dict[str, Any]:
    """Return `Deferred` parameters in their stored dtype, read when requested; all tensors are checked at the start."""
    assign(table, tensors, shapes=shapes, unused=unused, only=None, source=source, dtype=None)
    targets = {path: tuple(leaf.shape) for path, leaf in flax.traverse_util.flatten_dict(shapes, sep="/").items()}
    tables: dict[str, dict[str, Slot]] = {path: {} for path in targets}
    for name, slot in table.items():
        tables[slot.path][name] = slot

    def read(path: str) -> np.ndarray:
        flat, wrong = _fill(tables[path], tensors, targets, "", None)
        if wrong:
            raise BadInput(f"{source}: the tensors have changed since they were checked: {'; '.join(wrong)}")
        return flat[path]

    deferred = {path: Deferred(shape, functools.partial(read, path)) for path, shape in targets.items()}
    return flax.traverse_util.unflatten_dict(deferred, sep="/")


def _fill(
    table: Mapping[str, Slot],
    tensors: Mapping[str, np.ndarray],
    targets: Mapping[str, Shape],
    only: str | None,
    dtype: np.dtype | None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return flat parameters, and a message for each wrong tensor."""
    flat: dict[str, np.ndarray] = {}
    wrong = []
    for name, slot in sorted(table.items()):
        if name not in tensors:
            continue
        tensor, target, layout = tensors[name], targets[slot.path], LAYOUTS[slot.layout]
        width = target[-1] // slot.parts if target else 1
        expected = layout.shape_before((*target[:-1], width) if target else target)
        if tuple(tensor.shape) != expected:
            wrong.append(f"{name} has shape {list(tensor.shape)}, expected {list(expected)}")
        elif tensor.dtype.kind not in "fV":  # bfloat16 is of kind V
            wrong.append(f"{name} has dtype {tensor.dtype}, expected a floating-point type")
        elif not np.all(np.isfinite(tensor := tensor.astype(dtype or tensor.dtype, copy=False))):
            wrong.append(f"{name} has values that are not finite")
        elif only is not None and slot.path.startswith(only):
            # Zeros, since casting to a wider dtype also reads the parts that are not filled yet.
            values = flat.setdefault(slot.path, np.zeros(target, tensor.dtype))
            flat[slot.path] = values = values.astype(_widest(values.dtype, tensor.dtype), copy=False)
            part = slice(slot.part * width, (slot.part + 1) * width)
            values[(..., part) if target else ()] = layout.turn(tensor).reshape((*target[:-1], width) if target else ())
    return flat, wrong


def _widest(one: np.dtype, other: np.dtype) -> np.dtype:
    try:
        return np.promote_types(one, other)
    except TypeError:  # NumPy promotes neither bfloat16 with float16 nor 8-bit types
        return np.dtype(np.float32)
