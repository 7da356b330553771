"""Rewards of chains against loops, and against the package's own count of contradictions."""

import itertools

import jax.numpy as jnp
import numpy as np
from oracles.random_params import random_labels

from stepcot_jax.chain import DEFAULT_CHAIN, Chain, Step
from stepcot_jax.evaluation.consistency import count_pairs, inconsistent, make_rules
from stepcot_jax.systems.chain_grpo import ChainRewards

COUNTS = (3, 2, 4)
CHAIN = Chain(tuple(Step(f"step {n}", "?", tuple("ABCD"[:n])) for n in COUNTS))
CHAINS = np.array(list(itertools.product(*map(range, COUNTS))), np.int32)
TRAINING = np.array([chain for chain in CHAINS.tolist() if chain[:2] != [1, 0] and chain[1:] != [1, 3]] * 20)
RULES = make_rules(CHAIN, counts=count_pairs(TRAINING, CHAIN))


def score(rewards, chains, labels):
    return rewards.score(chains=jnp.asarray(chains, jnp.int32), labels=jnp.asarray(labels, jnp.int32))


def test_each_part_and_the_total_are_those_of_a_loop():
    labels = random_labels(4, len(CHAINS), COUNTS, missing=0.4)
    labels[:2] = -100
    rewards = ChainRewards(RULES, diagnosis_weight=1.0, steps_weight=0.5, chain_weight=0.25)
    found = score(rewards, CHAINS, labels)
    for row, (chain, truth) in enumerate(zip(CHAINS.tolist(), labels.tolist(), strict=True)):
        known = [step for step, label in enumerate(truth) if label >= 0]
        diagnosis = float(chain[-1] == truth[-1]) if truth[-1] >= 0 else np.nan
        steps = np.mean([chain[step] == truth[step] for step in known]) if known else np.nan
        consistent = float(chain[:2] != [1, 0] and chain[1:] != [1, 3])
        expected = (diagnosis + 0.5 * steps + 0.25 * consistent, diagnosis, steps, consistent)
        parts = (found.total, found.diagnosis, found.steps, found.consistent)
        np.testing.assert_allclose([float(part[row]) for part in parts], expected, rtol=1e-6)
    assert np.isnan(found.total).any()
    assert 0 < float(jnp.mean(found.consistent)) < 1


def test_contradictions_are_those_of_the_statistics():
    rules = make_rules(DEFAULT_CHAIN)
    rng = np.random.default_rng(0)
    chains = np.stack([rng.integers(0, count, 3000) for count in DEFAULT_CHAIN.answers_per_step], axis=1)
    chains[:50, 0] = 0
    chains[:20] = [0, 3, 5, 6, 4, 6, 0]
    found = ChainRewards(rules).consistent(jnp.asarray(chains, jnp.int32))
    np.testing.assert_array_equal(np.asarray(found), (~inconsistent(chains, rules)).astype(np.float32))
    assert found[:20].all()
    assert not found[20:50].all()


def test_a_part_without_weight_needs_no_label():
    labels = np.full_like(CHAINS, -100)
    labels[:, 0] = 1
    assert np.isnan(score(ChainRewards(RULES), CHAINS, labels).total).all()
    alone = ChainRewards(RULES, diagnosis_weight=0.0, chain_weight=2.0)
    found = score(alone, CHAINS, np.full_like(CHAINS, -100))
    np.testing.assert_array_equal(found.total, 2 * np.asarray(found.consistent))
    steps = ChainRewards(RULES, diagnosis_weight=0.0, steps_weight=1.0)
    np.testing.assert_array_equal(score(steps, CHAINS, labels).total, (CHAINS[:, 0] == 1).astype(np.float32))
