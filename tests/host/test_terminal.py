"""Progress in a notebook is one line that changes; elsewhere it is plain lines."""

import io
import sys

from stepcot_jax.host.terminal import Terminal


class _Stream(io.StringIO):
    """Standard error of a notebook's kernel, by its module."""


def write(monkeypatch, module):
    _Stream.__module__ = module
    stream = _Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    terminal = Terminal(every_seconds=0.0)
    with terminal.bar("training", total=3):
        terminal.update(1, "a long note")
        terminal.update(2)
        terminal.say("saved")
        terminal.update(3)
    terminal.say("done")
    return stream.getvalue()


def as_shown(text):
    """What a notebook shows: after a carriage return the line is written over."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_notebook_shows_one_line_a_bar(monkeypatch):
    text = write(monkeypatch, "ipykernel.iostream")
    assert as_shown(text) == ["training 2/3 0 s left", "saved", "training 3/3 0 s left", "done", ""]


def test_elsewhere_every_line_stays(monkeypatch):
    text = write(monkeypatch, "io")
    assert "\r" not in text
    assert text.splitlines()[0] == "training 1/3 0 s left a long note"
    assert len(text.splitlines()) == 5
