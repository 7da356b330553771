"""Token cross-entropy against a loop in NumPy."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, normal, with_arrays

from stepcot_jax.losses import sequence as tested
from stepcot_jax.policies.records import NO_PART

CASES, TOKENS, WORDS, PARTS = 4, 6, 5, 2
sequence_loss = with_arrays(tested.sequence_loss)
sequence_weight = with_arrays(tested.sequence_weight)
token_log_probs = with_arrays(tested.token_log_probs)
parts_of = st.lists(
    st.lists(st.integers(NO_PART, PARTS - 1), min_size=TOKENS, max_size=TOKENS), min_size=CASES, max_size=CASES
).map(np.array)
seeds = st.integers(0, 10**6)


def draw(seed):
    rng = np.random.default_rng(seed)
    return {
        "logits": 2 * normal(seed, CASES, TOKENS, WORDS),
        "tokens": rng.integers(0, WORDS, (CASES, TOKENS)),
        "part_weights": rng.random((CASES, PARTS)).astype(np.float32) + 0.1,
    }


def oracle(inputs, parts, reduction):
    total, weight, cases = 0.0, 0.0, []
    for case in range(CASES):
        by_part = {}
        for token in range(TOKENS):
            part = parts[case, token]
            if part == NO_PART:
                continue
            row = inputs["logits"][case, token].astype(np.float64)
            loss = np.log(np.exp(row - row.max()).sum()) + row.max() - row[inputs["tokens"][case, token]]
            total += inputs["part_weights"][case, part] * loss
            weight += inputs["part_weights"][case, part]
            by_part.setdefault(part, []).append(loss)
        if by_part:
            cases.append(sum(inputs["part_weights"][case, part] * np.mean(own) for part, own in by_part.items()))
    if reduction == "tokens":
        return total / weight if weight else 0.0
    return np.mean(cases) if cases else 0.0


@functools.cache
def value_and_slope(reduction):
    def loss(logits, rest, parts):
        return tested.sequence_loss(**{**rest, "logits": logits}, parts=parts, reduction=reduction)

    return quick_jit(jax.value_and_grad(loss))


@given(seeds, parts_of, st.sampled_from(["tokens", "parts"]))
def test_loss_agrees_with_the_loop_and_ignores_what_is_masked(seed, parts, reduction):
    inputs = draw(seed)
    expected = oracle(inputs, parts, reduction)
    inputs["logits"] = np.where((parts == NO_PART)[..., None], np.float32(np.nan), inputs["logits"])
    inputs["tokens"] = np.where(parts == NO_PART, 10**6, inputs["tokens"])
    value, slope = value_and_slope(reduction)(inputs["logits"], inputs, parts)
    assert_close(value, expected, 1e-5)
    assert np.isfinite(slope).all()
    assert not np.asarray(slope)[parts == NO_PART].any()


@pytest.mark.parametrize("reduction", ["tokens", "parts"])
def test_shares_of_devices_add_up(reduction):
    inputs, parts = draw(1), np.random.default_rng(2).integers(NO_PART, PARTS, (CASES, TOKENS))
    halves = [slice(0, 1), slice(1, CASES)]
    weights = inputs["part_weights"]
    divisor = sum(
        sequence_weight(parts=parts[half], part_weights=weights[half], reduction=reduction) for half in halves
    )
    rows_of = ({name: rows[half] for name, rows in {**inputs, "parts": parts}.items()} for half in halves)
    shares = [sequence_loss(**rows, reduction=reduction, divisor=divisor) for rows in rows_of]
    assert_close(sum(shares), sequence_loss(**inputs, parts=parts, reduction=reduction), 1e-5)


@pytest.mark.parametrize("reduction", ["tokens", "parts"])
def test_gradient_agrees_with_finite_differences(reduction):
    inputs, parts = draw(3), np.random.default_rng(4).integers(NO_PART, PARTS, (CASES, TOKENS))

    def loss(logits):
        return sequence_loss(**{**inputs, "logits": logits}, parts=parts, reduction=reduction)

    jax.test_util.check_grads(
        loss, (jnp.asarray(inputs["logits"]),), order=1, modes=["rev"], eps=1e-2, atol=2e-3, rtol=2e-3
    )


def test_temperature_divides_the_logits():
    logits, tokens = normal(0, 3, WORDS), np.array([0, 4, 2])
    found = token_log_probs(logits=logits, tokens=tokens, counted=np.ones(3, bool), temperature=0.5)
    assert_close(found, jax.nn.log_softmax(2 * logits)[np.arange(3), tokens], 1e-5)
    with pytest.raises(ValueError, match="temperature"):
        token_log_probs(logits=logits, tokens=tokens, counted=np.ones(3, bool), temperature=0.0)


def test_medclm_weights_by_hand():
    """0.8 L_answer + 0.2 L_reasoning, each over its own tokens; uniform logits make each loss log(words)."""
    logits, tokens = np.zeros((1, 4, WORDS), np.float32), np.zeros((1, 4), int)
    logits[0, 3, 0] = 3.0
    parts = np.array([[1, 1, 1, 0]])
    answer = np.log(np.exp(3) + WORDS - 1) - 3
    found = sequence_loss(
        logits=logits, tokens=tokens, parts=parts, part_weights=np.array([[0.8, 0.2]], np.float32), reduction="parts"
    )
    assert_close(found, 0.8 * answer + 0.2 * np.log(WORDS), 1e-6)
