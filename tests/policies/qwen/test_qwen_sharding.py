"""Qwen2.5-VL on eight virtual devices: losses, gradients and updates of one device, parameters divided."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.random_params import randomise
from policies.qwen.test_qwen_loading import PUBLISHED
from policies.qwen.tiny_qwen import IMAGE, IMAGES, write_config

from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_inputs import QwenPreprocessing, QwenPrompt, cut_image
from stepcot_jax.policies.qwen_policy import (
    DECODER_AND_PROJECTOR,
    Tuned,
    bytes_on_a_device,
    lay_out_replies,
    param_shardings,
    row_shardings,
    spec_of,
    split_params,
    tuning_loss,
    tuning_update,
)
from stepcot_jax.policies.qwen_weights import qwen_shapes, read_qwen_config
from stepcot_jax.training.devices import make_mesh

pytestmark = pytest.mark.slow

LORA = LowRankSettings(rank=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The network, what trains, what is frozen, and a batch of four."""
    config = read_qwen_config(write_config(tmp_path_factory.mktemp("tiny"), IMAGES))
    params = randomise(qwen_shapes(config.sizes, config.vision), seed=3)
    preprocessing = QwenPreprocessing(patch_size=2, min_pixels=16, max_pixels=16 * 60)
    rng = np.random.default_rng(0)
    sizes = [(8, 12), (16, 8), (4, 8), (8, 8)]
    cut = [cut_image(rng.integers(0, 256, (*size, 3), np.uint8), preprocessing) for size in sizes]
    prompts = [QwenPrompt([3 + row, IMAGE, 4], [image]) for row, image in enumerate(cut)]
    rows = lay_out_replies(prompts, [[8, 57], [9, 10, 57], [57], [11, 57]], image_token=IMAGE, vision=config.vision)
    chosen, frozen = split_params(params, DECODER_AND_PROJECTOR)
    low_rank = init_low_rank(jax.random.key(1), params, LORA)
    tuned = Tuned(chosen, jax.tree.map(lambda leaf: leaf + 0.1, low_rank))
    return QwenVl(config.sizes, config.vision, remat=True), tuned, frozen, jax.tree.map(jnp.asarray, rows)


def test_eight_devices_compute_what_one_does(tiny):
    network, tuned, frozen, rows = tiny
    mesh = make_mesh(jax.devices()[:8], {"data": 2, "model": 4})
    compute = functools.partial(tuning_loss, network=network, low_rank=LORA)
    expected_loss, expected = jax.jit(jax.value_and_grad(compute))(tuned, frozen, rows)
    run = jax.jit(jax.value_and_grad(functools.partial(compute, mesh=mesh)))
    placed = [jax.device_put(tree, param_shardings(tree, mesh)) for tree in (tuned, frozen)]
    loss, gradients = run(*placed, jax.device_put(rows, row_shardings(rows, mesh)))
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    # Sums in another order: what is left of large terms that cancel differs by more than float32's resolution.
    error = jax.tree.map(lambda a, b: np.linalg.norm(a - b) / (np.linalg.norm(b) + 0.01), gradients, expected)
    assert max(jax.tree.leaves(error)) <= 1e-3
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected)) > 0.1


def test_parameters_and_optimizer_state_stay_divided(tiny):
    network, tuned, frozen, rows = tiny
    mesh = make_mesh(jax.devices()[:8], {"data": 2, "model": 4})
    optimizer = optax.adamw(1e-3, eps=1.0)  # a smaller one would enlarge the rounding of gradients near 0
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to a whole number
        update = functools.partial(tuning_update, network=network, optimizer=optimizer, low_rank=LORA)
        expected, _, _ = jax.jit(update)(tuned, optimizer.init(tuned), frozen, rows)
        state = jax.eval_shape(optimizer.init, tuned)
        shardings = [param_shardings(tree, mesh) for tree in (tuned, state, frozen)]
        placed, own_frozen = (jax.device_put(tree, shardings[place]) for tree, place in ((tuned, 0), (frozen, 2)))
        state = jax.jit(optimizer.init, out_shardings=shardings[1])(placed)
        run = jax.jit(functools.partial(update, mesh=mesh), out_shardings=(*shardings[:2], None))
        after, state, _ = run(placed, state, own_frozen, jax.device_put(rows, row_shardings(rows, mesh)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), after, expected)
    gate = "decoder/layer_1/gate/kernel"
    for leaf in (after.params[gate], state[0].mu.params[gate], state[0].nu.params[gate]):
        assert [shard.data.size for shard in leaf.addressable_shards] == [leaf.size // 8] * 8
    for layer in ("attention/query", "attention/out", "gate", "down"):
        for name in ("down", "up"):
            for leaf in (tree.low_rank[f"decoder/layer_1/{layer}"][name] for tree in (after, state[0].mu, state[0].nu)):
                assert leaf.addressable_shards[0].data.size == leaf.size // 8
    held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(after.params))
    assert held < sum(leaf.size for leaf in jax.tree.leaves(after.params)) / 5


def test_axes_that_do_not_divide_stay_whole():
    shape = {"data": 3, "model": 4}
    assert spec_of("decoder/layer_0/attention/key/kernel", (896, 2, 64), shape) == jax.P(None, None, None)
    assert spec_of("decoder/layer_0/attention/query/kernel", (896, 16, 64), shape) == jax.P(None, "model", None)
    assert spec_of("decoder/norm/scale", (896,), shape) == jax.P()


def test_matrices_of_lora_are_divided_and_kernels_as_without():
    shape = {"data": 2, "model": 4}
    assert spec_of("low_rank/decoder/layer_0/down/down", (18944, 16), shape) == jax.P("model", "data")
    assert spec_of("low_rank/decoder/layer_0/down/up", (16, 3584), shape) == jax.P("model", "data")
    assert spec_of("low_rank/decoder/layer_0/up/up", (16, 18944), shape) == jax.P("data", "model")
    assert spec_of("low_rank/decoder/layer_0/attention/key/down", (3584, 3), shape) == jax.P("data", None)
    assert spec_of("decoder/layer_0/down/kernel", (18944, 3584), shape) == jax.P("model", "data")
    assert spec_of("decoder/layer_0/up/kernel", (3584, 18944), shape) == jax.P("data", "model")


def test_published_lora_is_divided(tmp_path):
    config = read_qwen_config(write_config(tmp_path, PUBLISHED["VL-7B"][0]))
    shapes = qwen_shapes(config.sizes, config.vision)
    low_rank = jax.eval_shape(lambda: init_low_rank(jax.random.key(0), shapes, LowRankSettings()))
    whole = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(low_rank))
    for mesh_shape in ({"data": 8, "model": 1}, {"data": 2, "model": 4}, {"data": 4, "model": 4}):
        held = bytes_on_a_device(low_rank, mesh_shape, width=lambda path: 1)
        assert held == whole // math.prod(mesh_shape.values())


def test_published_parameters_are_divided(tmp_path):
    config = read_qwen_config(write_config(tmp_path, PUBLISHED["VL-7B"][0]))
    shapes = qwen_shapes(config.sizes, config.vision)
    for mesh_shape in ({"data": 8, "model": 1}, {"data": 4, "model": 4}):
        devices = math.prod(mesh_shape.values())
        held = bytes_on_a_device(shapes, mesh_shape, width=lambda path: 2)
        assert 2 * PUBLISHED["VL-7B"][1] / devices <= held <= 1.002 * 2 * PUBLISHED["VL-7B"][1] / devices
