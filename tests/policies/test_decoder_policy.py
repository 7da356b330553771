"""Replies of a policy: greedy ones are the likeliest tokens of a full pass, each prompt is read once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal
from policies.policy_workdir import SIDE, random_params, small_settings

from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys
from stepcot_jax.run.policy_networks import make_policy

WORDS, STOP, CASES, LONGEST = 13, 1, 2, 5
NETWORK = make_policy(small_settings(), num_words=WORDS)
IMAGES = normal(0, CASES, SIDE, SIDE, 3)
PROMPTS = np.random.default_rng(0).integers(2, WORDS, (CASES, 4)).astype(np.int32)
LENGTHS = np.array([2, 4], np.int32)


@pytest.fixture(scope="module")
def params():
    return random_params(NETWORK, seed=1)


def roll(params, *, each=1, **how):
    sampling = Sampling(longest=LONGEST, stop=STOP, **how)
    keys = rollout_keys(jax.random.key(5), first=0, number=CASES * each)
    return generate(NETWORK, params, *map(jnp.asarray, (IMAGES, PROMPTS, LENGTHS)), sampling=sampling, keys=keys)


@jax.jit
def full_pass(params, completions):
    return NETWORK.apply({"params": params}, *map(jnp.asarray, (IMAGES, PROMPTS, LENGTHS)), completions)


def test_greedy_replies_are_the_likeliest_tokens_of_a_full_pass(params):
    found = roll(params, greedy=True)
    scores = full_pass(params, found.tokens)
    counted = np.asarray(found.counted)
    assert counted.sum() > CASES
    np.testing.assert_array_equal(np.asarray(scores.argmax(axis=-1))[counted], np.asarray(found.tokens)[counted])


def test_replies_of_a_prompt_follow_each_other(params):
    found = roll(params, each=3)
    assert found.tokens.shape == (3 * CASES, LONGEST)
    assert len({tuple(row) for row in np.asarray(found.tokens).tolist()}) > 2
    logits = full_pass(params, found.tokens)
    assert_close(found.log_probs, token_log_probs(logits=logits, tokens=found.tokens, counted=found.counted), 1e-5)


def test_every_prompt_gets_the_same_number_of_replies(params):
    sampling = Sampling(longest=LONGEST, stop=STOP)
    keys = rollout_keys(jax.random.key(5), first=0, number=3)
    with pytest.raises(ValueError, match="3 rollouts are not a multiple of 2 prompts"):
        generate(NETWORK, params, *map(jnp.asarray, (IMAGES, PROMPTS, LENGTHS)), sampling=sampling, keys=keys)
