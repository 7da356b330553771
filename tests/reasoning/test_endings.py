"""Finish reasons as servers write them."""

import pytest

from stepcot_jax.reasoning.endings import read_finish


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ("stop", "stop eos end_turn STOP FINISH_REASON_STOP"),
        ("length", "length MAX_TOKENS FinishReason.MAX_TOKENS max_output_tokens token_limit repetition_truncation"),
        ("content_filter", "content_filter content-filter SAFETY contentFilter guardrail_intervened sensitive"),
        ("", "pause_turn other"),
    ],
)
def test_the_finish_reasons_of_servers(finish, words):
    assert {read_finish(word) for word in words.split()} == {finish}
