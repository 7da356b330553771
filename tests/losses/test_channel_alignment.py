"""Channel alignment and its weight."""

import functools
import inspect

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import reference_numpy as oracle
from oracles.random_params import assert_close, normal

from stepcot_jax.losses.step_cot import alignment_weight, channel_alignment_loss

CASES, WIDTH = 6, 5
EVERY = np.ones(CASES, bool)
NORMALISERS = ["cka", "trace"]
masks = st.lists(st.booleans(), min_size=CASES, max_size=CASES).map(np.array)
seeds = st.integers(0, 10**6)


@functools.partial(jax.jit, static_argnames="normaliser")
def weight(u, v, annotated, normaliser="cka"):
    return alignment_weight(teacher=u, student=v, annotated=annotated, normaliser=normaliser)


@functools.partial(jax.jit, static_argnames="normaliser")
def align(u, v, annotated, normaliser="cka"):
    return channel_alignment_loss(
        teacher_projection=u, student_projection=v, annotated=annotated, temperature=2.0, normaliser=normaliser
    )


gradients = jax.jit(jax.grad(lambda *args: align(*args).loss, argnums=(0, 1)))


def draw(seed, scale=2.0):
    return scale * normal(seed, CASES, WIDTH), scale * normal(seed + 10**7, CASES, WIDTH)


# The weight


def test_weight_by_hand():
    # Centred rows are +-1/2 and +-1: Gram matrices G and 4 G.
    u, v = np.array([[0.0], [1.0]], np.float32), np.array([[5.0], [3.0]], np.float32)
    gram = 0.25 * np.array([[1, -1], [-1, 1]])
    both = np.ones(2, bool)
    assert_close(weight(u, v, both), 1.0, 1e-6)
    expected = (gram * 4 * gram).sum() / np.sqrt(np.trace(gram) * np.trace(4 * gram))
    assert expected == 1.0
    assert_close(weight(u, v, both, "trace"), expected, 1e-6)
    assert_close(weight(3 * u, v, both, "trace"), 3 * expected, 1e-6)  # the weight of eq. 21 grows with the spread
    # Independent directions over four cases.
    u, v = np.array([[0.0], [0.0], [1.0], [1.0]], np.float32), np.array([[0.0], [1.0], [0.0], [1.0]], np.float32)
    assert_close(weight(u, v, np.ones(4, bool)), 0.0, 1e-6)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@given(seeds, masks)
def test_weight_of_masked_rows_equals_that_of_dropped_rows(normaliser, seed, annotated):
    u, v = draw(seed)
    expected = oracle.alignment_weight(u[annotated], v[annotated], normaliser)
    u[~annotated], v[~annotated] = 1e6, np.nan
    assert_close(weight(u, v, annotated, normaliser), expected, 1e-4)


@given(seeds, masks)
def test_cka_is_between_zero_and_one(seed, annotated):
    found = float(weight(*draw(seed), annotated))
    assert 0 <= found <= 1 + 1e-5
    assert (found > 0) == (annotated.sum() >= 2)


@given(seeds, st.floats(-3, 3), st.floats(-3, 3))
def test_cka_ignores_scale_shift_and_rotation(seed, log_scale, shift):
    u, v = draw(seed)
    plain = weight(u, v, EVERY)
    assert_close(weight(np.float32(10**log_scale) * u, v, EVERY), plain, 1e-4)
    assert_close(weight(u, v + np.float32(shift), EVERY), plain, 1e-4)
    rotation, _ = np.linalg.qr(normal(seed, WIDTH, WIDTH))
    assert_close(weight(u @ rotation, v, EVERY), plain, 1e-4)
    assert_close(weight(v, u, EVERY), plain, 1e-5)


@given(seeds, masks)
def test_cka_of_the_same_rows_is_one(seed, annotated):
    assume(annotated.sum() >= 2)
    u, _ = draw(seed)
    assert_close(weight(u, u, annotated), 1.0, 1e-5)


