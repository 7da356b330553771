"""The update of GRPO: its loss against NumPy and whole texts, the reference, passes over a batch, and self-checks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import apart
from policies.tiny_policy import log_softmax, score_alone
from systems import policy_step
from systems.policy_step import GROUP, LONGEST, PROMPTS, SETTINGS, add_checks, descend, make_params, sample, start

from stepcot_jax.systems.grpo import REFERENCE, GrpoUpdate
from stepcot_jax.systems.policy_system import grpo_schedule
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch

TEMPERATURE = SETTINGS.grpo.temperature
OLD = 0.15
"""Standard deviation of what is added to log-probabilities of the sampling, so that ratios differ and some clip."""


@pytest.fixture(scope="module")
def batch():
    found = dict(sample()[0])
    shift = np.random.default_rng(0).normal(0, OLD, found["old_log_probs"].shape)
    found["old_log_probs"] = (found["old_log_probs"] + shift * found["counted"]).astype(np.float32)
    return found


def log_probs_alone(params, batch):
    """Log-probabilities [prompt, rollout, token] at the temperature, each completion scored as a whole text."""
    found = np.zeros(batch["counted"].shape)
    for case, (prompt, length) in enumerate(zip(batch["prompts"], batch["lengths"], strict=True)):
        for place, completion in enumerate(batch["completions"][case]):
            text = [*prompt[:length].tolist(), *completion.tolist()]
            scores = score_alone(params, batch["images"][case], text)[length - 1 : -1] / TEMPERATURE
            found[case, place] = log_softmax(scores)[np.arange(LONGEST), completion]
    return np.where(batch["counted"], found, 0.0)


def oracle(batch, *, beta, length_norm="sequence_mean", clip=0.2, policy=None):
    """The loss of GEMeX-RMCoT's Eq. 2 with k3, the divergence, and the share of clipped tokens."""
    params = make_params()
    current, reference = (log_probs_alone(params[name], batch) for name in (POLICY, REFERENCE))
    current = current if policy is None else log_probs_alone(policy, batch)
    counted, advantage = batch["counted"], batch["advantages"].astype(np.float64)
    ratio = np.exp(current - np.where(counted, batch["old_log_probs"], 0.0))
    clipped = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
    gap = reference - current
    divergence = np.exp(gap) - gap - 1
    is_held = clipped < ratio * advantage

    def average(values):
        kept = np.where(counted, values, 0.0)
        if length_norm == "token_mean":
            return kept.sum() / counted.sum()
        means = kept.sum(axis=-1) / np.maximum(counted.sum(axis=-1), 1)
        return means.sum() / counted.any(axis=-1).sum()

    return {"loss": -average(clipped - beta * divergence), "kl": average(divergence), "clipped": average(is_held)}


def make_update(**changes):
    checks = {name: changes.pop(name) for name in ("alpha", "norm") if name in changes}
    update = policy_step.make_update("grpo", **changes)
    return dataclasses.replace(update, self_check=dataclasses.replace(update.self_check, **checks))


def numbers_of(batch, **changes):
    return descend(make_update(**changes), batch)[1]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"beta": 0.1}, {"beta": 2.0, "length_norm": "token_mean"}])
def test_the_loss_is_that_of_whole_texts(batch, changes):
    expected = oracle(batch, **changes)
    assert numbers_of(batch, **changes) == pytest.approx(expected, rel=2e-5, abs=1e-6)
    assert expected["kl"] > 0.01
    assert 0.02 < expected["clipped"] < 0.9


@pytest.mark.slow
def test_on_the_policy_that_sampled_nothing_is_clipped_and_ratios_are_one():
    found = dict(sample()[0])
    old = np.where(found["counted"], found["old_log_probs"], 0.0)  # of replies that were not scored nothing counts
    np.testing.assert_allclose(old, log_probs_alone(make_params()[POLICY], found), atol=1e-5)
    numbers = numbers_of(found, beta=0.0)
    assert numbers["clipped"] == 0
    assert "kl" not in numbers  # there is no frozen start to measure from
    counted = found["counted"].any(axis=-1)
    assert numbers["loss"] == pytest.approx(-found["advantages"][..., 0][counted].mean(), abs=1e-5)


@pytest.mark.slow
def test_in_bfloat16_rounding_is_no_ratio(batch):
    policy = policy_step.NETWORK.clone(dtype=jnp.bfloat16)
    once = dataclasses.replace(make_update(beta=0.0), policy=policy)
    numbers = descend(once, batch)[1]
    counted = batch["counted"].any(axis=-1)
    assert numbers["clipped"] == 0
    assert numbers["loss"] == pytest.approx(-batch["advantages"][..., 0][counted].mean(), abs=1e-5)
    twice = dataclasses.replace(make_update(beta=0.0, num_updates=2), policy=policy)
    params, rows = jax.tree.map(jnp.array, (make_params(), batch))
    found = twice.freeze(params, rows, GlobalBatch())["old_log_probs"]
    np.testing.assert_allclose(found.reshape(-1, LONGEST), twice.log_probs(params[POLICY], rows), atol=1e-6)


