"""The objective of group-relative policy optimisation against a loop in NumPy, and its edge cases."""

import dataclasses
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
from refusals import refuse

from stepcot_jax.losses import policy_gradient as tested
from stepcot_jax.losses.policy_gradient import PolicyGradient

ROLLOUTS, TOKENS = 6, 5
advantages = with_arrays(tested.advantages)
aggregate = with_arrays(tested.aggregate)
aggregate_weight = with_arrays(tested.aggregate_weight)
dpo_loss = with_arrays(tested.dpo_loss)
policy_gradient_loss = with_arrays(tested.policy_gradient_loss)
self_check_loss = with_arrays(tested.self_check_loss)
seeds = st.integers(0, 10**6)
masks = st.lists(st.lists(st.booleans(), min_size=TOKENS, max_size=TOKENS), min_size=ROLLOUTS, max_size=ROLLOUTS)
RATIOS, KINDS = ("token", "sequence", "sequence_mean"), ("k1", "k2", "k3")
NORMS = ("sequence_mean", "token_mean", "constant", "sequence_sum")
LIMITS = [{}, {"clamp_log_ratio": 0.5}, {"clamp_divergence": 0.1}, {"clamp_log_ratio": 0.5, "clamp_divergence": 0.1}]
CLIPS = [{}, {"clip_high": 0.3, "dual_clip": 3.0}, {"clip_high": 0.3, "dual_clip": 1.05}]


def draw(seed, spread=0.4, num_advantages=1):
    old = -np.abs(normal(seed, ROLLOUTS, TOKENS))
    return {
        "log_probs": old + spread * normal(seed + 1, ROLLOUTS, TOKENS),
        "old_log_probs": old,
        "reference_log_probs": old + spread * normal(seed + 2, ROLLOUTS, TOKENS),
        "advantage": normal(seed + 3, ROLLOUTS, num_advantages),
    }


def sum_of_shares(inputs, counted, settings, *, at):
    """The sum of the losses of the rows before and after `at`, each with the divisor of all."""
    parts = (slice(None, at), slice(at, None))
    shared = {"settings": settings, "divisor": sum(aggregate_weight(counted[part], settings) for part in parts)}
    rows_of = [{name: rows[part] for name, rows in (inputs | {"counted": counted}).items()} for part in parts]
    return sum(policy_gradient_loss(**rows, **shared).total for rows in rows_of)


def oracle(inputs, counted, s):
    """Completion by completion and token by token, in float64."""
    rows, divergences, held = [], [], []
    for row in range(len(counted)):
        places = np.flatnonzero(counted[row])
        new, old, ref = (
            np.asarray(inputs[name], np.float64)[row][places]
            for name in ("log_probs", "old_log_probs", "reference_log_probs")
        )
        gains = np.broadcast_to(np.asarray(inputs["advantage"], np.float64)[row], TOKENS)[places]
        logs = new - old
        whole = {"sequence": logs.sum(), "sequence_mean": logs.mean() if len(logs) else 0.0}
        values, kls, stopped = [], [], []
        for log, n, r, gain in zip(logs, new, ref, gains, strict=True):
            ratio = np.exp(log if s.ratio == "token" else whole[s.ratio])
            term = min(ratio * gain, min(max(ratio, 1 - s.clip_low), 1 + s.clip_high) * gain)
            if s.dual_clip and gain < 0:
                term = max(term, s.dual_clip * gain)
            gap = n - r
            if s.clamp_log_ratio is not None:
                gap = min(max(gap, -s.clamp_log_ratio), s.clamp_log_ratio)
            kl = {"k1": gap, "k2": gap**2 / 2, "k3": np.exp(-gap) + gap - 1}[s.divergence]
            if s.clamp_divergence is not None:
                kl = min(max(kl, -s.clamp_divergence), s.clamp_divergence)
            values.append(term - s.beta * kl)
            kls.append(kl)
            stopped.append(float(term < ratio * gain))
        rows.append(values)
        divergences.append(kls)
        held.append(stopped)

    def average(found):
        if s.length_norm == "sequence_mean":
            means = [np.mean(each) for each in found if each]
            return np.mean(means) if means else 0.0
        divisors = {"token_mean": sum(map(len, found)), "constant": len(found) * TOKENS}
        divisors["sequence_sum"] = sum(map(bool, found))
        return sum(map(sum, found)) / max(divisors[s.length_norm], 1)

    return -average(rows), average(divergences), average(held)


