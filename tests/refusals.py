"""Refusals on one line, and files that are changed to be refused."""

import json

import pytest

from stepcot_jax.host.errors import BadInput


def refuse(words, call, /, *arguments, error=BadInput, **options):
    """The call raises the error, and `words`, a regular expression, match its message."""
    with pytest.raises(error, match=words):
        call(*arguments, **options)


def edit_json(path, edit):
    """Rewrite a JSON file after `edit`, a function of its content."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
