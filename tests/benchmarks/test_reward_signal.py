"""The signal in gradients: equal rewards have the cosine of their sum, and a reward without differences has none."""

import dataclasses

import numpy as np
import pytest
from policies.policy_workdir import make_policy_workdir, small_settings

from benchmarks.reward_signal import make_task, mean_cosine, measure
from stepcot_jax.systems.grpo import Rollouts

pytestmark = pytest.mark.slow


def test_mean_cosine():
    draws = np.random.default_rng(0).standard_normal((5, 40))
    expected = [one @ two / np.sqrt(one @ one * (two @ two)) for k, one in enumerate(draws) for two in draws[k + 1 :]]
    assert mean_cosine(draws) == pytest.approx(np.mean(expected))
    assert mean_cosine([draws[0], np.zeros(40)]) == 0


def test_gradients_of_each_reward(tmp_path, monkeypatch):
    def reward_all(rollouts, replies):
        sums = [float(tokens.sum() % 7) for _, tokens in replies]
        return {"answer": sums, "grounding": [0.5] * len(sums), "total": [2 * each for each in sums]}

    monkeypatch.setattr(Rollouts, "reward_all", reward_all)
    make_policy_workdir(tmp_path / "run")
    changes = {"grpo.batch_size": 4, "grpo.group_size": 3, "grpo.scale": "none", "grpo.beta": 0.0}
    task = make_task(dataclasses.asdict(small_settings()), str(tmp_path / "run"), tmp_path / "scratch", changes)
    found = measure(task, 3)
    assert found["cosine"]["answer"] == pytest.approx(found["cosine"]["total"], abs=1e-4)
    assert found["cosine"]["answer"] != 0
    assert found["cosine"]["grounding"] == 0
    assert found["nats"] > found["nats_in_coordinates"] > 0
