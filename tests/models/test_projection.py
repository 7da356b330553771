import jax.numpy as jnp
import numpy as np
from oracles import reference_numpy as oracle
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models.layers import Projection, layer_norm

X = normal(1, 4, 5)
PROJECTION = Projection(width=6, dropout_rate=0.5)
PARAMS = randomise(declare(PROJECTION, features=X))


def test_projection_agrees_with_the_oracle():
    expected = oracle.block(np.float64(X), oracle.as_float64(PARAMS))
    assert_close(PROJECTION.apply({"params": PARAMS}, jnp.asarray(X)), expected)
    assert (expected == 0).any()
    keep = np.random.default_rng(2).random((4, 6)) < 0.5
    assert_close(PROJECTION.apply({"params": PARAMS}, jnp.asarray(X), jnp.asarray(keep)), expected * keep / 0.5)


def test_norm_has_torchs_epsilon_and_rows_far_from_zero_do_not_cancel():
    rows = np.array([[0.001, -0.001]], np.float32)
    found = layer_norm(dtype=jnp.float32).apply({"params": {"scale": jnp.ones(2), "bias": jnp.zeros(2)}}, rows)
    assert_close(found, rows / np.sqrt(1e-6 + 1e-5), 1e-6)
    rows = normal(3, 2, 64) + np.float32(3000.0)
    params = {"scale": jnp.ones(64), "bias": jnp.zeros(64)}
    expected = oracle.layer_norm(np.float64(rows), oracle.as_float64(params))
    assert_close(layer_norm(dtype=jnp.float32).apply({"params": params}, rows), expected, 1e-3)
