"""The format reward."""

from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.rewards.answers import format_reward


def test_format():
    assert format_reward(Reply("gemex", "Yes", ())) == 1
    assert format_reward(Reply("gemex", "Yes", (), problems=("<think> is missing",))) == 0
