"""Published models at an eighth of their widths."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies.qwen.test_qwen_loading import PUBLISHED
from policies.qwen.tiny_qwen import IMAGES, write_config

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_weights import draw_params, qwen_shapes, read_qwen_config, shrink_config


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_shrink(tmp_path, name):
    config = read_qwen_config(write_config(tmp_path, PUBLISHED[name][0]))
    small = shrink_config(config, 8)
    shapes = qwen_shapes(small.sizes, small.vision)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) < PUBLISHED[name][1] / 7
    assert (small.sizes.num_heads, small.sizes.num_words) == (config.sizes.num_heads, config.sizes.num_words)
    assert (small.vision is None) == (config.vision is None)
    assert shrink_config(config, 1).sizes == config.sizes


def test_random_parameters(tmp_path):
    config = read_qwen_config(write_config(tmp_path, IMAGES))
    params = draw_params(QwenVl(config.sizes, config.vision), jax.random.key(0), dtype=jnp.bfloat16)
    shapes = qwen_shapes(config.sizes, config.vision)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    gate = np.asarray(params["decoder"]["layer_0"]["gate"]["kernel"], np.float32)
    assert gate.std() == pytest.approx(0.02, rel=0.1)
    assert not np.array_equal(gate, params["decoder"]["layer_1"]["gate"]["kernel"])


def test_what_does_not_shrink(tmp_path):
    config = read_qwen_config(write_config(tmp_path, IMAGES))
    for factor in (3, 2):
        with pytest.raises(BadInput, match=f"shrink: {factor} is not one of"):
            shrink_config(config, factor)
