"""The same program at small size, with random weights: to try a run before paying for its devices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen_vl import QwenVl
from stepcot_jax.policies.qwen.qwen_config import QwenConfig
from stepcot_jax.policies.qwen.qwen_loading import qwen_shapes

FACTORS = (1, 2, 4, 8)


def shrink_config(config: QwenConfig, factor: int) -> QwenConfig:
    """Return a config with widths and numbers of layers divided.

    The decoder keeps its heads, which become narrower, and its vocabulary; the tower keeps the width of its heads, has
    fewer of them, and its last block alone is a full one.
    """
    sizes, vision = config.sizes, config.vision
    divided = [sizes.width, sizes.head_width // 2, *sizes.sections]
    if vision is not None:
        divided.append(vision.num_heads)
    if factor not in FACTORS or any(size % factor for size in divided):
        raise BadInput(f"shrink: {factor} is not one of {FACTORS} that divides {divided}")
    small = dataclasses.replace(
        sizes,
        width=sizes.width // factor,
        num_layers=max(1, sizes.num_layers // factor),
        head_width=sizes.head_width // factor,
        mlp_width=sizes.mlp_width // factor,
        sections=tuple(section // factor for section in sizes.sections),
    )
    if vision is None:
        return dataclasses.replace(config, sizes=small)
    num_layers = max(2, vision.num_layers // factor)
    tower = dataclasses.replace(
        vision,
        width=vision.width // factor,
        num_layers=num_layers,
        num_heads=vision.num_heads // factor,
        mlp_width=vision.mlp_width // factor,
        out_width=small.width,
        full_layers=(num_layers - 1,),
    )
    return dataclasses.replace(config, sizes=small, vision=tower)


def draw_params(network: QwenVl, key: jax.Array, *, dtype: DTypeLike = jnp.float32) -> Any:
    """Return random parameters: matrices normal with deviation 0.02, as Qwen's, norms one and biases zero."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(qwen_shapes(network.sizes, network.vision))

    def draw(own: jax.Array, path: Any, shape: tuple[int, ...]) -> jax.Array:
        if path[-1].key == "scale":
            return jnp.ones(shape, dtype)
        if path[-1].key == "bias":
            return jnp.zeros(shape, dtype)
        return (0.02 * jax.random.normal(own, shape)).astype(dtype)

    keys = jax.random.split(key, len(leaves))
    drawn = [draw(own, path, tuple(leaf.shape)) for own, (path, leaf) in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)