@pytest.mark.slow
def test_in_bfloat16_the_first_of_two_passes_has_ratios_of_one(batch, monkeypatch):
    """Even if full passes rounded so far apart that the second, which compares with one, has ratios near 0."""
    freeze = GrpoUpdate.freeze

    def freeze_far(*given):
        found = freeze(*given)
        return {**found, "old_log_probs": found["old_log_probs"] + 50} if "old_log_probs" in found else found

    monkeypatch.setattr(GrpoUpdate, "freeze", freeze_far)
    policy = policy_step.NETWORK.clone(dtype=jnp.bfloat16)

    def update(num_updates):
        found = dataclasses.replace(make_update(beta=0.0, num_updates=num_updates), policy=policy)
        return jax.jit(lambda state, batch: found(state, batch, ONE_DEVICE)[0])(start(), batch)

    once, twice = update(1), update(2)
    moved = apart(start().params[POLICY], once.params[POLICY])
    assert apart(twice.params[POLICY], once.params[POLICY]) <= 0.05 * moved
    assert moved > 1e-3


def test_without_a_penalty_the_reference_is_not_read(batch):
    update = make_update(beta=0.0)
    frozen = update.freeze({}, batch, GlobalBatch())  # no reference at all
    np.testing.assert_array_equal(frozen["reference_log_probs"], batch["old_log_probs"])
    params = {**make_params(), REFERENCE: jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), make_params()[POLICY])}
    found = descend(update, batch, params)
    expected = descend(update, batch)
    assert found[1]["loss"] == expected[1]["loss"] == pytest.approx(oracle(batch, beta=0.0)["loss"], rel=2e-5, abs=1e-6)
    jax.tree.map(np.testing.assert_array_equal, found[0], expected[0])


@functools.cache
def compiled(num_updates):
    update = make_update(num_updates=num_updates, beta=0.1)
    return jax.jit(lambda state, batch: update(state, batch, ONE_DEVICE))


@pytest.mark.slow
def test_two_passes_are_two_steps_on_one_batch_with_the_old_probabilities(batch):
    once, numbers = compiled(1)(start(), batch)
    assert float(numbers["grpo/loss"]) == pytest.approx(oracle(batch, beta=0.1)["loss"], rel=2e-5, abs=1e-6)
    second, _ = compiled(1)(once, batch)
    both, numbers = compiled(2)(start(), batch)
    assert int(once.step) == int(both.step) == 1
    far = apart(start().params, second.params)
    assert apart(second.params, both.params) <= 0.05 * far
    assert far > 1e-2
    moved = jax.device_get(once.params[POLICY])
    assert float(numbers["grpo/loss"]) == pytest.approx(
        oracle(batch, beta=0.1, policy=moved)["loss"], rel=2e-5, abs=1e-6
    )
    jax.tree.map(np.testing.assert_array_equal, both.params[REFERENCE], make_params()[REFERENCE])
    assert apart(moved, make_params()[POLICY]) > 1e-3


@pytest.mark.slow
def test_self_checks_that_succeeded_add_their_term(batch):
    checked = add_checks(batch)
    found, without = numbers_of(checked, alpha=0.3, norm="sum", beta=0.1), numbers_of(batch, beta=0.1)
    log_probs = log_probs_alone(make_params()[POLICY], batch)
    sums = (log_probs * checked["check"]).sum(axis=-1)
    expected = -0.3 * sums[checked["check_success"]].sum() / (PROMPTS * GROUP)
    assert expected > 0.01
    assert found["self_check_loss"] == pytest.approx(expected, rel=2e-5)
    assert found["loss"] == pytest.approx(without["loss"] + expected, rel=2e-5)
    assert "self_check_loss" not in without


@pytest.mark.slow
def test_what_is_not_counted_reaches_no_gradient(batch):
    update = make_update(beta=0.1)
    expected, wanted = descend(update, batch)
    counted = batch["counted"]
    strange = {
        **batch,
        "old_log_probs": np.where(counted, batch["old_log_probs"], np.nan).astype(np.float32),
        "completions": np.where(counted, batch["completions"], 7).astype(np.int32),
    }
    found, numbers = descend(update, strange)
    assert numbers == pytest.approx(wanted, rel=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), found, expected)


def test_the_rate_counts_passes():
    settings = dataclasses.replace(SETTINGS.grpo, epochs=2, num_updates=3, learning_rate=0.5, schedule="cosine")
    rate = grpo_schedule(settings, 5)
    assert {step: float(rate(step)) for step in (0, 15, 30)} == pytest.approx({0: 0.5, 15: 0.25, 30: 0.0}, abs=1e-6)
    assert float(grpo_schedule(dataclasses.replace(settings, schedule="constant"), 5)(30)) == 0.5
