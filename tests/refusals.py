"""Refusals on one line."""

import pytest

from stepcot_jax.host.errors import BadInput


def refuse(words, call, /, *arguments, error=BadInput, **options):
    """The call raises the error, and `words`, a regular expression, match its message."""
    with pytest.raises(error, match=words):
        call(*arguments, **options)
