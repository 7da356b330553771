"""Masked cross-entropy."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import reference_numpy as oracle
from oracles.random_params import assert_close, normal

from stepcot_jax.losses.step_cot import hard_label_loss, inverse_frequency_weights

CASES, ANSWERS = 6, 4


@jax.jit
def loss(logits, labels, annotated, weights=None):
    return hard_label_loss(logits=logits, labels=labels, annotated=annotated, answer_weights=weights)


gradient = jax.jit(jax.grad(loss))


def draw(seed, scale=2.0):
    rng = np.random.default_rng(seed)
    return scale * normal(seed, CASES, ANSWERS), rng.integers(0, ANSWERS, CASES).astype(np.int32)


masks = st.lists(st.booleans(), min_size=CASES, max_size=CASES).map(np.array)
seeds = st.integers(0, 10**6)


def test_even_odds_cost_the_log_of_the_number_of_answers():
    _, labels = draw(0)
    assert_close(loss(np.zeros((CASES, ANSWERS), np.float32), labels, np.ones(CASES, bool)), np.log(4), 1e-6)


def test_loss_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]] * CASES, np.float32))
    labels, annotated = np.array([0, 1, 2, 3, 3, 3], np.int32), np.array([1, 1, 1, 0, 0, 0], bool)
    assert_close(loss(logits, labels, annotated), np.log(2) * (1 + 2 + 3) / 3, 1e-6)
    weights = np.array([1, 2, 1, 9], np.float32)
    assert_close(loss(logits, labels, annotated, weights), np.log(2) * (1 + 2 * 2 + 3) / 4, 1e-6)


@given(seeds, masks, st.sampled_from([0.1, 2.0, 40.0]))
def test_masked_rows_equal_dropped_rows(seed, annotated, scale):
    logits, labels = draw(seed, scale)
    weights = np.random.default_rng(seed).uniform(0.1, 3, ANSWERS).astype(np.float32)
    hidden = np.where(annotated, labels, -100).astype(np.int32)
    assert_close(loss(logits, hidden, annotated), oracle.cross_entropy(logits, labels, annotated))
    assert_close(loss(logits, hidden, annotated, weights), oracle.cross_entropy(logits, labels, annotated, weights))


@given(seeds, masks)
def test_absent_answers_change_nothing(seed, annotated):
    logits, labels = draw(seed)
    wider = np.pad(logits, ((0, 0), (0, 2)), constant_values=-1e9)
    assert_close(loss(wider, labels, annotated), loss(logits, labels, annotated), 1e-7)
    found = np.asarray(gradient(wider, labels, annotated))
    assert not found[:, ANSWERS:].any()
    assert_close(found[:, :ANSWERS], gradient(logits, labels, annotated), 1e-7)


@given(seeds, masks)
def test_rows_that_are_not_annotated_get_no_gradient(seed, annotated):
    logits, labels = draw(seed)
    found = np.asarray(gradient(logits, labels, annotated))
    assert not found[~annotated].any()
    assert found[annotated].all()


def test_nothing_annotated_costs_nothing():
    logits, _ = draw(1)
    labels, annotated = np.full(CASES, -100, np.int32), np.zeros(CASES, bool)
    assert float(loss(logits, labels, annotated)) == 0.0
    assert not gradient(logits, labels, annotated).any()


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_agrees_with_finite_differences(weighted):
    logits, labels = draw(2)
    weights = np.array([0.5, 1, 2, 0.1], np.float32) if weighted else None
    annotated = np.array([1, 1, 0, 1, 0, 1], bool)
    jax.test_util.check_grads(
        lambda logits: loss(logits, labels, annotated, weights),
        (jnp.asarray(logits),),
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
        eps=1e-2,
    )


def test_large_logits_stay_finite():
    logits, labels = np.array([[1e4, -1e4, 0, 0]] * CASES, np.float32), np.ones(CASES, np.int32)
    assert_close(loss(logits, labels, np.ones(CASES, bool)), 2e4)
    assert np.isfinite(gradient(logits, labels, np.ones(CASES, bool))).all()


def test_bfloat16_logits_give_a_float32_loss():
    logits, labels = draw(3)
    half = jnp.asarray(logits, jnp.bfloat16)
    found = loss(half, labels, np.ones(CASES, bool))
    assert found.dtype == jnp.float32
    assert_close(found, oracle.cross_entropy(np.asarray(half, np.float64), labels, np.ones(CASES, bool)))


def test_weighted_loss_agrees_with_torch():
    torch = pytest.importorskip("torch")
    logits, labels = draw(4)
    labels[2] = -100
    weights = np.array([0.5, 1, 2, 0.1], np.float32)
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits), torch.tensor(labels).long(), torch.tensor(weights), ignore_index=-100
    )
    assert_close(loss(logits, labels, labels >= 0, weights), expected.numpy())


# Inverse-frequency weights


def test_weights_are_inverse_frequencies_of_mean_one():
    labels = np.array([[0, 0], [0, 1], [1, -100], [-100, 1], [0, 1]], np.int32)
    found = inverse_frequency_weights(labels=labels, answers_per_step=(3, 2))
    # Step 1 has counts 3, 1 and none (counted as 1); step 2 has 1 and 3.
    expected = [np.array([1 / 3, 1, 1]) * 3 / (7 / 3), [*np.array([1, 1 / 3]) * 2 / (4 / 3), 0]]
    assert_close(found, expected, 1e-6)
    assert found.dtype == np.float32


@given(seeds)
def test_weights_have_mean_one_and_are_finite(seed):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((20, 3)) < 0.5, -100, rng.integers(0, 3, (20, 3)))
    found = inverse_frequency_weights(labels=labels, answers_per_step=(5, 3, 4))
    assert np.isfinite(found).all()
    for row, count in zip(found, (5, 3, 4), strict=True):
        assert row[:count].mean() == pytest.approx(1, abs=1e-6)
        assert (row[:count] > 0).all()
        assert not row[count:].any()


def test_weights_without_any_label_are_even():
    found = inverse_frequency_weights(labels=np.full((3, 1), -100), answers_per_step=(4,))
    assert found.tolist() == [[1, 1, 1, 1]]
