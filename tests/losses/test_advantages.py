"""Advantages against NumPy, and the cases in which they are exactly 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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


groups = st.lists(
    st.lists(st.one_of(st.floats(-2, 2, width=32), st.just(float("nan"))), min_size=4, max_size=4),
    min_size=1,
    max_size=4,
)


@given(groups, st.sampled_from([0, 1]), st.sampled_from(["group", "batch", "none"]))
def test_advantages_agree_with_numpy(rewards, ddof, scale):
    rewards = np.array(rewards, np.float32)
    spreads = [np.ptp(group[~np.isnan(group)]) for group in rewards if (~np.isnan(group)).sum() > 1]
    if any(0 < spread < 1e-3 for spread in spreads):
        return  # float32 has too few digits for the quotient of two tiny numbers
    found = advantages(rewards, std_ddof=ddof, std_epsilon=1e-6, scale=scale)
    np.testing.assert_allclose(found, oracle(rewards.astype(np.float64), ddof, 1e-6, scale), atol=2e-3, rtol=2e-4)


def test_advantages_by_hand():
    found = advantages(np.array([[1.0, 0.0, 1.0, 2.0]], np.float32), std_epsilon=0.0)
    np.testing.assert_allclose(found, [[0.0, -1.0 / np.sqrt(2 / 3), 0.0, 1.0 / np.sqrt(2 / 3)]], rtol=1e-6)


@pytest.mark.parametrize(("value", "number"), [(0.9, 6), (0.7, 7), (0.1, 8), (1 / 3, 5)])
def test_equal_rewards_give_exactly_zero(value, number):
    rewards = np.full((3, number), value, np.float32)
    assert not np.any(advantages(rewards))
    assert not np.any(jax.jit(advantages)(rewards))
    plain = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + np.float32(1e-6))
    assert value != 0.9 or np.any(plain), "the plain formula is not exactly 0, which is why this test exists"


def test_unscored_rollouts_are_left_out():
    rewards = np.array([[1.0, np.nan, 0.0, 1.0], [np.nan, np.nan, np.nan, 1.0], [np.nan] * 4], np.float32)
    found = np.asarray(advantages(rewards))
    kept = np.asarray(advantages(np.array([[1.0, 0.0, 1.0]], np.float32)))
    np.testing.assert_array_equal(found[0, [0, 2, 3]], kept[0])
    assert found[0, 1] == 0
    assert not found[1:].any()


@pytest.mark.parametrize(
    ("shape", "settings", "found"),
    [((2, 1), {}, "2 rollouts"), ((1, 2), {"std_ddof": 2}, "std_ddof")],
)
def test_settings_are_checked(shape, settings, found):
    with pytest.raises(ValueError, match=found):
        advantages(np.zeros(shape, np.float32), **settings)
