"""The self-check reward and its advantage (MEDSAGE, Eq. 10 and 11)."""

from stepcot_jax.rewards.self_check import self_check_advantage, self_check_reward


def test_only_a_wrong_answer_made_right_is_rewarded():
    table = {(first, second): self_check_reward(first, second) for first in (False, True) for second in (False, True)}
    assert table == {(False, False): 0, (False, True): 1, (True, False): 0, (True, True): 0}


def test_the_advantage_is_alpha_times_the_reward():
    assert self_check_advantage(False, True) == 0.2
    assert self_check_advantage(False, True, alpha=0.15) == 0.15
    assert self_check_advantage(True, True) == 0
    assert self_check_advantage(False, False) == 0
