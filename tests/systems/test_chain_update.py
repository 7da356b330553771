"""One update by rewards: the loss and its gradient against NumPy, on any number of devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, check_gradients, normal, random_labels, randomise
from training.parallel_step import Pooled

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.consistency import make_rules
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.chain_grpo import (
    OPTIMIZER,
    REFERENCE,
    ChainRewards,
    make_chain_update,
    sample_rollouts,
    shuffle_scored,
)
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.systems.options import GrpoOptions
from stepcot_jax.systems.updates import SHARED, teacher_part
from stepcot_jax.training.devices import ONE_DEVICE, Devices
from stepcot_jax.training.state import TrainState

COUNTS, WIDTH, SIZE, RATE = (3, 2, 4), 8, 4, 0.5
CHAIN = Chain(tuple(Step(f"step {n}", "?", tuple("ABCD"[:n])) for n in COUNTS))
REWARDS = ChainRewards(make_rules(CHAIN), diagnosis_weight=1.0, steps_weight=0.5)
TEXT = normal(2, len(COUNTS), WIDTH)
ROLLOUTS = GrpoOptions(beta=0.1, group_size=SIZE, temperature=0.7)


def make_networks(image_encoder=None):
    # Dropout rates above 0: an update that used them would not agree with the oracle.
    teacher = Teacher(answers_per_step=COUNTS, width=WIDTH, num_layers=1, num_heads=2)
    student = Student(answers_per_step=COUNTS, width=5)
    return Networks(teacher=teacher, student=student, projection_width=4, image_encoder=image_encoder)


def make_batch(num_cases=6, *, images=False):
    labels = random_labels(3, num_cases, COUNTS, missing=0.2)
    labels[:, -1] = np.arange(num_cases) % COUNTS[-1]
    labels[-2:, -1] = -100  # cases without a reward
    own = {"images": normal(1, num_cases, 8, 8, 3)} if images else {"image_features": normal(1, num_cases, 6)}
    return {**own, "labels": labels}


def make_state(networks, batch, optimizer):
    init = functools.partial(init_params, networks, key=jax.random.key(0))
    shapes = jax.eval_shape(lambda batch, text: init(batch=batch, text_features=text), batch, TEXT)
    params = randomise(shapes)
    params[REFERENCE] = teacher_part(randomise(shapes, 1))
    return TrainState(
        step=jnp.int32(3),
        params=params,
        optimizers={OPTIMIZER: optimizer.init(teacher_part(params))},
        key=jax.random.key_data(jax.random.key(5)),
    )


NETWORKS, BATCH, DESCENT = make_networks(), make_batch(), optax.sgd(RATE)
STATE = make_state(NETWORKS, BATCH, DESCENT)


@functools.cache
def compiled(rollouts):
    update = make_chain_update(NETWORKS, REWARDS, rollouts, DESCENT)
    return quick_jit(lambda state, batch: update(state, batch, ONE_DEVICE))


def update_with(rollouts=ROLLOUTS, batch=BATCH):
    after, metrics = compiled(rollouts)(STATE, {**batch, "text_features": TEXT})
    return after, {name: float(number) for name, number in metrics.numbers.items()}


@functools.cache
def sampled():
    """Chains [case, rollout, step] of the update's key."""
    draw = quick_jit(lambda state: sample_rollouts(NETWORKS, REWARDS, ROLLOUTS, state, BATCH, jnp.asarray(TEXT))[0])
    return np.asarray(draw(STATE)["chains"])


def log_probs(teacher, chains, temperature):
    """[case, rollout, step] in float64."""
    flat = chains.reshape(-1, len(COUNTS))
    images = np.repeat(BATCH["image_features"], SIZE, axis=0)
    found = oracle.teacher(teacher, images, TEXT, given=flat)["logits"]
    columns = []
    for step, logits in enumerate(found):
        scaled = logits[:, : COUNTS[step]] / temperature
        columns.append(scaled[np.arange(len(flat)), flat[:, step]] - np.log(np.exp(scaled).sum(axis=1)))
    return np.stack(columns, axis=1).reshape(chains.shape)


