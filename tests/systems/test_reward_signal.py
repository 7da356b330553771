import math

import pytest
from run.small_policy_run import small_run

from stepcot_jax.systems.grpo import RewardSignal, Rollouts

NAN = math.nan


def count(*updates):
    signal = RewardSignal()
    for mean, differs in updates:
        signal.add(mean=mean, differs=differs)
    return signal


def test_updates_without_a_signal_are_counted_in_a_row():
    signal = count((0.5, False), (0.2, True), (NAN, False), (0.3, False))
    assert (signal.num_updates, signal.num_equal, signal.num_unscored, signal.num_in_a_row) == (4, 2, 1, 2)


@pytest.mark.slow
def test_a_run_warns_at_the_end_of_a_short_phase_of_equal_rewards(tmp_path, monkeypatch, capsys):
    changes = {"sft__epochs": 0, "grpo__epochs": 2, "grpo__updates_per_epoch": 2}
    run = small_run(tmp_path, monkeypatch, **changes)
    monkeypatch.setattr(
        Rollouts, "reward_all", lambda self, replies: {"answer": [1.0] * len(replies), "total": [3.0] * len(replies)}
    )
    run.execute()
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning: phase" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: phase 'grpo': the rewards of the replies to each prompt were equal in all 4 ")