@functools.cache
def compiled(settings):
    return quick_jit(
        lambda inputs, counted: tested.policy_gradient_loss(**inputs, counted=counted, settings=settings).__dict__
    )


@pytest.mark.parametrize(("place", "norm"), list(enumerate(NORMS)))
@pytest.mark.parametrize(("other", "ratio"), list(enumerate(RATIOS)))
def test_loss_agrees_with_the_loop(place, norm, other, ratio):
    """Every pair of choices of ratio, estimator and norm, and of limits and clips, in twelve runs."""
    counted = np.random.default_rng(5).random((ROLLOUTS, TOKENS)) < 0.6
    counted[2] = False
    more = {**LIMITS[(place + other) % 4], **CLIPS[(place + 2 * other) % 3]}
    settings = PolicyGradient(ratio=ratio, divergence=KINDS[(place + other) % 3], length_norm=norm, beta=0.3, **more)
    for num_advantages in (1, TOKENS):
        inputs = draw(3, spread=0.8, num_advantages=num_advantages)
        found = compiled(settings)(inputs, counted)
        for name, expected in zip(("total", "divergence", "clipped"), oracle(inputs, counted, settings), strict=True):
            assert_close(found[name], expected, 1e-5)


@pytest.mark.parametrize("norm", ["sequence_mean", "sequence_sum"])
def test_the_printed_divergence_is_the_sum_over_a_completion(norm):
    """GEMeX-RMCoT, Eq. 2, completion by completion; parts of a batch add up, and beta 0 leaves the other terms."""
    counted = np.arange(TOKENS) < np.array([5, 1, 0, 3, 4, 2])[:, None]
    inputs, beta = draw(11, spread=0.8), 0.3
    settings = PolicyGradient(ratio="sequence", beta=beta, length_norm=norm, divergence_norm="sequence_sum")
    terms, sums = [], []
    for row in np.flatnonzero(counted.any(axis=1)):
        new, old, ref = (
            np.float64(inputs[f"{name}log_probs"])[row][counted[row]] for name in ("", "old_", "reference_")
        )
        rho, gain = np.exp((new - old).sum()), float(inputs["advantage"][row, 0])
        length = counted[row].sum() if norm == "sequence_sum" else 1
        terms.append(length * min(rho * gain, np.clip(rho, 0.8, 1.2) * gain))
        sums.append((np.exp(ref - new) - (ref - new) - 1).sum())
    found = policy_gradient_loss(**inputs, counted=counted, settings=settings)
    assert_close(found.divergence, np.mean(sums), 1e-5)
    assert_close(found.total, beta * np.mean(sums) - np.mean(terms), 1e-5)
    assert_close(sum_of_shares(inputs, counted, settings, at=3), found.total, 1e-5)
    for accepted in ("token_mean", "constant"):
        refuse("length_norm by sequence", dataclasses.replace, settings, length_norm=accepted, error=ValueError)


@functools.cache
def loss_and_slope(ratio):
    settings = PolicyGradient(beta=0.1, ratio=ratio)

    def loss(own, rest, counted):
        return tested.policy_gradient_loss(**{**rest, "log_probs": own}, counted=counted, settings=settings).total

    return quick_jit(jax.value_and_grad(loss))


@given(seeds, masks, st.sampled_from(RATIOS))
def test_masked_tokens_equal_dropped_tokens(seed, counted, ratio):
    """What stands at a masked place, NaN included, reaches neither loss nor gradient."""
    counted, results = np.array(counted), []
    for masked in (np.float32(np.nan), np.float32(0)):
        rows = {name: np.where(counted, one, masked) if len(one[0]) > 1 else one for name, one in draw(seed).items()}
        results.append(loss_and_slope(ratio)(rows["log_probs"], rows, counted))
    (value, slope), (other, other_slope) = results
    assert np.isfinite(value)
    assert_close(value, other, 1e-6)
    np.testing.assert_array_equal(np.where(counted, 0, slope), 0)
    assert_close(np.where(counted, slope, 0), np.where(counted, other_slope, 0), 1e-6)


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_mean"])
def test_gradient_agrees_with_finite_differences(ratio):
    inputs = draw(11, spread=0.05)  # within the clip, where the objective is smooth
    counted = np.random.default_rng(1).random((ROLLOUTS, TOKENS)) < 0.7
    settings = PolicyGradient(ratio=ratio, beta=0.2, clip_low=0.9, clip_high=5.0)

    def loss(own):
        return policy_gradient_loss(**{**inputs, "log_probs": own}, counted=counted, settings=settings).total

    jax.test_util.check_grads(
        loss, (jnp.asarray(inputs["log_probs"]),), order=1, modes=["rev"], eps=1e-2, atol=2e-3, rtol=2e-3
    )