def rewards_of(chains):
    found = np.full(chains.shape[:2], np.nan)
    for case, truth in enumerate(BATCH["labels"]):
        for rollout, chain in enumerate(chains[case]):
            if truth[-1] >= 0:
                known = truth >= 0
                found[case, rollout] = (chain[-1] == truth[-1]) + 0.5 * np.mean(chain[known] == truth[known])
    return found


def expected_loss(teacher, *, old, reference, chains):
    """- mean over scored chains of the mean over steps of min(ratio A, clip(ratio) A) - beta k3."""
    new, rewards, terms = log_probs(teacher, chains, ROLLOUTS.temperature), rewards_of(chains), []
    for case, rollout in np.argwhere(~np.isnan(rewards)):
        group = rewards[case]
        spread = group.std(ddof=1)
        gain = 0.0 if group.max() == group.min() else (group[rollout] - group.mean()) / (spread + 1e-6)
        values = []
        for n, o, r in zip(new[case, rollout], old[case, rollout], reference[case, rollout], strict=True):
            ratio = np.exp(n - o)
            penalty = np.exp(r - n) - (r - n) - 1
            values.append(min(ratio * gain, np.clip(ratio, 0.8, 1.2) * gain) - 0.1 * penalty)
        terms.append(np.mean(values))
    return -np.mean(terms)


@functools.cache
def fixed():
    chains = sampled()
    teachers = (STATE.params["teacher"], STATE.params[REFERENCE]["teacher"])
    own, reference = (log_probs(oracle.as_float64(each), chains, ROLLOUTS.temperature) for each in teachers)
    return {"old": own, "reference": reference, "chains": chains}


@pytest.mark.slow
def test_loss_and_gradient_are_those_of_the_equation():
    after, numbers = update_with()
    teacher = oracle.as_float64(STATE.params["teacher"])
    assert numbers["total"] == pytest.approx(expected_loss(teacher, **fixed()), rel=1e-4)
    moved = jax.tree.map(lambda old, new: (old - new) / RATE, STATE.params["teacher"], after.params["teacher"])
    largest = check_gradients(lambda tree: expected_loss(tree, **fixed()), teacher, moved, entries=1, tolerance=1e-4)
    assert largest > 1e-2
    assert int(after.step) == 4
    # The numbers are means over the scored chains.
    chains, rewards = sampled(), rewards_of(sampled())
    assert numbers["reward"] == pytest.approx(np.nanmean(rewards), rel=1e-5)
    right = chains[:4, :, -1] == BATCH["labels"][:4, None, -1]
    assert numbers["reward_diagnosis"] == pytest.approx(right.mean(), rel=1e-5)
    assert numbers["scored"] == pytest.approx(4 / 6)
    assert numbers["equal_groups"] == pytest.approx(np.mean([own.max() == own.min() for own in rewards[:4]]))
    new, reference = fixed()["old"], fixed()["reference"]
    assert numbers["entropy"] == pytest.approx(-new.mean(), rel=1e-4)
    kl = np.exp(reference - new) - (reference - new) - 1
    assert numbers["kl"] == pytest.approx(kl[~np.isnan(rewards)].mean(), rel=1e-4)
    assert numbers["clipped"] == 0.0


@pytest.mark.slow
def test_later_passes_keep_the_log_probabilities_of_sampling():
    once, _ = update_with()
    _, numbers = update_with(dataclasses.replace(ROLLOUTS, num_updates=2))
    teachers = [oracle.as_float64(state.params["teacher"]) for state in (STATE, once)]
    losses = [expected_loss(teacher, **fixed()) for teacher in teachers]
    assert numbers["total"] == pytest.approx(np.mean(losses), rel=1e-4)
    drawn_anew = {**fixed(), "old": log_probs(teachers[1], sampled(), ROLLOUTS.temperature)}
    assert abs(expected_loss(teachers[1], **drawn_anew) - losses[1]) > 1e-3
    assert numbers["clipped"] > 0


