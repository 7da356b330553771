"""Divide Qwen2.5-VL among devices: named shardings of parameters, optimizer state and batches over (data, model).

Axis `model` divides heads, hidden units of SwiGLU and words, as Megatron-LM does (Shoeybi et al., 2019); axis `data`
divides cases, and the other axis of each matrix, so that no device holds a whole parameter (ZeRO-3; Rajbhandari et al.,
2020). XLA adds the communication. An axis that a device count does not divide stays whole.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from stepcot_jax.models.decoder import Decoder
from stepcot_jax.models.decoder_blocks import DecoderBlock
from stepcot_jax.models.qwen_vision import VisionBlock
from stepcot_jax.models.qwen_vl import QwenVl

DATA, MODEL = "data", "model"

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"decoder/embedding/embedding", (MODEL, DATA)),
    (r"decoder/head/kernel", (DATA, MODEL)),
    (r"decoder/layer_\d+/attention/(query|key|value)/kernel", (DATA, MODEL, None)),
    (r"decoder/layer_\d+/attention/(query|key|value)/bias", (MODEL, None)),
    (r"decoder/layer_\d+/attention/out/kernel", (MODEL, None, DATA)),
    (r"decoder/layer_\d+/(gate|up)/kernel", (DATA, MODEL)),
    (r"decoder/layer_\d+/down/kernel", (MODEL, DATA)),
    # LoRA's matrices [in, rank] and [rank, out] have no "kernel" in their paths; they are divided as their layer is.
    (r"decoder/(head|layer_\d+/(attention/(query|key|value)|gate|up))/(down|up)", (DATA, MODEL)),
    (r"decoder/layer_\d+/(attention/out|down)/(down|up)", (MODEL, DATA)),
    (r"tower/layer_\d+/(qkv|gate|up)/kernel", (DATA, MODEL)),
    (r"tower/layer_\d+/(out|down)/kernel", (MODEL, DATA)),
    (r"tower/patch_embedding/kernel", (DATA, MODEL)),
    (r"tower/merger_hidden/kernel", (DATA, MODEL)),
    (r"tower/merger_out/kernel", (MODEL, DATA)),
)
"""Parameters by '/'-joined path -> the mesh axis that divides each of their axes; all others are on every device."""


def spec_of(path: str, shape: tuple[int, ...], mesh_shape: Mapping[str, int]) -> PartitionSpec:
    """Return how a parameter is divided.

    Args:
      path: '/'-joined names, whatever they begin with, such as the name of a part or an optimizer.

    >>> tuple(spec_of("decoder/layer_0/gate/kernel", (896, 4864), {"data": 2, "model": 4}))
    ('data', 'model')
    """
    for rule, axes in RULES:
        if re.fullmatch(f"(.*/)?{rule}", path):
            kept = (
                axis if axis and not size % mesh_shape[axis] else None for axis, size in zip(axes, shape, strict=True)
            )
            return PartitionSpec(*kept)
    return PartitionSpec()


def param_shardings(tree: Any, mesh: Mesh) -> Any:
    """Return the sharding of each array of a tree of parameters, flat or nested, or of an optimizer's state.

    Args:
      tree: arrays or shapes; the keys of its dictionaries, joined, are the paths of the parameters.
    """

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec_of(_join(path), tuple(leaf.shape), dict(mesh.shape)))

    return jax.tree_util.tree_map_with_path(place, tree)


def _join(path: Any) -> str:
    # An optimizer's state has the parameters' dictionaries inside its tuples.
    return "/".join(key.key for key in path if isinstance(key, jax.tree_util.DictKey))


def row_shardings(rows: Any, mesh: Mesh) -> Any:
    """Return the sharding of a batch, such as `qwen_tuning.TuningRows`: cases and images are divided along `data`."""

    def place(path: Any, leaf: Any) -> NamedSharding:
        names = {key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)}
        axis = 1 if names & {"positions", "places"} else 0
        spec = [None] * axis + [None if leaf.shape[axis] % mesh.shape[DATA] else DATA]
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(place, rows)


@contextlib.contextmanager
def divide_cases(mesh: Mesh | None) -> Iterator[None]:
    """Within this context what networks compute stays divided by case, whatever XLA would choose; None for no mesh.

    Left to itself, XLA may follow the parameters instead, and have every device compute all cases.
    """

    def divide(layer: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        out, network, method = layer(*args, **kwargs), context.module, context.method_name
        for kind, name in ((VisionBlock, "__call__"), (QwenVl, "embed_prompts")):
            if isinstance(network, kind) and method == name:
                return _divide(out, mesh, None)
        if isinstance(network, DecoderBlock) and method == "__call__":
            return _divide(out[0], mesh, None), out[1]
        return _divide(out, mesh, MODEL) if isinstance(network, Decoder) and method == "score" else out

    with contextlib.nullcontext() if mesh is None else nn.intercept_methods(divide):
        yield


def _divide(rows: Array, mesh: Any, last: str | None) -> Array:
    spec = [None] * (rows.ndim - 1) + [last if last and not rows.shape[-1] % mesh.shape[last] else None]
    if not rows.shape[0] % mesh.shape[DATA]:
        spec[0] = DATA
    return jax.lax.with_sharding_constraint(rows, NamedSharding(mesh, PartitionSpec(*spec)))


def bytes_on_a_device(shapes: Any, mesh_shape: Mapping[str, int], *, width: Any) -> int:
    """Return the bytes of a tree of parameters on each device.

    Args:
      width: path -> bytes of an element, with all that is kept beside it, such as moments.
    """
    total = 0
    for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        path = _join(keys)
        divided = math.prod(mesh_shape[axis] for axis in spec_of(path, tuple(leaf.shape), mesh_shape) if axis)
        total += math.prod(leaf.shape) // divided * width(path)
    return total
