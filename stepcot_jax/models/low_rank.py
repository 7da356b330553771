"""Low-rank adaptation (Hu et al., 2022: LoRA) of any network's linear layers, without changing the network.

A layer's kernel W [in, out] is frozen; A [in, rank] and B [rank, out] are trained, and the layer computes
x W + scale x A B. B starts at zero, so that training starts from the network's own outputs.
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array

COLLECTION = "low_rank"
"""The Flax collection of A and B."""

LowRank = Mapping[str, Mapping[str, Array]]
"""'/'-joined paths of layers -> "down" [in, rank] and "up" [rank, out]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankSettings:
    """The adapted layers, and the rank and scale of their products.

    Attributes:
      rank: of A B, at least 1.
      alpha: the product is scaled by alpha / rank.
      targets: regular expression that matches a layer's full '/'-joined path.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: str = r"decoder/layer_\d+/(attention/(query|key|value|out)|gate|up|down)"

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0:
            raise ValueError(f"rank must be at least 1 and alpha above 0; got {self.rank} and {self.alpha}")

    @property
    def scale(self) -> float:
        """Factor of A B."""
        return self.alpha / self.rank


def list_layers(params: Any) -> list[str]:
    """Return the '/'-joined paths of all linear layers of parameters or their shapes, sorted."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    return sorted(path.removesuffix("/kernel") for path in flat if path.endswith("/kernel"))


def init_low_rank(key: Array, params: Any, settings: LowRankSettings) -> dict[str, dict[str, Array]]:
    """Return A, normal with variance 1 / in, and B, zero, of each target, float32.

    Args:
      key: random key.
      params: of the network, or their shapes. A kernel whose name is "out" has its last axis as output and all others
        as input; any other has its first axis as input.
      settings: which layers.

    Raises:
      ValueError: no layer matches the targets.
    """
    flat, paths = flax.traverse_util.flatten_dict(params, sep="/"), list_layers(params)
    chosen = [path for path in paths if re.fullmatch(settings.targets, path)]
    if not chosen:
        raise ValueError(f"targets: {settings.targets!r} matches no layer; there are {', '.join(paths[:3])}, ...")
    low_rank = {}
    for layer_key, path in zip(jax.random.split(key, len(chosen)), chosen, strict=True):
        num_in, num_out = _fans(path, flat[f"{path}/kernel"].shape)
        down = jax.random.normal(layer_key, (num_in, settings.rank)) * num_in**-0.5
        low_rank[path] = {"down": down, "up": jnp.zeros((settings.rank, num_out))}
    return low_rank


def _fans(path: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if path.endswith("/out"):
        return math.prod(shape[:-1]), shape[-1]
    return shape[0], math.prod(shape[1:])


@contextlib.contextmanager
def adapt_layers(settings: LowRankSettings) -> Iterator[None]:
    """Add scale x A B to the layers of every network applied within this context.

    The network gets A and B of each layer as the collection `COLLECTION`, nested as its parameters are.
    """

    def add(layer: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        out = layer(*args, **kwargs)
        module = context.module
        # A block may hold layers that are called "down" and "up": only a layer with a kernel has the two matrices.
        is_layer = context.method_name == "__call__" and module.has_variable("params", "kernel")
        if not is_layer or not module.has_variable(COLLECTION, "down"):
            return out
        down, up = (module.get_variable(COLLECTION, name).astype(out.dtype) for name in ("down", "up"))
        inputs = args[0].astype(out.dtype)
        # The trailing axes that the layer contracts: one, or head and width.
        last = next(axes for axes in (1, 2) if math.prod(inputs.shape[-axes:]) == down.shape[0])
        product = inputs.reshape(*inputs.shape[:-last], -1) @ down @ up
        return out + (product * jnp.asarray(settings.scale, out.dtype)).reshape(out.shape)

    with nn.intercept_methods(add):
        yield


def merge_low_rank(params: Any, low_rank: LowRank, settings: LowRankSettings) -> Any:
    """Return the parameters with scale A B added to the target kernels, in the kernels' dtype."""
    flat = dict(flax.traverse_util.flatten_dict(params, sep="/"))
    for path, pair in low_rank.items():
        kernel = flat[f"{path}/kernel"]
        product = pair["down"].astype(jnp.float32) @ pair["up"].astype(jnp.float32)
        merged = kernel.astype(jnp.float32) + jnp.float32(settings.scale) * product.reshape(kernel.shape)
        flat[f"{path}/kernel"] = merged.astype(kernel.dtype)
    return flax.traverse_util.unflatten_dict(flat, sep="/")
