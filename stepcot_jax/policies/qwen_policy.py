"""Qwen2.5-VL as a policy of the training loop: what trains and what is frozen are two trees, and LoRA a third.

`apply` takes both trees, so that gradients, moments and the frozen start of GRPO exist for the first alone.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array

from stepcot_jax.models.decoder import Decoder, DecoderBlock, DecoderSizes
from stepcot_jax.models.low_rank import (
    COLLECTION,
    LowRank,
    LowRankSettings,
    adapt_layers,
    init_low_rank,
    merge_low_rank,
)
from stepcot_jax.models.qwen import QwenVl, SquareQwen, VisionBlock
from stepcot_jax.models.stacked_layers import LAYERS, stack_layers
from stepcot_jax.policies.policy import FROZEN, TRAINED
from stepcot_jax.policies.qwen_weights import draw_params, qwen_shapes

# Divide Qwen2.5-VL among devices: named shardings of parameters, optimizer state and batches over (data, model).
#
# Axis `model` divides heads, hidden units of SwiGLU and words, as Megatron-LM does (Shoeybi et al., 2019); axis `data`
# divides cases, and the other axis of each matrix, so that no device holds a whole parameter (ZeRO-3; Rajbhandari et
# al., 2020). XLA adds the communication. An axis that a device count does not divide stays whole.


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
      shape: of the parameter.
      mesh_shape: sizes of the axes that divide; an axis that is missing divides nothing.

    >>> tuple(spec_of("decoder/layer_0/gate/kernel", (896, 4864), {"data": 2, "model": 4}))
    ('data', 'model')
    """
    for rule, axes in RULES:
        if re.fullmatch(f"(.*/)?{rule}", path):
            kept = (
                axis if axis and axis in mesh_shape and not size % mesh_shape[axis] else None
                for axis, size in zip(axes, shape, strict=True)
            )
            return PartitionSpec(*kept)
    return PartitionSpec()


def param_shardings(tree: Any, mesh: Mesh) -> Any:
    """Return the sharding of each array of a tree of parameters, flat or nested, or of an optimizer's state."""

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec_of(_join(path), tuple(leaf.shape), dict(mesh.shape)))

    return jax.tree_util.tree_map_with_path(place, tree)


def _join(path: Any) -> str:
    # An optimizer's state has the parameters' dictionaries inside its tuples.
    return "/".join(key.key for key in path if isinstance(key, jax.tree_util.DictKey))


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


# Fine-tune Qwen2.5-VL as GEMeX and MEDSAGE do: projector and decoder train, the vision tower is frozen.


DECODER_AND_PROJECTOR = r"decoder/.*|tower/merger_.*"
PROJECTOR = r"tower/merger_.*"
"""Parameters that train, as regular expressions of whole '/'-joined paths."""


