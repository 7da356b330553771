"""AdamW after gradient clipping, against NumPy and PyTorch; the plateau schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles.random_params import assert_close, normal
from oracles.reference_numpy import AdamW, clip_by_norm

from stepcot_jax.training.optimizers import Plateau, make_optimizer, scale_learning_rate

START = {"bias": normal(2, 4), "kernel": normal(1, 3, 4)}
# Norms above and below the clip, and an entry whose gradient is always zero, which must still decay.
GRADIENTS = [
    {"bias": scale * normal(20 + k, 4) * [1, 1, 1, 0], "kernel": scale * normal(10 + k, 3, 4)}
    for k, scale in enumerate([3.0, 0.05, 1.0, 0.001, 10.0])
]
GRADIENTS = jax.tree.map(np.float32, GRADIENTS)
RATE = 0.05


def optimise(optimizer, gradients=GRADIENTS, between=lambda state: state):
    @jax.jit
    def update(params, state, gradient):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.asarray, START)
    state, after = optimizer.init(params), []
    for gradient in gradients:
        params, state = update(params, state, gradient)
        state = between(state)
        after.append(params)
    return after, state, update._cache_size()


@pytest.mark.parametrize(("clip", "decay", "eps"), [(1.0, 0.01, 1e-8), (0.3, 0.2, 1e-3)])
def test_steps_agree_with_torchs_adamw(clip, decay, eps):
    found, _, _ = optimise(make_optimizer(learning_rate=RATE, weight_decay=decay, epsilon=eps, clip_norm=clip))
    oracle = AdamW([START["bias"], START["kernel"]], lr=RATE, weight_decay=decay, eps=eps)
    for params, gradient in zip(found, GRADIENTS, strict=True):
        expected = oracle.step(clip_by_norm([np.float64(gradient["bias"]), np.float64(gradient["kernel"])], clip))
        assert_close(params["bias"], expected[0], 1e-5)
        assert_close(params["kernel"], expected[1], 1e-5)


def test_scaling_the_rate_halves_the_update():
    optimizer = make_optimizer(learning_rate=RATE)
    params = jax.tree.map(jnp.asarray, START)
    state = optimizer.init(params)
    scaled = scale_learning_rate(state, 0.5)
    assert jax.tree.structure(scaled) == jax.tree.structure(state)
    assert [leaf.dtype for leaf in jax.tree.leaves(scaled)] == [leaf.dtype for leaf in jax.tree.leaves(state)]
    full, _ = optimizer.update(GRADIENTS[0], state, params)
    half, after = optimizer.update(GRADIENTS[0], scaled, params)
    assert np.abs(full["kernel"]).min() > 1e-3
    jax.tree.map(lambda a, b: assert_close(2 * a, b, 1e-7), half, full)
    again, _ = optimizer.update(GRADIENTS[1], after, params)
    expected, _ = optimizer.update(GRADIENTS[1], scale_learning_rate(after, 2.0), params)
    jax.tree.map(lambda a, b: assert_close(2 * a, b, 1e-7), again, expected)  # still halved
    jax.tree.map(lambda a, b: assert_close(a, b, 0), optimizer.update(GRADIENTS[0], state, params)[0], full)


def test_scaling_the_rate_needs_no_new_compilation():
    halve = lambda state: scale_learning_rate(state, 0.5)  # noqa: E731
    _, state, compilations = optimise(make_optimizer(learning_rate=RATE), between=halve)
    assert compilations == 1
    assert float(state[1].hyperparams["learning_rate"]) == pytest.approx(RATE / 2 ** len(GRADIENTS))


def follow(scores, **settings):
    """Rate factor and stop flag after each epoch, up to the stop."""
    plateau, seen = Plateau(**settings), []
    for score in scores:
        plateau = plateau.after_epoch(score)
        seen.append((plateau.rate_factor, plateau.stops))
        if plateau.stops:
            break
    return seen


NAN, KEPT, HALVED, STOPPED = float("nan"), (1.0, False), (0.5, False), (1.0, True)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.4, 0.5, 0.3, 0.9], [KEPT, KEPT, HALVED, STOPPED]),
        ([0.5, 0.4, 0.4, 0.6, 0.5, 0.5, 0.7, 0.8], [KEPT, KEPT, HALVED, KEPT, KEPT, HALVED, KEPT, KEPT]),
        ([NAN, NAN, NAN, 1.0], [KEPT, HALVED, STOPPED]),  # not a number is not better
        ([0.5, NAN, 0.4, NAN], [KEPT, KEPT, HALVED, STOPPED]),
    ],
)
def test_rate_is_halved_after_two_epochs_without_a_better_score_and_training_stops_after_three(scores, expected):
    assert follow(scores) == expected


def test_patience_counts_again_after_a_cut_and_a_score_follows_nan():
    assert [factor for factor, _ in follow([1.0] * 6, stop_after=9, factor=0.1)] == [1.0, 1.0, 0.1, 1.0, 0.1, 1.0]
    assert Plateau().after_epoch(NAN).after_epoch(-1.0).best == -1.0
