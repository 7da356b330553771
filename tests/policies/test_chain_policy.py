"""The chain as a policy: probabilities of all chains add up to 1, and drawn chains have them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models.teacher import Teacher
from stepcot_jax.policies.sampling import rollout_keys
from stepcot_jax.systems.chain_grpo import sample_chains, score_chains

pytestmark = pytest.mark.slow

ANSWERS = (3, 2, 2)
TEACHER = Teacher(ANSWERS, width=8, num_heads=2, num_layers=1)
CHAINS = np.array(list(itertools.product(*map(range, ANSWERS))))


TEXT = 2 * normal(1, len(ANSWERS), 5)


@functools.cache
def draw_params(seed):
    return randomise(declare(TEACHER, image_features=normal(0, 1, 6), text_features=TEXT, deterministic=True), seed)


@jax.jit
def read_chains(params, given):
    image = jnp.broadcast_to(jnp.asarray(normal(2, 1, 6)), (len(given), 6))
    inputs = {"image_features": image, "text_features": jnp.asarray(TEXT), "given_answers": given}
    return TEACHER.apply({"params": params}, **inputs, deterministic=True).logits


def make_reader(seed=0):
    return functools.partial(read_chains, draw_params(seed))


def exact(temperature=1.0, seed=0):
    """Probability of every chain, each step read with nothing but the answers before it."""
    steps = np.arange(len(ANSWERS))
    given = np.where(steps < steps[:, None], CHAINS[:, None], -1)  # [chain, step read, step given]
    rows = given.reshape(-1, len(ANSWERS)).astype(np.int32)
    logits = np.asarray(make_reader(seed)(jnp.asarray(rows)), np.float64).reshape(*given.shape, -1)
    total = np.zeros(len(CHAINS))
    for step in steps:
        scores = logits[:, step, step, : ANSWERS[step]] / temperature
        total += scores[np.arange(len(CHAINS)), CHAINS[:, step]] - np.log(np.exp(scores).sum(axis=1))
    return np.exp(total)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_probabilities_are_those_of_steps_in_order_and_add_up_to_one(temperature):
    logs = score_chains(make_reader(), jnp.asarray(CHAINS, jnp.int32), temperature=temperature)
    found = np.exp(np.asarray(logs, np.float64).sum(axis=1))
    assert_close(found, exact(temperature), 1e-5)
    assert abs(found.sum() - 1) < 1e-5


def test_chains_are_drawn_with_their_probabilities():
    number = 4000
    keys = rollout_keys(jax.random.key(3), first=0, number=number)
    drawn = np.asarray(jax.jit(lambda keys: sample_chains(make_reader(), num_steps=3, keys=keys))(keys))
    counts = np.array([(drawn == chain).all(1).sum() for chain in CHAINS])
    assert counts.sum() == number
    expected = number * exact()
    assert ((counts - expected) ** 2 / expected).sum() < 38  # 11 degrees of freedom: p < 0.0001


def test_greedy_is_the_teachers_own_reading_where_it_is_sure():
    keys = rollout_keys(jax.random.key(0), first=0, number=2)
    drawn = np.asarray(sample_chains(make_reader(), num_steps=3, keys=keys, greedy=True))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    logits = np.asarray(make_reader()(jnp.asarray(drawn)))
    for step, number in enumerate(ANSWERS):
        assert drawn[0, step] == logits[0, step, :number].argmax()


def test_a_rollout_depends_on_its_own_key_alone():
    keys = rollout_keys(jax.random.key(3), first=0, number=6)
    whole = sample_chains(make_reader(), num_steps=3, keys=keys)
    np.testing.assert_array_equal(sample_chains(make_reader(), num_steps=3, keys=keys[2:4]), np.asarray(whole)[2:4])
