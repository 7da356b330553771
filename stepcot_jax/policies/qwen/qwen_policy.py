"""Qwen2.5-VL as a policy of the training loop: what trains and what is frozen are two trees, and LoRA a third.

`apply` takes both trees, so that gradients, moments and the frozen start of GRPO exist for the first alone.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array

from stepcot_jax.models.decoder_blocks import DecoderSizes
from stepcot_jax.models.low_rank import LowRank, LowRankSettings, adapt_layers, init_low_rank, merge_low_rank
from stepcot_jax.models.square_qwen import SquareQwen
from stepcot_jax.policies.qwen.qwen_dry_run import draw_params
from stepcot_jax.policies.qwen.qwen_loading import qwen_shapes
from stepcot_jax.policies.qwen.qwen_sharding import divide_cases
from stepcot_jax.policies.qwen.qwen_tuning import DECODER_AND_PROJECTOR, PROJECTOR, divide_params, join_params

TRAINED, FROZEN = "trained", "frozen"
"""Parts of a policy's parameters."""

PLAIN, LOW_RANK = "plain", "low_rank"
"""Parts of what trains: parameters of the network, and the matrices of LoRA."""

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class QwenPolicy:
    """A network with the division of its parameters; used as a Flax module is, through `init` and `apply`.

    Attributes:
      low_rank: LoRA of the decoder, whose own parameters are then frozen; None: decoder and projector train.
      mesh: over which the arrays are divided, see `qwen_sharding`; None for whole arrays.
      is_given: the first parameters are given later; `init` returns zeros for them.
    """

    network: SquareQwen
    low_rank: LowRankSettings | None = None
    mesh: Mesh | None = None
    is_given: bool = False

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
        adapted: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.low_rank is not None:
            adapted = adapt_layers(_by_layer(params[TRAINED][LOW_RANK]), self.low_rank)
        with adapted, divide_cases(self.mesh):
            return self.network.apply({"params": _join(params)}, *args, **kwargs)

    def merge(self, params: Params) -> Params:
        """Return the network's own parameters, with LoRA added to the layers that it adapts, as NumPy arrays."""
        whole = _join(params)
        if self.low_rank is not None:
            whole = merge_low_rank(whole, _by_layer(params[TRAINED][LOW_RANK]), self.low_rank)
        return jax.tree.map(np.asarray, whole)


def _join(params: Params) -> Params:
    flat = (flax.traverse_util.flatten_dict(part, sep="/") for part in (params[TRAINED][PLAIN], params[FROZEN]))
    joined: Params = join_params(*flat)
    return joined


def _by_layer(nested: Params) -> LowRank:
    found: dict[str, dict[str, Array]] = {}
    for path, leaf in flax.traverse_util.flatten_dict(nested, sep="/").items():
        layer, name = path.rsplit("/", 1)
        found.setdefault(layer, {})[name] = leaf
    return found
