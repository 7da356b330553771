"""Bad input is refused in one line."""

import pytest

from stepcot_jax.host.errors import BadInput


def refuses(words, call, *arguments, **options):
    """Assert that a call raises `BadInput` of one line that matches the pattern `words`; return the line."""
    with pytest.raises(BadInput, match=words or None) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_says(message, *parts):
    for part in parts:
        assert part in message, message