@pytest.mark.parametrize("norm", NORMS)
def test_shares_of_devices_add_up_to_the_whole(norm):
    inputs, settings = draw(2), PolicyGradient(length_norm=norm, beta=0.1)
    counted = np.random.default_rng(8).random((ROLLOUTS, TOKENS)) < 0.5
    expected = policy_gradient_loss(**inputs, counted=counted, settings=settings).total
    assert_close(sum_of_shares(inputs, counted, settings, at=2), expected, 1e-5)
    nothing = aggregate(jnp.full(counted.shape, jnp.nan), counted=np.zeros_like(counted), settings=settings)
    assert float(nothing) == 0


@pytest.mark.parametrize("ratio", ["token", "sequence", "sequence_mean"])
@pytest.mark.parametrize(("gain", "dual", "expected"), [(0.0, 0.0, 0.0), (1.0, 0.0, -1.2), (-1.0, 3.0, 3.0)])
def test_a_ratio_beyond_float32_is_held_by_the_clip(ratio, gain, dual, expected):
    """e^99 is infinite in float32; the clip gives the loss a value and no gradient."""
    settings = PolicyGradient(ratio=ratio, beta=0.0, dual_clip=dual)
    inputs = {
        "old_log_probs": np.full((2, 1), -100.0, np.float32),
        "reference_log_probs": np.zeros((2, 1), np.float32),
        "advantage": np.full((2, 1), gain, np.float32),
        "counted": np.ones((2, 1), bool),
    }

    def loss(own):
        return policy_gradient_loss(log_probs=own, **inputs, settings=settings).total

    value, slope = jax.value_and_grad(loss)(jnp.full((2, 1), -1.0))
    assert_close(value, expected, 1e-6)
    np.testing.assert_array_equal(slope, 0)


def test_self_check_by_hand():
    logs = jnp.array([[-1.0, -2.0, jnp.nan], [-3.0, -4.0, -5.0], [-1.0, -1.0, -1.0]])
    check = np.array([[True, True, False], [True, False, True], [False, False, False]])
    success = np.array([True, False, True])
    assert_close(self_check_loss(log_probs=logs, check=check, success=success, alpha=0.2), 0.2 * 3.0 / 3, 1e-6)
    found = self_check_loss(log_probs=logs, check=check, success=success, alpha=0.2, norm="mean")
    assert_close(found, 0.2 * 1.5 / 3, 1e-6)
    slope = jax.grad(lambda own: self_check_loss(log_probs=own, check=check, success=success, alpha=0.2))(logs)
    assert_close(slope, -0.2 / 3 * np.array([[1, 1, 0], [0, 0, 0], [0, 0, 0]]), 1e-7)


@pytest.mark.parametrize(
    "settings",
    [{"dual_clip": 0.5}, {"dual_clip": np.nan}, {"clip_low": -0.1}, {"beta": np.nan}, {"clamp_log_ratio": -1.0}],
)
def test_settings_are_checked(settings):
    refuse("must", PolicyGradient, **settings, error=ValueError)


@pytest.mark.parametrize(("number", "settings", "words"), [(1, {}, "2 rollouts"), (2, {"std_ddof": 2}, "std_ddof")])
def test_settings_of_advantages_are_checked(number, settings, words):
    refuse(words, tested.advantages, jnp.zeros((2, number)), **settings, error=ValueError)


# The loss of direct preference optimisation.

NAMES = ("chosen", "rejected", "reference_chosen", "reference_rejected")
PAIRED = np.array([True, False, True, True, False])


def draw_pairs(seed=3):
    return {name: 3 * normal(seed + place, len(PAIRED)) - 9 for place, name in enumerate(NAMES)}


