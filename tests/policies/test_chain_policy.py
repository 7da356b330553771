"""The chain as a policy: probabilities of all chains add up to 1, and drawn chains have them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models.teacher import Teacher
from stepcot_jax.policies.sampling import rollout_keys
from stepcot_jax.systems.chain_grpo import sample_chains, score_chains

ANSWERS = (3, 2)
TEACHER = Teacher(ANSWERS, width=8, num_heads=2, num_layers=1)
CHAINS = np.array(list(itertools.product(*map(range, ANSWERS))))


TEXT = 2 * normal(1, len(ANSWERS), 5)
PARAMS = randomise(declare(TEACHER, image_features=normal(0, 1, 6), text_features=TEXT, deterministic=True), 0)


@jax.jit
def read(given):
    image = jnp.broadcast_to(jnp.asarray(normal(2, 1, 6)), (len(given), 6))
    inputs = {"image_features": image, "text_features": jnp.asarray(TEXT), "given_answers": given}
    return TEACHER.apply({"params": PARAMS}, **inputs, deterministic=True).logits


def exact(temperature):
    """Probability of every chain, each step read with nothing but the answers before it."""
    steps = np.arange(len(ANSWERS))
    given = np.where(steps < steps[:, None], CHAINS[:, None], -1)  # [chain, step read, step given]
    rows = given.reshape(-1, len(ANSWERS)).astype(np.int32)
    logits = np.asarray(read(jnp.asarray(rows)), np.float64).reshape(*given.shape, -1)
    total = np.zeros(len(CHAINS))
    for step in steps:
        scores = logits[:, step, step, : ANSWERS[step]] / temperature
        total += scores[np.arange(len(CHAINS)), CHAINS[:, step]] - np.log(np.exp(scores).sum(axis=1))
    return np.exp(total)


def test_probabilities_are_those_of_steps_in_order_and_add_up_to_one():
    logs = score_chains(read, jnp.asarray(CHAINS, jnp.int32), temperature=0.5)
    found = np.exp(np.asarray(logs, np.float64).sum(axis=1))
    assert_close(found, exact(0.5), 1e-5)
    assert abs(found.sum() - 1) < 1e-5


def test_chains_are_drawn_with_their_probabilities_each_by_its_own_key():
    number = 4000
    keys = rollout_keys(jax.random.key(3), first=0, number=number)
    drawn = np.asarray(jax.jit(lambda keys: sample_chains(read, num_steps=len(ANSWERS), keys=keys))(keys))
    counts = np.array([(drawn == chain).all(1).sum() for chain in CHAINS])
    assert counts.sum() == number
    expected = number * exact(1.0)
    assert ((counts - expected) ** 2 / expected).sum() < 26  # 5 degrees of freedom: p < 0.0001
    np.testing.assert_array_equal(sample_chains(read, num_steps=len(ANSWERS), keys=keys[2:4]), drawn[2:4])
    greedy = np.asarray(sample_chains(read, num_steps=len(ANSWERS), keys=keys[:2], greedy=True))
    logits = np.asarray(read(jnp.asarray(greedy)))
    assert greedy[0].tolist() == greedy[1].tolist()
    assert greedy[0].tolist() == [logits[0, step, :answers].argmax() for step, answers in enumerate(ANSWERS)]
