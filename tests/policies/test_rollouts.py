"""Sampling from the prefix model: cache against full pass, keys, stop, and the distribution of what is drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal
from policies.tiny_policy import NETWORK, SIDE, WORDS, random_params

from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.policies.sampling import Sampling, _block_size, draw_words, generate, rollout_keys, sample_replies

STOP, LONGEST, CASES, EACH = 3, 6, 3, 2
IMAGES = normal(0, CASES, SIDE, SIDE, 3)
LENGTHS = np.array([1, 4, 2], np.int32)
PROMPTS = np.random.default_rng(0).integers(0, WORDS, (CASES, 4)).astype(np.int32)
GIVEN = tuple(map(jnp.asarray, (IMAGES, PROMPTS, LENGTHS)))


@functools.cache
def params():
    return random_params()


def run(sampling, part=slice(None), each=EACH):
    first, number = (part.start or 0) * each, len(LENGTHS[part]) * each
    keys = rollout_keys(jax.random.key(7), first=first, number=number)
    return generate(NETWORK, params(), *(rows[part] for rows in GIVEN), sampling=sampling, keys=keys)


@jax.jit
def full_pass(params, tokens):
    return NETWORK.apply({"params": params}, *GIVEN, tokens)


@pytest.mark.slow
def test_log_probs_of_the_cache_agree_with_a_full_pass():
    replies = run(Sampling(longest=LONGEST, stop=STOP, temperature=0.6))
    logits = full_pass(params(), replies.tokens)
    expected = token_log_probs(logits=logits, tokens=replies.tokens, counted=replies.counted, temperature=0.6)
    assert_close(replies.log_probs, expected, 1e-5)
    assert np.abs(replies.log_probs).max() > 0.1


def test_a_reply_ends_with_its_stop_token():
    replies = jax.tree.map(np.asarray, run(Sampling(longest=12, stop=STOP), each=8))
    for tokens, counted, logs in zip(
        *(getattr(replies, name) for name in ("tokens", "counted", "log_probs")), strict=True
    ):
        ends = np.flatnonzero(tokens == STOP)
        length = ends[0] + 1 if len(ends) else 12
        np.testing.assert_array_equal(counted, np.arange(12) < length)
        assert (tokens[length:] == STOP).all()
        assert not logs[length:].any()
    assert replies.counted.sum(1).max() > 1
    assert replies.counted.sum(1).min() < 12


def test_rollouts_do_not_depend_on_who_else_is_sampled():
    """A device's part of the cases gives the same rollouts as all cases at once."""
    sampling = Sampling(longest=LONGEST, stop=STOP)
    whole = run(sampling)
    for place in range(CASES):
        part = run(sampling, slice(place, place + 1))
        own = slice(place * EACH, (place + 1) * EACH)
        np.testing.assert_array_equal(part.tokens, np.asarray(whole.tokens)[own])
        assert_close(part.log_probs, np.asarray(whole.log_probs)[own], 1e-5)
    assert len({tuple(row) for row in np.asarray(whole.tokens).tolist()}) > CASES, "rollouts of a case differ"


def test_pairs_of_tokens_are_drawn_with_their_probabilities():
    """Two tokens of 20,000 rollouts against the softmax at the temperature, by a chi-squared statistic."""
    scores, number, words = np.array([[0.5, -0.3, 1.0]], np.float32), 20_000, 3
    repeated = jnp.repeat(jnp.asarray(scores), number, axis=0)
    replies = sample_replies(
        lambda tokens, place, caches: (repeated, caches),
        scores=repeated,
        caches=(),
        keys=rollout_keys(jax.random.key(1), first=0, number=number),
        sampling=Sampling(longest=2, stop=words, temperature=0.7),
    )
    share = np.asarray(jax.nn.softmax(scores[0] / np.float32(0.7)))
    expected = number * np.outer(share, share).ravel()
    counts = np.bincount(np.asarray(replies.tokens) @ [words, 1], minlength=words**2)
    assert ((counts - expected) ** 2 / expected).sum() < 24  # 8 degrees of freedom: p < 0.003


@pytest.mark.parametrize("num_words", [1, 9, 1500])
def test_words_invert_the_cumulative_sum(num_words):
    """Every word at the middle of its share; words of weight 0, at either end too, are never drawn."""
    weights = np.random.default_rng(num_words).random(num_words)
    weights[np.random.default_rng(0).random(num_words) < 0.3] = 0.0
    weights[num_words // 2] = 1.0
    upto = np.cumsum(weights) / weights.sum()
    middles = upto - weights / weights.sum() / 2
    rows = jnp.broadcast_to(jnp.asarray(weights, jnp.float32)[None], (num_words, num_words))
    found = np.asarray(draw_words(rows, jnp.asarray(middles, jnp.float32)))
    drawn = weights > 1e-3
    np.testing.assert_array_equal(found[drawn], np.arange(num_words)[drawn])
    for end, word in ((0.0, np.flatnonzero(weights)[0]), (1 - 2.0**-24, np.flatnonzero(weights)[-1])):
        assert draw_words(rows[:1], jnp.full(1, end, jnp.float32)).item() == word


@pytest.mark.parametrize(("num_words", "size"), [(152_064, 352), (151_936, 389)])
def test_words_of_qwen_are_drawn_in_blocks_that_eight_devices_hold_whole(num_words, size):
    """Of VL-7B's vocabulary in blocks that divide it; of VL-3B's, which has no such divisor, padded."""
    assert _block_size(num_words) == (size, 8 * size)
    weights = np.zeros((3, num_words), np.float32)
    weights[:, [0, size, num_words - 1]] = [1.0, 0.5, 0.5]
    np.testing.assert_array_equal(
        draw_words(jnp.asarray(weights), jnp.array([0.49, 0.7, 0.99], jnp.float32)), [0, size, num_words - 1]
    )
