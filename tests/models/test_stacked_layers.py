"""Stacked layers are those read one after another: scores, prefixes, and gradients of every parameter and adapter."""

import dataclasses

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal, randomise
from policies.qwen.tiny_qwen import IMAGE, tiny

from stepcot_jax.models import stacked_layers
from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank
from stepcot_jax.models.qwen import SquareQwen
from stepcot_jax.models.stacked_layers import LAYERS, stack_layers, unstack_layers
from stepcot_jax.policies.policy import TRAINED
from stepcot_jax.policies.qwen_policy import LOW_RANK, QwenPolicy
from stepcot_jax.policies.qwen_weights import qwen_shapes

IMAGES = normal(0, 2, 12, 12, 3)  # several windows
PROMPTS, LENGTHS = np.array([[3, *[IMAGE] * 9, 5], [4, *[IMAGE] * 9, 0]], np.int32), np.array([11, 10], np.int32)
COMPLETIONS = np.array([[8, 9, 57], [10, 57, 57], [8, 11, 12], [13, 9, 57]], np.int32)
GIVEN = IMAGES, PROMPTS, LENGTHS, COMPLETIONS
ADAPTED = LowRankSettings(rank=2, targets=r"decoder/layer_\d/(attention/(query|out)|gate|down)")


@pytest.fixture(autouse=True)
def few_layers(monkeypatch):
    monkeypatch.setattr(stacked_layers, "LEAST", 3)


@pytest.fixture(scope="module")
def case():
    """Network and random parameters: four layers in the decoder and in the tower, of which one sees whole images."""
    config, _ = tiny()
    sizes = dataclasses.replace(config.sizes, num_layers=4)
    vision = dataclasses.replace(config.vision, num_layers=4, full_layers=(1,))
    network = SquareQwen(sizes, vision, jnp.dtype(jnp.float32), True, grid=3, image_token=IMAGE)
    return network, randomise(qwen_shapes(sizes, vision), seed=3)


def differentiate(score, params):
    """Return scores, and the gradient of a function of them by every parameter."""

    def loss(params):
        scores = score(params, *map(jnp.asarray, GIVEN))
        return jnp.sum(jnp.sin(scores)), scores

    gradients, scores = jax.jit(jax.grad(loss, has_aux=True))(params)
    return scores, flax.traverse_util.flatten_dict(unstack_layers(gradients), sep="/")


@pytest.mark.slow
@pytest.mark.parametrize("low_rank", [None, ADAPTED], ids=["all", "low rank"])
def test_scores_and_gradients_are_those_of_one_layer_after_another(case, low_rank):
    network, params = case
    policy = QwenPolicy(network, low_rank, scans_layers=True)
    parts = policy.split(params)
    if low_rank is not None:
        fresh = flax.traverse_util.unflatten_dict(init_low_rank(jax.random.key(0), params, low_rank), sep="/")
        parts[TRAINED][LOW_RANK] = randomise(fresh, seed=4)
    stacked = jax.jit(lambda parts: policy.lay_out_update(parts, 1))(parts)
    assert "layer_0" not in str(jax.tree.structure(stacked))

    def score(params, *given):
        return policy.apply({"params": params}, *given)

    (scores, gradients), (expected, wanted) = (differentiate(score, form) for form in (stacked, parts))
    assert_close(scores, expected, 1e-5)
    assert gradients.keys() == wanted.keys()
    for name, leaf in wanted.items():
        assert np.abs(leaf).max() > 0, name
        assert_close(gradients[name], leaf, 2e-5)


def test_a_program_of_stacked_layers_has_each_kind_once(case):
    network, params = case

    def count(params):
        run = jax.make_jaxpr(lambda params: network.apply({"params": params}, *map(jnp.asarray, GIVEN)))
        return str(run(params)).count("dot_general")

    # Once for prompts and once for replies; in the tower with windows and without.
    of_decoder, of_tower = 7, 4
    assert count(params) - count(stack_layers(params)) >= 3 * 2 * of_decoder + 2 * of_tower


def test_stacked_layers_give_the_prefix_of_each_layer(case):
    network, params = case

    def prefill(params):
        given = map(jnp.asarray, GIVEN[:3])
        return jax.jit(lambda params: network.apply({"params": params}, *given, method="prefill"))(params)

    (scores, prefix), (expected, wanted) = prefill(stack_layers(params)), prefill(params)
    assert_close(scores, expected, 1e-5)
    assert len(prefix) == len(wanted) == 4
    for found, one in zip(jax.tree.leaves(prefix), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, one, atol=1e-5)


def test_layers_that_are_not_alike_keep_their_names():
    def layer(width):
        return {"kernel": jnp.ones((2, width))}

    alike, fewer = {f"layer_{number}": layer(3) for number in range(11)}, {"layer_0": layer(3)}
    tree = {"plain": {"decoder": alike, "tower": alike | {"layer_5": layer(4)}}}
    stacked = stack_layers(tree)
    assert stacked["plain"]["decoder"][LAYERS]["kernel"].shape == (11, 2, 3)
    assert stacked["plain"]["tower"].keys() == tree["plain"]["tower"].keys()
    assert jax.tree.structure(unstack_layers(stacked)) == jax.tree.structure(tree)
    # Low-rank matrices of some layers: those layers differ from the others.
    assert stack_layers(tree | {"low_rank": {"decoder": fewer}})["plain"]["decoder"].keys() == alike.keys()


def test_each_layer_stands_at_its_place():
    layers = {f"layer_{number}": {"bias": jnp.full(2, number)} for number in (10, 2, *range(2), *range(3, 10))}
    stacked = stack_layers({"decoder": layers})
    np.testing.assert_array_equal(stacked["decoder"][LAYERS]["bias"][:, 0], range(11))
    np.testing.assert_array_equal(unstack_layers(stacked)["decoder"]["layer_10"]["bias"], [10, 10])
