"""Cross-entropy against distributions: limits at p = 0 and p = 1, masks, gradients, and its place in the objectives."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from losses.test_hard_label import ANSWERS, CASES, draw, masks, seeds
from losses.test_hard_label import loss as hard_loss
from losses.test_objective import INPUTS, LABELS, WEIGHTS, run
from oracles.random_params import assert_close

from stepcot_jax.losses.step_cot import batch_totals, distribution_loss, inverse_frequency_weights, teacher_objective

NEGATIVE = ANSWERS - 1


@jax.jit
def loss(logits, targets, annotated, weights=None):
    return distribution_loss(logits=logits, targets=targets, annotated=annotated, answer_weights=weights)


def one_hot(labels, width=ANSWERS):
    return (labels[..., None] == np.arange(width)).astype(np.float32)


def soften(labels, probability):
    """Probability `probability` of each label, the rest of the last answer."""
    p = np.float32(probability)
    return p * one_hot(labels) + (1 - p) * one_hot(np.full_like(labels, NEGATIVE))


def expected(logits, targets, annotated, weights):
    """In float64, term by term."""
    logits = np.float64(logits)
    log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    terms = -(targets * weights * log_q)[annotated]
    return terms.sum() / max((targets * weights)[annotated].sum(), 1e-300)


@given(seeds, masks, st.floats(0, 1, width=32))
def test_the_mean_is_that_of_all_terms(seed, annotated, probability):
    logits, labels = draw(seed)
    targets, weights = soften(labels, probability), np.random.default_rng(seed).uniform(0.1, 3, ANSWERS)
    found = loss(logits, targets, annotated, weights.astype(np.float32))
    assert_close(found, expected(logits, targets, annotated, weights), 1e-5)
    assert_close(loss(logits, targets, annotated), expected(logits, targets, annotated, np.ones(ANSWERS)), 1e-5)


@pytest.mark.parametrize("weights", [None, np.array([0.5, 2, 1, 0.7], np.float32)])
@pytest.mark.parametrize(("probability", "labels_of"), [(1, lambda x: x), (0, lambda x: np.full_like(x, NEGATIVE))])
def test_certain_targets_are_hard_labels(weights, probability, labels_of):
    logits, labels = draw(3)
    annotated = np.array([1, 1, 0, 1, 0, 1], bool)
    soft = jax.value_and_grad(loss)(logits, soften(labels, probability), annotated, weights)
    hard = jax.value_and_grad(hard_loss)(logits, labels_of(labels), annotated, weights)
    assert float(soft[0]) == float(hard[0]) or weights is not None
    jax.tree.map(lambda one, other: assert_close(one, other, 1e-6), soft, hard)


def test_even_odds_cost_the_mean_of_both_answers():
    logits, labels = draw(5)
    annotated = np.ones(CASES, bool)
    positive, negative = (hard_loss(logits, each, annotated) for each in (labels, np.full_like(labels, NEGATIVE)))
    assert_close(loss(logits, soften(labels, 0.5), annotated), (positive + negative) / 2, 1e-6)
    assert_close(loss(logits, soften(labels, 0.7), annotated), 0.7 * positive + 0.3 * negative, 1e-6)


@pytest.mark.parametrize("mask", ["101101", "000100", "111111", "000000"])
def test_a_masked_row_equals_a_dropped_row(mask):
    annotated = np.array([each == "1" for each in mask])
    logits, labels = draw(7)
    targets = np.where(annotated[:, None], soften(labels, 0.3), np.nan).astype(np.float32)
    value, gradient = jax.value_and_grad(loss)(logits, targets, annotated)
    assert not np.asarray(gradient)[~annotated].any()
    if annotated.any():
        rows = (jnp.asarray(each[annotated]) for each in (logits, targets, annotated))
        kept = jax.value_and_grad(loss)(*rows)
        assert_close(value, kept[0], 1e-6)
        assert_close(np.asarray(gradient)[annotated], kept[1], 1e-6)
    else:
        assert float(value) == 0.0


def test_gradients_are_those_of_finite_differences():
    logits, labels = draw(7, scale=1.0)
    annotated, weights = np.array([1, 1, 1, 0, 1, 1], bool), np.array([0.5, 2, 1, 0.7], np.float32)
    targets = soften(labels, 0.6)
    jax.test_util.check_grads(
        lambda x: loss(x, targets, annotated, weights), (logits,), 1, ["rev"], atol=1e-2, rtol=1e-2
    )


ARRAYS = jax.tree.map(jnp.asarray, INPUTS)
SOFT = one_hot(LABELS)
SOFT[0, 0], SOFT[4, 2] = (0.7, 0, 0, 0.3), (0.25, 0, 0.75, 0)


@pytest.mark.parametrize("weights", [None, jnp.asarray(WEIGHTS)], ids=["plain", "weighted"])
def test_one_hot_targets_change_neither_objective(weights):
    inputs, targets = ARRAYS, jnp.asarray(one_hot(LABELS))
    teacher = {
        "logits": inputs["teacher_logits"],
        "labels": jnp.asarray(LABELS),
        "answer_weights": weights,
    }
    for found, plain in (
        (teacher_objective(**teacher, targets=targets), teacher_objective(**teacher)),
        (run(inputs, LABELS, targets=targets, answer_weights=weights), run(inputs, LABELS, answer_weights=weights)),
    ):
        jax.tree.map(lambda one, other: assert_close(one, other, 1e-6), found, plain)


def test_soft_targets_leave_distillation_and_alignment_alone():
    soft, plain = run(ARRAYS, LABELS, targets=jnp.asarray(SOFT)), run(ARRAYS, LABELS)
    assert not np.allclose(soft.hard_label, plain.hard_label)
    np.testing.assert_array_equal(soft.soft_label, plain.soft_label)
    np.testing.assert_array_equal(soft.channel_alignment, plain.channel_alignment)


@pytest.mark.parametrize("weights", [None, jnp.asarray(WEIGHTS)], ids=["plain", "weighted"])
def test_parts_of_a_batch_add_up_to_the_whole(weights):
    logits, labels, targets = ARRAYS["teacher_logits"], jnp.asarray(LABELS), jnp.asarray(SOFT)
    whole = teacher_objective(logits=logits, labels=labels, targets=targets, answer_weights=weights)
    parts = [slice(0, 2), slice(2, 6)]
    totals = [batch_totals(labels[part], weights, targets[part]) for part in parts]
    both = jax.tree.map(jnp.add, *totals)
    shares = [
        teacher_objective(
            logits=logits[part], labels=labels[part], targets=targets[part], answer_weights=weights, totals=both
        )
        for part in parts
    ]
    assert_close(sum(each.hard_label for each in shares), whole.hard_label, 1e-6)


def test_class_weights_count_expected_answers():
    labels = np.array([[0], [0], [1], [-100]])
    soft = np.array([[[1, 0, 0]], [[0.5, 0.5, 0]], [[0, 1, 0]], [[0, 0, 0]]], np.float32)
    found = inverse_frequency_weights(labels=labels, answers_per_step=(3,), distributions=soft)
    inverse = np.array([1 / 1.5, 1 / 1.5, 1])
    assert_close(found[0], inverse / inverse.mean(), 1e-6)
    hard = one_hot(np.where(labels < 0, -1, labels), 3)
    counted = inverse_frequency_weights(labels=labels, answers_per_step=(3,))
    np.testing.assert_allclose(
        inverse_frequency_weights(labels=labels, answers_per_step=(3,), distributions=hard), counted
    )
