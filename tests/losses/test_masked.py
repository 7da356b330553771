"""Masked means: masked rows affect neither the mean nor the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.random_params import assert_close, normal

from stepcot_jax.losses.step_cot import masked_center, masked_mean

mean = jax.jit(lambda values, counted, weights: masked_mean(values=values, counted=counted, weights=weights))
centre = jax.jit(lambda rows, counted: masked_center(rows=rows, counted=counted))
masks = st.lists(st.booleans(), min_size=6, max_size=6).map(np.array)


def test_mean_by_hand():
    values, counted = np.array([1.0, 5.0, 100.0], np.float32), np.array([True, True, False])
    assert float(mean(values, counted, None)) == 3.0
    assert float(mean(values, counted, np.array([3.0, 1.0, 7.0], np.float32))) == 2.0


@given(masks, st.integers(0, 10**6))
def test_mean_is_that_of_the_rows_that_count(counted, seed):
    values, weights = normal(seed, 6), np.abs(normal(seed + 1, 6))
    expected = values[counted].mean(dtype=np.float64) if counted.any() else 0.0
    assert_close(mean(values, counted, None), expected)
    expected = np.average(np.float64(values[counted]), weights=weights[counted]) if counted.any() else 0.0
    assert_close(mean(values, counted, weights), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_does_not_count_may_be_anything(bad):
    values, counted = np.array([1.0, bad, 3.0, bad], np.float32), np.array([True, False, True, False])
    weights = np.array([1.0, bad, 3.0, bad], np.float32)
    assert float(mean(values, counted, weights)) == 2.5
    assert np.asarray(jax.grad(mean)(values, counted, None)).tolist() == [0.5, 0.0, 0.5, 0.0]
    assert np.asarray(jax.grad(mean)(values, counted, weights)).tolist() == [0.25, 0.0, 0.75, 0.0]


@pytest.mark.parametrize("weights", [None, np.ones(3, np.float32)])
def test_nothing_counted_gives_zero_and_no_gradient(weights):
    values, counted = np.full(3, np.nan, np.float32), np.zeros(3, bool)
    assert float(mean(values, counted, weights)) == 0.0
    assert not jax.grad(mean)(values, counted, weights).any()


def test_weights_that_sum_to_zero_give_zero():
    assert float(mean(np.ones(3, np.float32), np.ones(3, bool), np.zeros(3, np.float32))) == 0.0


def test_mean_is_float32_whatever_the_values():
    values = jnp.asarray([1.0, 1.0 / 3], jnp.bfloat16)
    found = mean(values, np.ones(2, bool), None)
    assert found.dtype == jnp.float32
    assert float(found) == float(values.astype(jnp.float32).mean())


@given(masks, st.integers(0, 10**6))
def test_centre_is_that_of_the_rows_that_count(counted, seed):
    rows = normal(seed, 6, 3)
    rows[~counted] = np.nan
    found = np.asarray(centre(rows, counted))
    assert (found[~counted] == 0).all()
    if counted.any():
        assert_close(found[counted], rows[counted] - rows[counted].mean(axis=0, dtype=np.float64))
