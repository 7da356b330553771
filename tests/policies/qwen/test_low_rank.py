import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal
from policies.qwen.tiny_qwen import IMAGE, tiny

from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank, merge_low_rank
from stepcot_jax.models.qwen import SquareQwen
from stepcot_jax.policies.policy import TRAINED
from stepcot_jax.policies.qwen_policy import LOW_RANK, PLAIN, QwenPolicy

LORA = LowRankSettings(rank=3, alpha=6.0)
PROMPTS, LENGTHS = np.array([[3, *[IMAGE] * 4, 5]], np.int32), np.array([6], np.int32)
COMPLETIONS = np.array([[8, 9, 57]], np.int32)


@functools.partial(jax.jit, static_argnames="network")
def score(network, params):
    given = map(jnp.asarray, (normal(0, 1, 8, 8, 3), PROMPTS, LENGTHS, COMPLETIONS))
    return network.apply({"params": params}, *given)


@pytest.mark.slow
def test_low_rank_layers():
    config, params = tiny()
    network = SquareQwen(config.sizes, config.vision, grid=2, image_token=IMAGE)
    policy = QwenPolicy(network, LORA)
    parts, fresh = policy.split(params), init_low_rank(jax.random.key(0), params, LORA)
    assert len(fresh) == 2 * 7
    assert fresh["decoder/layer_1/attention/out"]["down"].shape == (32, 3)
    assert "decoder" not in parts[TRAINED][PLAIN]
    parts[TRAINED][LOW_RANK] = flax.traverse_util.unflatten_dict(fresh, sep="/")
    plain = score(network, params)
    assert_close(score(policy, parts), plain, 1e-6)
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.2, leaf.shape), jnp.float32), parts[TRAINED][LOW_RANK]
    )
    parts[TRAINED] |= {LOW_RANK: drawn}
    adapted = score(policy, parts)
    assert np.abs(adapted - plain).max() > 1e-2
    assert_close(score(network, policy.merge(parts)), adapted, 1e-5)
    gradients = jax.grad(lambda own: jnp.sum(jnp.sin(score(policy, {**parts, TRAINED: own}))))(parts[TRAINED])
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients[LOW_RANK]))


def test_the_product_is_scaled_by_alpha_over_rank():
    rng = np.random.default_rng(1)
    down, up, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (3, 5), (4, 5)))
    pairs = {"decoder/layer_0/gate": {"down": jnp.asarray(down), "up": jnp.asarray(up)}}
    params = {"decoder": {"layer_0": {"gate": {"kernel": jnp.asarray(kernel)}}}}
    merged = merge_low_rank(params, pairs, LowRankSettings(rank=3, alpha=12.0))["decoder"]["layer_0"]["gate"]["kernel"]
    assert_close(merged, kernel + 12 / 3 * down @ up)
    with pytest.raises(ValueError, match="rank must be at least 1"):
        LowRankSettings(rank=0)
