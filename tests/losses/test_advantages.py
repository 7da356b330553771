"""Advantages against NumPy, group by group; exactly 0 where all rewards of a group are equal."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.losses import policy_gradient as tested


def advantages(rewards, **settings):
    return tested.advantages(jnp.asarray(rewards), **settings)


def oracle(rewards, ddof, epsilon, scale):
    """Group by group, with NumPy's own moments over the scored rewards."""
    found = np.zeros_like(rewards)
    everything = rewards[~np.isnan(rewards)]
    for row, group in enumerate(rewards):
        scored = group[~np.isnan(group)]
        if len(scored) < 2 or scored.max() == scored.min():
            continue
        spread = {"group": scored, "batch": everything, "none": None}[scale]
        divisor = 1.0 if spread is None else np.std(spread, ddof=ddof) + epsilon
        found[row] = np.nan_to_num((group - scored.mean()) / divisor, nan=0.0)
    return found


rewards_of_a_group = st.lists(st.one_of(st.floats(-2, 2, width=32), st.just(float("nan"))), min_size=4, max_size=4)
groups = st.lists(rewards_of_a_group, min_size=3, max_size=3)  # one shape: compiled once


@given(groups, st.sampled_from([0, 1]), st.sampled_from(["group", "batch", "none"]))
def test_advantages_agree_with_numpy(rewards, ddof, scale):
    rewards = np.array(rewards, np.float32)
    spreads = [np.ptp(group[~np.isnan(group)]) for group in rewards if (~np.isnan(group)).sum() > 1]
    if any(0 < spread < 1e-3 for spread in spreads):
        return  # float32 has too few digits for the quotient of two tiny numbers
    found = advantages(rewards, std_ddof=ddof, std_epsilon=1e-6, scale=scale)
    np.testing.assert_allclose(found, oracle(rewards.astype(np.float64), ddof, 1e-6, scale), atol=2e-3, rtol=2e-4)


def test_equal_rewards_give_exactly_zero():
    rewards = np.full((3, 6), 0.9, np.float32)
    assert not np.any(advantages(rewards))
    assert not np.any(jax.jit(advantages)(rewards))
    plain = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + np.float32(1e-6))
    assert np.any(plain), "the plain formula is not exactly 0, which is why this test exists"
