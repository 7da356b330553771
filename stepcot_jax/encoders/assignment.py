"""Assign the named tensors of a PyTorch checkpoint to Flax parameters, each exactly once."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import numpy as np
from numpy.typing import DTypeLike

from stepcot_jax.host.errors import BadInput

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """A conversion of PyTorch's tensor to Flax's, up to its reshape, and of Flax's shape to PyTorch's."""

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
class Place:
    """The parameter that a tensor belongs to.

    Attributes:
      path: names in the parameter tree, joined with "/".
      part: index of this tensor among `parts`.
      parts: number of tensors concatenated along the parameter's last axis, such as queries, keys and values.
    """

    path: str
    layout: str = "same"
    part: int = 0
    parts: int = 1


def place_dense(name: str, path: str, *, part: int = 0, parts: int = 1) -> dict[str, Place]:
    """Return the places of the weight and bias of a linear layer."""
    return {
        f"{name}.weight": Place(f"{path}/kernel", "dense", part, parts),
        f"{name}.bias": Place(f"{path}/bias", "same", part, parts),
    }


def place_norm(name: str, path: str, *, legacy: bool = False) -> dict[str, Place]:
    """Return the places of a LayerNorm's weight and bias, named gamma and beta if `legacy`."""
    weight, bias = ("gamma", "beta") if legacy else ("weight", "bias")
    return {f"{name}.{weight}": Place(f"{path}/scale"), f"{name}.{bias}": Place(f"{path}/bias")}


def assign(
    table: Mapping[str, Place],
    tensors: Mapping[str, np.ndarray],
    *,
    shapes: Mapping[str, Any],
    unused: Collection[str] = (),
    only: str | None = "",
    source: str = "weights",
    dtype: DTypeLike | None = np.float32,
) -> dict[str, Any]:
    """Return parameters made from tensors, each used exactly once.

    Args:
      only: prefix of the parameters to return, None for none; the other tensors are checked and dropped.
      dtype: of the parameters; None for that of each tensor, where several are concatenated for the narrowest that
        holds the values of all.
    """
    targets = {path: tuple(leaf.shape) for path, leaf in flax.traverse_util.flatten_dict(shapes, sep="/").items()}
    given = {place.path for place in table.values()}
    if given != set(targets):
        raise ValueError(f"table and network differ in {sorted(given ^ set(targets))}")
    leftover = sorted(set(tensors) - set(table) - set(unused))
    missing = sorted(set(table) - set(tensors))
    flat, wrong = _fill(table, tensors, targets, only, None if dtype is None else np.dtype(dtype))
    found = {"unexpected": ", ".join(leftover), "missing": ", ".join(missing), "wrong": "; ".join(wrong)}
    if problems := [f"{kind}: {names}" for kind, names in found.items() if names]:
        raise BadInput(f"{source}: the tensors do not match the config: {'. '.join(problems)}")
    return flax.traverse_util.unflatten_dict(flat, sep="/")


class Deferred:
    """A parameter that `numpy.asarray` reads from its tensors, again each time: nothing is held in between."""

    def __init__(self, shape: Shape, read: Callable[[], np.ndarray]) -> None:
        """`read` returns the values."""
        self.shape, self._read = shape, read

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Read the values; NumPy's protocol."""
        return np.array(self._read(), dtype, copy=copy)


def assign_later(
    table: Mapping[str, Place],
    tensors: Mapping[str, np.ndarray],
    *,
    shapes: Mapping[str, Any],
    unused: Collection[str] = (),
    source: str = "weights",
) -> dict[str, Any]:
    """Return parameters as stored, each of which is read when its values are asked for; otherwise as `assign`.

    All tensors are read once before, so that those that do not fit are known and listed at the start.

    Returns:
      The parameter tree, with `Deferred` as leaves. Reading one whose tensors have changed since raises `BadInput`.
    """
    assign(table, tensors, shapes=shapes, unused=unused, only=None, source=source, dtype=None)
    targets = {path: tuple(leaf.shape) for path, leaf in flax.traverse_util.flatten_dict(shapes, sep="/").items()}
    tables: dict[str, dict[str, Place]] = {path: {} for path in targets}
    for name, place in table.items():
        tables[place.path][name] = place

    def read(path: str) -> np.ndarray:
        flat, wrong = _fill(tables[path], tensors, targets, "", None)
        if wrong:
            raise BadInput(f"{source}: the tensors have changed since they were checked: {'; '.join(wrong)}")
        return flat[path]

    later = {path: Deferred(shape, functools.partial(read, path)) for path, shape in targets.items()}
    return flax.traverse_util.unflatten_dict(later, sep="/")


def _fill(
    table: Mapping[str, Place],
    tensors: Mapping[str, np.ndarray],
    targets: Mapping[str, Shape],
    only: str | None,
    dtype: np.dtype | None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return flat parameters, and a message for each wrong tensor."""
    flat: dict[str, np.ndarray] = {}
    wrong = []
    for name, place in sorted(table.items()):
        if name not in tensors:
            continue
        tensor, target, layout = tensors[name], targets[place.path], LAYOUTS[place.layout]
        width = target[-1] // place.parts if target else 1
        expected = layout.shape_before((*target[:-1], width) if target else target)
        if tuple(tensor.shape) != expected:
            wrong.append(f"{name} has shape {list(tensor.shape)}, expected {list(expected)}")
        elif tensor.dtype.kind not in "fV":  # bfloat16 is of kind V
            wrong.append(f"{name} has dtype {tensor.dtype}, expected a floating-point type")
        elif not np.all(np.isfinite(tensor := tensor.astype(dtype or tensor.dtype, copy=False))):
            wrong.append(f"{name} has values that are not finite")
        elif only is not None and place.path.startswith(only):
            # Zeros, because casting to a wider dtype reads the places of parts that are still to come.
            values = flat.setdefault(place.path, np.zeros(target, tensor.dtype))
            flat[place.path] = values = values.astype(_widest(values.dtype, tensor.dtype), copy=False)
            part = slice(place.part * width, (place.part + 1) * width)
            values[(..., part) if target else ()] = layout.turn(tensor).reshape((*target[:-1], width) if target else ())
    return flat, wrong


def _widest(one: np.dtype, other: np.dtype) -> np.dtype:
    """Return the dtype that holds the values of both.

    >>> _widest(np.dtype(np.float16), np.dtype(np.float64))
    dtype('float64')
    """
    try:
        return np.promote_types(one, other)
    except TypeError:  # NumPy knows none for bfloat16 and float16, or for those of 8 bits
        return np.dtype(np.float32)