def oracle_of_pairs(given, counted, beta):
    """Pair by pair in float64."""
    losses, margins = [], []
    for pair in np.flatnonzero(counted):
        chosen, rejected, of_chosen, of_rejected = (float(given[name][pair]) for name in NAMES)
        margins.append(chosen - rejected - (of_chosen - of_rejected))
        losses.append(-np.log(1 / (1 + np.exp(-beta * margins[-1]))))
    return np.mean(losses), np.mean(margins), np.mean(np.array(margins) > 0)


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_the_loss_is_that_of_each_pair_and_what_does_not_count_may_be_nan(beta):
    given = draw_pairs()
    expected = oracle_of_pairs(given, PAIRED, beta)
    given = {name: np.where(PAIRED, values, np.nan) for name, values in given.items()}
    found = dpo_loss(**given, counted=PAIRED, beta=beta)
    for one, other in zip((found.total, found.margin, found.accuracy), expected, strict=True):
        assert_close(one, other, 1e-5)
    assert 0 < expected[2] < 1
    slope = jax.grad(lambda chosen: dpo_loss(**{**given, "chosen": chosen}, counted=PAIRED, beta=beta).total)
    slope = np.asarray(slope(jnp.asarray(given["chosen"])))
    np.testing.assert_array_equal(slope[~PAIRED], 0)  # nor NaN
    assert (slope[PAIRED] < 0).all()


def test_gradients_by_the_pairs():
    given = draw_pairs()

    def loss(chosen, rejected):
        return dpo_loss(**given | {"chosen": chosen, "rejected": rejected}, counted=PAIRED, beta=0.5).total

    pairs = tuple(jnp.asarray(given[name]) for name in ("chosen", "rejected"))
    jax.test_util.check_grads(loss, pairs, order=1, modes=["rev"], rtol=1e-2)


def test_at_the_reference_the_loss_is_log_two_and_without_a_pair_nothing():
    given = draw_pairs()
    given |= {"reference_chosen": given["chosen"], "reference_rejected": given["rejected"]}
    assert_close(dpo_loss(**given, counted=PAIRED).total, np.log(2), 1e-6)
    none = dpo_loss(**given, counted=np.zeros_like(PAIRED))
    assert (float(none.total), float(none.margin)) == (0, 0)


# Advantages: exactly 0 where all rewards of a group are equal.


def oracle_of_groups(rewards, ddof, epsilon, scale):
    """Group by group, with NumPy's own moments over the scored rewards."""
    found = np.zeros_like(rewards)
    everything = rewards[~np.isnan(rewards)]
    for row, group in enumerate(rewards):
        scored = group[~np.isnan(group)]
        if len(scored) < 2 or scored.max() == scored.min():
            continue
        spread = {"group": scored, "batch": everything, "none": None}[scale]
        divisor = 1.0 if spread is None else np.std(spread, ddof=ddof) + epsilon
        found[row] = np.nan_to_num((group - scored.mean()) / divisor, nan=0.0)
    return found


rewards_of_a_group = st.lists(st.one_of(st.floats(-2, 2, width=32), st.just(float("nan"))), min_size=4, max_size=4)
groups = st.lists(rewards_of_a_group, min_size=3, max_size=3)  # one shape: compiled once


@given(groups, st.sampled_from([0, 1]), st.sampled_from(["group", "batch", "none"]))
def test_advantages_agree_with_numpy(rewards, ddof, scale):
    rewards = np.array(rewards, np.float32)
    spreads = [np.ptp(group[~np.isnan(group)]) for group in rewards if (~np.isnan(group)).sum() > 1]
    if any(0 < spread < 1e-3 for spread in spreads):
        return  # float32 has too few digits for the quotient of two tiny numbers
    found = advantages(rewards=rewards, std_ddof=ddof, std_epsilon=1e-6, scale=scale)
    np.testing.assert_allclose(
        found, oracle_of_groups(rewards.astype(np.float64), ddof, 1e-6, scale), atol=2e-3, rtol=2e-4
    )


def test_equal_rewards_give_exactly_zero():
    rewards = np.full((3, 6), 0.9, np.float32)
    assert not np.any(advantages(rewards=rewards))
    assert not np.any(jax.jit(tested.advantages)(rewards))
    plain = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + np.float32(1e-6))
    assert np.any(plain), "the plain formula is not exactly 0, which is why this test exists"
