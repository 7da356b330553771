"""Fine-tuning of a tiny Qwen2.5-VL: what trains, LoRA, and the loss of replies alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, randomise
from policies.qwen.tiny_qwen import IMAGE, IMAGES, write_config

from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank, merge_low_rank
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_inputs import QwenPreprocessing, QwenPrompt, cut_image
from stepcot_jax.policies.qwen_policy import (
    DECODER_AND_PROJECTOR,
    PROJECTOR,
    Tuned,
    join_params,
    lay_out_replies,
    split_params,
    tuning_loss,
    tuning_update,
)
from stepcot_jax.policies.qwen_weights import qwen_shapes, read_qwen_config

PREPROCESSING = QwenPreprocessing(patch_size=2, min_pixels=16, max_pixels=16 * 60)
CUT = [
    cut_image(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8), PREPROCESSING)
    for seed, size in enumerate([(12, 20), (16, 8)])
]
PROMPTS = [QwenPrompt([3, IMAGE, 4, 5], CUT[:1]), QwenPrompt([6, IMAGE], CUT[1:])]
REPLIES = [[8, 9, 57], [10, 57]]
LORA = LowRankSettings(rank=3, alpha=6.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The network, its random parameters and a batch."""
    config = read_qwen_config(write_config(tmp_path_factory.mktemp("tiny"), IMAGES))
    params = randomise(qwen_shapes(config.sizes, config.vision), seed=3)
    rows = lay_out_replies(PROMPTS, REPLIES, image_token=IMAGE, vision=config.vision)
    return QwenVl(config.sizes, config.vision), params, jax.tree.map(jnp.asarray, rows)


def draw_low_rank(params, seed=0):
    """LoRA with random values in both matrices."""
    fresh = init_low_rank(jax.random.key(seed), params, LORA)
    return jax.tree.map(
        lambda leaf: jnp.asarray(np.random.default_rng(seed).normal(0, 0.2, leaf.shape), jnp.float32), fresh
    )


def test_the_loss_is_that_of_the_replies(tiny):
    network, params, rows = tiny
    found = quick_jit(functools.partial(tuning_loss, network=network))(Tuned({}, {}), split_params(params, "")[1], rows)
    score = quick_jit(lambda params, *given: network.apply({"params": params}, *given, method="score_texts"))
    logits = score(params, rows.images, rows.texts)
    logs = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    # An image of 3 x 5 units and one of 4 x 2 stand for a token each.
    firsts = [3 + 15, 1 + 8]
    losses = [
        -logs[row, first + t - 1, token] for row, first in enumerate(firsts) for t, token in enumerate(REPLIES[row])
    ]
    assert len(losses) == 5
    assert_close(found, np.mean(losses), 1e-5)


@pytest.mark.parametrize("trained", [DECODER_AND_PROJECTOR, PROJECTOR])
def test_what_is_frozen_stays(tiny, trained):
    network, params, rows = tiny
    chosen, frozen = split_params(params, trained)
    assert {path.split("/")[1].split("_")[0] for path in frozen if path.startswith("tower")} == {"layer", "patch"}
    assert any(path.startswith("decoder") for path in chosen) == (trained == DECODER_AND_PROJECTOR)
    optimizer = optax.adamw(1e-3)
    tuned = Tuned(chosen, {})
    update = quick_jit(functools.partial(tuning_update, network=network, optimizer=optimizer))
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to a whole number
        after, state, first = update(tuned, optimizer.init(tuned), frozen, rows)
        second = update(after, state, frozen, rows)[2]
    assert set(after.params) == set(chosen)
    moments = {leaf.shape for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert moments <= {leaf.shape for leaf in chosen.values()}
    unmoved = [path for path in chosen if np.array_equal(chosen[path], after.params[path])]
    assert not unmoved
    assert second < first
    jax.tree.map(np.testing.assert_array_equal, join_params(chosen, frozen), params)


def test_low_rank_layers(tiny):
    network, params, rows = tiny
    frozen = split_params(params, "")[1]
    loss = quick_jit(functools.partial(tuning_loss, network=network, low_rank=LORA))
    fresh = init_low_rank(jax.random.key(0), params, LORA)
    assert len(fresh) == 2 * 7
    assert fresh["decoder/layer_1/attention/out"]["down"].shape == (32, 3)
    plain = quick_jit(functools.partial(tuning_loss, network=network))(Tuned({}, {}), frozen, rows)
    assert_close(loss(Tuned({}, fresh), frozen, rows), plain, 1e-6)
    trained = draw_low_rank(params)
    adapted = loss(Tuned({}, trained), frozen, rows)
    assert abs(adapted - plain) > 1e-2
    merged = split_params(merge_low_rank(params, trained, LORA), "")[1]
    assert_close(quick_jit(functools.partial(tuning_loss, network=network))(Tuned({}, {}), merged, rows), adapted, 1e-5)
    gradients = quick_jit(jax.grad(functools.partial(tuning_loss, network=network, low_rank=LORA)))(
        Tuned({}, trained), frozen, rows
    )
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_computing_blocks_again_changes_nothing(tiny):
    network, params, rows = tiny
    chosen, frozen = split_params(params, DECODER_AND_PROJECTOR)
    tuned = Tuned(chosen, draw_low_rank(params))

    def gradients(remat):
        own = QwenVl(network.sizes, network.vision, remat=remat)
        return quick_jit(jax.grad(functools.partial(tuning_loss, network=own, low_rank=LORA)))(tuned, frozen, rows)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients(False), gradients(True))


def test_settings_of_low_rank(tiny):
    _, params, _ = tiny
    with pytest.raises(ValueError, match="rank must be at least 1"):
        LowRankSettings(rank=0)
    with pytest.raises(ValueError, match="matches no layer; there are decoder/"):
        init_low_rank(jax.random.key(0), params, LowRankSettings(targets="q_proj"))
