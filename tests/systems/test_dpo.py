import dataclasses
import functools

import jax
import numpy as np
import pytest
from oracles.random_params import apart, largest
from policies.policy_workdir import small_settings
from refusals import refuse
from run.small_policy_run import read_results, small_run
from run.small_run import Killed, read_log, stop_at
from systems import policy_step
from systems.test_grpo import log_probs_alone
from systems.test_policy_parallel import assert_same

from stepcot_jax.rewards.options import PRESETS, RewardSettings
from stepcot_jax.systems import dpo
from stepcot_jax.systems.dpo import DpoUpdate, Pairs
from stepcot_jax.systems.grpo import REFERENCE
from stepcot_jax.systems.options import DpoOptions
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.checkpoints import restore_params
from stepcot_jax.training.devices import GlobalBatch
from stepcot_jax.training.system import COLLECTED_NUMBERS

BETA, TEMPERATURE, SIX = 0.3, 0.7, 6
RELEASED = {f"rewards.{name}": value for name, value in dataclasses.asdict(PRESETS["released"]).items()}


class NumberPairs(Pairs, policy_step.NumberRollouts):
    """Some replies earn 0, as invalid ones do."""


def collect(transform="pmap", num_devices=1, update=0, index=None, **changes):
    devices = policy_step.make_devices(transform, num_devices)
    pairs = policy_step.make_rollouts(devices, NumberPairs, group_size=SIX, temperature=TEMPERATURE, **changes)
    state, prompts = policy_step.start(), policy_step.make_prompts()
    if index is not None:
        prompts = {name: rows[index] for name, rows in prompts.items()}
    batch = pairs(devices.replicate(state.replace(step=state.step + update)), prompts)
    return batch, batch.pop(COLLECTED_NUMBERS), pairs


def test_pairs_depend_on_the_prompt_alone_and_their_rewards_differ():
    batch, numbers, pairs = collect()
    order = np.array([5, 0, 7, 2, 1, 3, 6, 4])
    again, _, _ = collect(update=3, index=order)
    for name in ("completions", "counted", "paired"):
        np.testing.assert_array_equal(again[name], batch[name][order])
    paired = batch["paired"]
    assert numbers["rollouts/pairs"] == paired.mean()
    assert paired.mean() > 0.3
    sampled = pairs.sample_groups(policy_step.start(), policy_step.make_prompts()).tokens
    for row, record in enumerate(policy_step.RECORDS):
        rewards = np.array([pairs.reward(tokens, record) for tokens in sampled[row]])
        valid = rewards[rewards > 0]
        assert paired[row] == (len(set(valid.tolist())) > 1)
        if paired[row]:
            best, worst = (pairs.reward(tokens, record) for tokens in batch["completions"][row])
            assert (best, worst) == (valid.max(), valid.min())
        assert batch["counted"][row].any() == paired[row]


def make_update():
    return DpoUpdate(
        policy_step.NETWORK, policy_step.normalise, policy_step.DESCENT, DpoOptions(beta=BETA, temperature=TEMPERATURE)
    )


def descend_frozen(batch, params=None, devices=None):
    """Raw gradients and numbers, with the log-probabilities of the frozen start as an update has them."""
    update = make_update()
    frozen = functools.partial(log_probs_alone, policy_step.make_params()[REFERENCE])
    return policy_step.descend(
        update, {**batch, dpo._FROZEN: frozen(batch).sum(-1).astype(np.float32)}, params, devices
    )


@pytest.fixture(scope="module")
def batch():
    """All but one of the prompts have a pair; what has none may hold any tokens."""
    found = collect()[0]
    paired = np.arange(policy_step.PROMPTS) != 2
    counted = np.ones_like(found["counted"])
    counted[0, 1, policy_step.LONGEST // 2 :] = False
    return {**found, "paired": paired, "counted": counted & paired[:, None, None]}


@pytest.mark.slow
def test_the_loss_is_that_of_whole_texts(batch):
    sums = {name: log_probs_alone(policy_step.make_params()[name], batch).sum(-1) for name in (POLICY, REFERENCE)}
    margins = np.diff(sums[REFERENCE] - sums[POLICY], axis=1)[:, 0][batch["paired"]]
    gradients, numbers = descend_frozen(batch)
    expected = {
        "loss": np.log1p(np.exp(-BETA * margins)).mean(), "margin": margins.mean(), "accuracy": (margins > 0).mean(),
    }  # fmt: skip
    assert numbers == pytest.approx(expected, rel=2e-5, abs=1e-5)
    params, rows = jax.tree.map(jax.numpy.asarray, (policy_step.make_params(), batch))
    frozen = make_update().freeze(params, rows, GlobalBatch())[dpo._FROZEN]
    np.testing.assert_allclose(frozen, sums[REFERENCE], atol=1e-4)
    assert largest(gradients) > 1e-3


@pytest.mark.slow
def test_several_devices_and_passes_have_the_pairs_and_gradients_of_one(batch):
    found, expected = collect("shard_map", 8)[0], collect()[0]
    for name in ("completions", "counted", "paired"):
        np.testing.assert_array_equal(found[name], expected[name])
    gradients, numbers = descend_frozen(batch)
    for devices in (policy_step.make_devices("shard_map", 8), policy_step.make_devices("pmap", 2, 2)):
        other, others = descend_frozen(batch, devices=devices)
        assert_same(other, gradients)
        assert others == pytest.approx(numbers, rel=1e-5, abs=1e-6)


CHANGES = {
    "job": "dpo", "dpo.epochs": 2, "dpo.batch_size": 4, "dpo.updates_per_epoch": 2, "vqa.dialect": "lvkc_released",
    **RELEASED,
}  # fmt: skip


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole = small_run(tmp_path / "whole", monkeypatch, **CHANGES)
    whole.execute()
    with pytest.MonkeyPatch.context() as patch:
        run = small_run(tmp_path / "stopped", patch, **CHANGES)
        stop_at(run.task, "prepare", 7, patch, None)  # 4 of fine-tuning, then the third of DPO
        with pytest.raises(Killed):
            run.execute()
    small_run(tmp_path / "stopped", monkeypatch, **CHANGES).execute()
    results = read_results(tmp_path / "whole")
    assert read_results(tmp_path / "stopped") == results
    assert results["report"]["test"].keys() == {"sft", "dpo"}
    entries = [entry for entry in read_log(tmp_path / "whole", "train") if "dpo/loss" in entry]
    assert entries[0]["dpo/gradient_norm"] > 0
    saved = restore_params(tmp_path / "whole" / "checkpoints", 8)
    assert apart(saved["policy"], saved["reference"]) > 0


def test_rewards_by_which_validity_cannot_be_told_are_refused():
    for changes in ({}, {**RELEASED, "rewards.functions": ("answer=1",)}):
        refuse("config.rewards.gate: .* expected 'released' and well_formed", small_settings, job="dpo", **changes)
    assert small_settings(job="dpo", **RELEASED).dpo == DpoOptions()
    assert RewardSettings(**{name.partition(".")[2]: value for name, value in RELEASED.items()}) == PRESETS["released"]
