import dataclasses
import math

import jax
import pytest
from policies.qwen.test_qwen_loading import PUBLISHED
from policies.qwen.tiny_qwen import write_config

from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank
from stepcot_jax.policies.qwen_policy import param_shardings, spec_of
from stepcot_jax.policies.qwen_weights import qwen_shapes, read_qwen_config
from stepcot_jax.training.devices import make_mesh

P = jax.P
THREE, TWO = {"data": 3, "model": 4}, {"data": 2, "model": 4}


@pytest.mark.parametrize(
    ("path", "shape", "mesh", "expected"),
    [
        # Axes that do not divide stay whole.
        ("decoder/layer_0/attention/key/kernel", (896, 2, 64), THREE, P(None, None, None)),
        ("decoder/layer_0/attention/query/kernel", (896, 16, 64), THREE, P(None, "model", None)),
        ("decoder/norm/scale", (896,), THREE, P()),
        # Matrices of LoRA are divided as their layers.
        ("low_rank/decoder/layer_0/down/down", (18944, 16), TWO, P("model", "data")),
        ("low_rank/decoder/layer_0/down/up", (16, 3584), TWO, P("model", "data")),
        ("low_rank/decoder/layer_0/attention/key/down", (3584, 3), TWO, P("data", None)),
        ("decoder/layer_0/up/kernel", (3584, 18944), TWO, P("data", "model")),
    ],
)
def test_axes_of_a_parameter(path, shape, mesh, expected):
    assert spec_of(path, shape, mesh) == expected


def test_published_parameters_and_lora_are_divided(tmp_path):
    """Of VL-7B with two layers of each kind."""
    config = read_qwen_config(write_config(tmp_path, PUBLISHED["VL-7B"][0]))
    vision = dataclasses.replace(config.vision, num_layers=2, full_layers=(1,))
    shapes = qwen_shapes(dataclasses.replace(config.sizes, num_layers=2), vision)
    low_rank = jax.eval_shape(lambda: init_low_rank(jax.random.key(0), shapes, LowRankSettings()))
    for axes in ({"data": 8, "model": 1}, {"data": 2, "model": 4}):
        mesh = make_mesh(jax.devices()[:8], axes)
        for tree, most in ((low_rank, 1.0), (shapes, 1.002)):
            leaves, shardings = jax.tree.leaves(tree), jax.tree.leaves(param_shardings(tree, mesh))
            pairs = zip(leaves, shardings, strict=True)
            held = sum(math.prod(sharding.shard_shape(leaf.shape)) for leaf, sharding in pairs)
            whole = sum(math.prod(leaf.shape) for leaf in leaves)
            assert whole / 8 <= held <= most * whole / 8