def divide_params(params: Any, trained: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters that train and those that do not, flat, by '/'-joined path."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    chosen = {path: leaf for path, leaf in flat.items() if re.fullmatch(trained, path)}
    return chosen, {path: leaf for path, leaf in flat.items() if path not in chosen}


def join_params(trained: dict[str, Any], frozen: dict[str, Any]) -> Any:
    """Undo `divide_params`."""
    return flax.traverse_util.unflatten_dict({**frozen, **trained}, sep="/")


PLAIN, LOW_RANK = "plain", "low_rank"
"""Parts of what trains: parameters of the network, and the matrices of LoRA."""

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class QwenPolicy:
    """A network with the division of its parameters; used as a Flax module is, through `init` and `apply`.

    Attributes:
      network: see `SquareQwen`.
      low_rank: layers of LoRA; None trains the decoder itself.
      mesh: divides parameters and rows; None for one device.
      is_given: whether a checkpoint's parameters replace the first ones.
      gathers_once: whether an update lays parameters out before its passes, or each pass gathers them over `DATA`.
      scans_layers: whether an update stacks layers that are alike; see `models.stacked_layers`.
    """

    is_large = True
    """Matrices are kept in the compute dtype, and optimizers do not pack them."""

    network: SquareQwen
    low_rank: LowRankSettings | None = None
    mesh: Mesh | None = None
    is_given: bool = False
    gathers_once: bool = True
    scans_layers: bool = False

    @property
    def sizes(self) -> DecoderSizes:
        """Sizes of the decoder."""
        return self.network.sizes

    @property
    def dtype(self) -> DTypeLike:
        """Compute dtype."""
        return self.network.dtype

    def init(self, key: Array, *example: Any) -> dict[str, Params]:
        """Return first parameters as the collection "params"; no example is needed."""
        del example
        if self.is_given:
            shapes = qwen_shapes(self.network.sizes, self.network.vision)
            params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, self.dtype), shapes)
        else:
            params = draw_params(self.network, key, dtype=self.dtype)
        found = self.split(params)
        if self.low_rank is not None:
            fresh = init_low_rank(jax.random.fold_in(key, 1), params, self.low_rank)
            found[TRAINED][LOW_RANK] = flax.traverse_util.unflatten_dict(fresh, sep="/")
        return {"params": found}

    def split(self, params: Params) -> dict[str, Any]:
        """Return a network's parameters as what trains, float32, and what is frozen, in the compute dtype."""
        found = self.divide(params)
        return {
            TRAINED: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found[TRAINED]),
            FROZEN: jax.tree.map(lambda leaf: leaf.astype(self.dtype), found[FROZEN]),
        }

    def divide(self, params: Params) -> dict[str, Any]:
        """Return a network's parameters as what trains and what is frozen, the same arrays."""
        trained = DECODER_AND_PROJECTOR if self.low_rank is None else PROJECTOR
        chosen, frozen = divide_params(params, trained)
        nested = flax.traverse_util.unflatten_dict
        return {TRAINED: {PLAIN: nested(chosen, sep="/")}, FROZEN: nested(frozen, sep="/")}

    def apply(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Apply the network, as `flax.linen.Module.apply`; "params" has the parts `TRAINED` and `FROZEN`."""
        params = variables["params"]
        collections = {"params": _join_parts(params)}
        adapted: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.low_rank is not None:
            adapted, collections[COLLECTION] = adapt_layers(self.low_rank), params[TRAINED][LOW_RANK]
        with adapted, divide_cases(self.mesh):
            return self.network.apply(collections, *args, **kwargs)

    def lay_out(self, params: Params) -> Params:
        """Return parameters as a loop reads them: matrices in the compute dtype, divided by `MODEL` alone.

        No turn of the loop then casts them, or gathers them over `DATA`. Every use rounds them to that dtype anyway.
        """
        return self._lay_out(params, (MODEL,))

    def lay_out_update(self, params: Params, num_passes: int) -> Params:
        """Return parts of a state as the passes of an update read them."""
        gathers = self.gathers_once and num_passes > 1
        if self.scans_layers:
            return self._lay_out(stack_layers(params), (MODEL,) if gathers else (DATA, MODEL))
        return self.lay_out(params) if gathers else params

    def _lay_out(self, params: Params, axes: tuple[str, ...]) -> Params:
        sizes = {} if self.mesh is None else {axis: self.mesh.shape[axis] for axis in axes}

        def lay(path: Any, leaf: Any) -> Array:
            names = _join(path)
            is_stacked = f"/{LAYERS}/" in names
            kept = leaf.astype(self.dtype) if leaf.ndim > 1 + is_stacked else leaf
            if self.mesh is None:
                return kept
            shape = tuple(leaf.shape)
            spec = spec_of(names, shape, sizes)
            if is_stacked:
                spec = PartitionSpec(None, *spec_of(names.replace(LAYERS, "layer_0"), shape[1:], sizes))
            return jax.lax.with_sharding_constraint(kept, NamedSharding(self.mesh, spec))

        laid: Params = jax.tree_util.tree_map_with_path(lay, params)
        return laid

    def merge(self, params: Params) -> Params:
        """Return the network's own parameters, with LoRA added to the layers that it adapts, as NumPy arrays."""
        whole = _join_parts(params)
        if self.low_rank is not None:
            whole = merge_low_rank(whole, _by_layer(params[TRAINED][LOW_RANK]), self.low_rank)
        return jax.tree.map(np.asarray, whole)


def _join_parts(params: Params) -> Params:
    flat = (flax.traverse_util.flatten_dict(part, sep="/") for part in (params[TRAINED][PLAIN], params[FROZEN]))
    joined: Params = join_params(*flat)
    return joined


def _by_layer(nested: Params) -> LowRank:
    found: dict[str, dict[str, Array]] = {}
    for path, leaf in flax.traverse_util.flatten_dict(nested, sep="/").items():
        layer, name = path.rsplit("/", 1)
        found.setdefault(layer, {})[name] = leaf
    return found
