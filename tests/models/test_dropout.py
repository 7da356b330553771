"""Dropout masks drawn ahead: shapes, rates, keys and their effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import normal

from stepcot_jax.models.layers import draw_keeps, drop

SITES = {"a": ((50,), 0.3), "b": ((5, 10), 0.1), "none": ((20,), 0.0), "all": ((20,), 1.0)}
CASES = jnp.arange(10)


@pytest.fixture(scope="module")
def keeps():
    return jax.tree.map(np.asarray, draw_keeps(jax.random.key(3), cases=CASES, leading=(20,), sites=SITES))


def test_share_that_is_dropped_is_the_rate(keeps):
    for name, (_, rate) in SITES.items():
        spread = 4 * np.sqrt(rate * (1 - rate) / keeps[name].size)
        assert abs((~keeps[name]).mean() - rate) <= spread, name


def test_masks_are_a_function_of_the_key_and_belong_to_the_case_wherever_it_lies(keeps):
    other = draw_keeps(jax.random.key(4), cases=CASES, leading=(20,), sites=SITES)
    assert (other["a"] != keeps["a"]).mean() > 0.3
    part = draw_keeps(jax.random.key(3), cases=jnp.array([4, 5, 6]), leading=(20,), sites=SITES)
    for name, keep in part.items():
        np.testing.assert_array_equal(keep, keeps[name][:, 4:7])
    rows = np.concatenate([keeps["a"], keeps["b"].reshape(20, 10, 50)], axis=0).reshape(-1, 50)
    assert len(np.unique(rows, axis=0)) > 0.95 * len(rows)  # they differ by site, step and case


def test_expectation_is_preserved_and_rate_one_gives_zeros_and_finite_gradients(keeps):
    values = jnp.broadcast_to(jnp.asarray(1 + np.abs(normal(5, 50))), (20, 10, 50))
    dropped = drop(values, keep=jnp.asarray(keeps["a"]), rate=0.3)
    assert abs(float(dropped.mean() / values.mean()) - 1) < 0.03
    kept = np.asarray(dropped)[keeps["a"]]
    np.testing.assert_allclose(kept, np.asarray(values)[keeps["a"]] / 0.7, rtol=1e-6)
    assert not np.asarray(dropped)[~keeps["a"]].any()
    values, keep = jnp.asarray(normal(7, 4)), jnp.array([False, False, False, True])
    gradient = jax.grad(lambda x: jnp.sum(drop(x, keep=keep, rate=1.0)))(values)
    assert not drop(values, keep=keep, rate=1.0).any()
    assert not gradient.any()