@pytest.mark.parametrize("normaliser", NORMALISERS)
@given(seeds)
def test_weight_is_zero_where_a_side_is_constant(normaliser, seed):
    u, v = draw(seed)
    # The weight takes softmax rows: constant rows are equal probabilities in every case.
    constant = np.tile(oracle.softmax(np.float64(u[:1])).astype(np.float32), (CASES, 1))
    assert_close(weight(constant, v, EVERY, normaliser), 0.0, 1e-6)
    assert_close(weight(v, constant, EVERY, normaliser), 0.0, 1e-6)
    assert_close(weight(constant, constant, EVERY, normaliser), 0.0, 1e-6)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_weight_of_nearly_equal_rows_is_exact(normaliser):
    base, (du, dv) = np.full((CASES, WIDTH), 0.2), draw(3)
    u, v = (np.float32(base + 1e-3 * difference) for difference in (du, dv))
    assert_close(weight(u, v, EVERY, normaliser) / oracle.alignment_weight(u, v, normaliser), 1.0, 1e-3)


# The loss


@pytest.mark.parametrize("normaliser", NORMALISERS)
@given(seeds, masks, st.sampled_from([0.5, 2.0, 8.0]))
def test_masked_rows_equal_dropped_rows(normaliser, seed, annotated, scale):
    u, v = draw(seed, scale)
    loss, expected_weight = oracle.channel_alignment(u, v, annotated, normaliser=normaliser)
    u[~annotated], v[~annotated] = 50.0, -50.0
    found = align(u, v, annotated, normaliser)
    assert_close(found.loss, loss, 1e-4)
    assert_close(found.weight, expected_weight, 1e-4)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_cases_cost_nothing(count):
    u, v = draw(4)
    annotated = np.arange(CASES) < count
    found = align(u, v, annotated)
    assert (float(found.loss), float(found.weight)) == (0.0, 0.0)
    assert not any(np.asarray(gradient).any() for gradient in gradients(u, v, annotated))


@given(seeds, masks)
def test_gradients_are_finite_and_zero_where_not_annotated(seed, annotated):
    assume(annotated.sum() >= 2)
    for gradient in map(np.asarray, gradients(*draw(seed), annotated)):
        assert np.isfinite(gradient).all()
        assert not gradient[~annotated].any()
        assert gradient[annotated].any(axis=1).all()


def test_gradients_of_constant_features_are_finite():
    u, v = draw(5)
    constant = np.ones((CASES, WIDTH), np.float32)
    for pair in ((constant, v), (u, constant), (constant, constant)):
        assert all(np.isfinite(gradient).all() for gradient in gradients(*pair, EVERY))


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_gradient_agrees_with_finite_differences_of_the_oracle(normaliser):
    u, v = draw(6)
    annotated = np.array([1, 1, 0, 1, 1, 1], bool)
    found = jax.grad(lambda u, v: align(u, v, annotated, normaliser).loss, argnums=(0, 1))(u, v)
    for side in (0, 1):
        pair, step = [np.float64(u), np.float64(v)], 1e-6
        for index in np.ndindex(CASES, WIDTH):
            kept, values = pair[side][index], []
            for shift in (step, -step):
                pair[side][index] = kept + shift
                values.append(oracle.channel_alignment(*pair, annotated, normaliser=normaliser)[0])
            pair[side][index] = kept
            assert float(found[side][index]) == pytest.approx((values[0] - values[1]) / (2 * step), abs=2e-5, rel=2e-5)


def test_gradient_agrees_with_finite_differences_in_float32():
    u, v = map(jnp.asarray, draw(7))
    jax.test_util.check_grads(
        lambda u, v: align(u, v, EVERY).loss, (u, v), order=1, modes=["rev"], atol=1e-2, rtol=1e-2, eps=1e-2
    )


# Bad settings


def test_unknown_normaliser_is_refused():
    u, v = map(jnp.asarray, draw(8))
    with pytest.raises(ValueError, match="normaliser 'hsic' is not one of"):
        # Unwrapped, because users have no run-time type checks.
        inspect.unwrap(alignment_weight)(teacher=u, student=v, annotated=jnp.asarray(EVERY), normaliser="hsic")


def test_bad_temperature_is_refused():
    u, v = map(jnp.asarray, draw(9))
    with pytest.raises(ValueError, match=r"temperature must be above 0; got 0\.0"):
        channel_alignment_loss(
            teacher_projection=u, student_projection=v, annotated=jnp.asarray(EVERY), temperature=0.0
        )