@pytest.mark.slow
def test_cases_without_a_reward_take_no_part():
    fewer = {name: rows[:-2] for name, rows in BATCH.items()}
    found, expected = update_with()[0].params, update_with(batch=fewer)[0].params
    for one, other in zip(jax.tree.leaves(found["teacher"]), jax.tree.leaves(expected["teacher"]), strict=True):
        assert_close(one, other, 1e-5)
    none = {**BATCH, "labels": np.full_like(BATCH["labels"], -100)}
    after, numbers = update_with(batch=none)
    jax.tree.map(np.testing.assert_array_equal, after.params, STATE.params)
    assert all(np.isfinite(number) for number in numbers.values())


NUM_CASES = 16
SEEING, SEEN = make_networks(Pooled()), make_batch(NUM_CASES, images=True)
ACROSS = dataclasses.replace(ROLLOUTS, scale="batch", shuffle_rewards=True)


@functools.cache
def run_on(num_devices, transform="pmap", num_passes=1, rollouts=ACROSS):
    """Raw gradients, numbers and chains of all cases."""
    devices = Devices(transform=transform, num_devices=num_devices, num_passes=num_passes, shared=SHARED)
    start = make_state(SEEING, SEEN, optax.sgd(1.0))
    update = make_chain_update(SEEING, REWARDS, rollouts, optax.sgd(1.0))

    def with_chains(state, batch, whole):
        rows = {name: array for name, array in batch.items() if name not in SHARED}
        chains = sample_rollouts(SEEING, REWARDS, rollouts, state, rows, batch["text_features"], whole)[0]["chains"]
        after, metrics = update(state, batch, whole)
        return after, (metrics.numbers, whole.gather(chains))

    text = devices.replicate(TEXT)
    shapes = {name: jax.ShapeDtypeStruct(rows.shape, rows.dtype) for name, rows in SEEN.items()}
    state = devices.replicate(jax.tree.map(jnp.array, start))
    compiled = devices.compile_update(with_chains, state=state, batch={**shapes, "text_features": text})
    after, (numbers, chains) = compiled(state, devices.put_training_rows({**SEEN, "text_features": text}))
    gradients = jax.tree.map(lambda old, new: np.asarray(old) - np.asarray(new), start.params, after.params)
    found = {name: float(number) for name, number in numbers.items()}
    return gradients, found, np.asarray(chains)


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "num_passes"), [("pmap", 1), ("shard_map", 4)])
def test_rollouts_and_raw_gradients_are_those_of_one_device(transform, num_passes):
    gradients, numbers, chains = run_on(2, transform, num_passes)
    expected, wanted, of_one = run_on(1)
    np.testing.assert_array_equal(chains, of_one)
    assert len({tuple(chain) for chain in chains.reshape(-1, len(COUNTS)).tolist()}) > 5
    for part in ("teacher", "image_encoder"):
        for found, leaf in zip(jax.tree.leaves(gradients[part]), jax.tree.leaves(expected[part]), strict=True):
            # A gradient is a difference of parameters, so the parameters' own rounding enters the tolerance.
            assert np.abs(found - leaf).max() <= 1e-5 * max(np.abs(leaf).max(), 0.05)
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected[part])) > 1e-3
    assert numbers == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_shuffled_rewards_are_the_same_ones_elsewhere():
    rewards = np.arange(24, dtype=np.float32).reshape(6, 4)
    rewards[2] = rewards[4, 1] = np.nan
    found = np.asarray(shuffle_scored(jnp.asarray(rewards), key=jax.random.key(0)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rewards))
    np.testing.assert_array_equal(np.sort(found, axis=None), np.sort(rewards, axis=None))
    assert (found != rewards)[~np.isnan(rewards)].mean() > 0.5
    again = shuffle_scored(jnp.asarray(rewards), key=jax.random.key(1))
    assert (np.nan_to_num(again) != np.nan_to_num(found)).any()
