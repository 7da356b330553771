"""Refusals in one line, and files that are changed to be refused."""

import json

import pytest

from stepcot_jax.host.errors import BadInput


def refuse(words, call, /, *arguments, error=BadInput, **options):
    """Assert that a call raises an error of one line that matches the pattern `words`; return the line."""
    with pytest.raises(error, match=words or None) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert error is not BadInput or "\n" not in message
    return message


def assert_says(message, *parts):
    for part in parts:
        assert part in message, message


def edit_json(path, edit):
    """Rewrite a JSON file after `edit`, a function of its content."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def refuse_edited(words, path, edit, read, /, *arguments, **options):
    """Assert that a JSON file is refused after `edit`, in a line that names the file."""
    edit_json(path, edit)
    assert str(path) in refuse(words, read, path, *arguments, **options)
