import io
import sys
import time

import pytest

from stepcot_jax.host.terminal import Terminal, name_command


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


def test_a_notebook_shows_one_line_a_bar_and_elsewhere_every_line_stays(monkeypatch):
    text = write(monkeypatch, "ipykernel.iostream")
    assert as_shown(text) == ["training 2/3 0 s left", "saved", "training 3/3 0 s left", "done", ""]
    text = write(monkeypatch, "io")
    assert "\r" not in text
    assert (text.splitlines()[0], len(text.splitlines())) == ("training 1/3 0 s left a long note", 5)


def test_a_clock_counts_the_seconds_of_what_reports_no_progress(capsys):
    with Terminal(every_seconds=0.01).clock("compiling"):
        time.sleep(0.2)
    first, *later = capsys.readouterr().err.splitlines()
    assert (first, set(later)) == ("compiling", {"compiling: 0 s"})


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        ("venv/bin", "", "stepcot"),  # activated
        ("", "", "venv/bin/stepcot"),
        ("other", "", "venv/bin/stepcot"),  # another installation comes first
        *(("", "venv", "bin/stepcot"), ("", "other", "{here}/venv/bin/stepcot")),
    ],
)
def test_a_printed_command_works_in_the_shell_that_printed_it(tmp_path, monkeypatch, path, folder, name):
    for place in ("venv/bin", "other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "stepcot").touch(mode=0o755)
        (tmp_path / place / "python").symlink_to(sys.executable)  # of both environments one interpreter
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "/nowhere")
    monkeypatch.chdir(tmp_path / folder)
    assert name_command() == name.format(here=tmp_path)
    assert name_command("python") == name.format(here=tmp_path).replace("stepcot", "python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert name_command() == f"{tmp_path / 'python'} -m stepcot_jax"
