"""The ledger: what is written is found again, whatever happened in between."""

import contextlib
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.llm.answers import Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.host.errors import BadInput, RunStopped

IDENTITY = {
    "task": "annotate",
    "prompt_version": "1",
    "prompt_digest": "abc",
    "model": "some/model:7b",
    "decoding": {"seed": 0, "temperature": 0.0},
}


def entry(name, **changes):
    values = {
        "report": name,
        "text": digest_text(name),
        "request": f"request {name}",
        "answer": f"ä\n{name}",
        "form": "plain",
        "prompt_tokens": 10,
        "answer_tokens": 5,
        "seconds": 0.5,
        "time": "2026-01-01T00:00:00+00:00",
    }
    return Entry(**{**values, **changes})


def test_answers_are_found_again(tmp_path):
    with contextlib.closing(Ledger(tmp_path / "new", IDENTITY)) as ledger:
        for name in "abc":
            ledger.append(entry(name))
        assert ledger.find("b", "request b") == entry("b")
    with contextlib.closing(Ledger(tmp_path / "new", IDENTITY)) as ledger:
        assert [ledger.find(name, f"request {name}") for name in "abc"] == [entry(name) for name in "abc"]
        assert ledger.find("a", "request b") is None
        assert ledger.find("d", "request d") is None
        assert (len(ledger), ledger.num_tokens) == (3, 45)
        assert ledger.path.stat().st_mode & 0o077 == 0  # answers quote reports


def test_a_lost_request_is_counted_and_asked_again(tmp_path):
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        ledger.append(entry("a", answer=None, problem="cut", is_final=False))
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        assert ledger.find("a", "request a") is None
        assert ledger.num_tokens == 15
        ledger.append(entry("a"))
        assert ledger.find("a", "request a").answer == "ä\na"
        assert ledger.num_tokens == 30


@given(st.data())
def test_whatever_a_kill_left_of_the_last_line_is_recovered(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("torn")
    with contextlib.closing(Ledger(folder, IDENTITY)) as ledger:
        sizes = [ledger.path.stat().st_size]
        for name in "abc":
            ledger.append(entry(name))
            sizes.append(ledger.path.stat().st_size)
    kept = data.draw(st.integers(0, sizes[-1]))
    os.truncate(ledger.path, kept)
    if data.draw(st.booleans()):  # a file system may have grown the file without having its content
        with ledger.path.open("ab") as file:
            file.write(b"\0" * 7)
    with contextlib.closing(Ledger(folder, IDENTITY)) as ledger:
        whole = sum(size <= kept for size in sizes[1:])
        assert len(ledger) == whole
        for name in "abc"[:whole]:
            assert ledger.find(name, f"request {name}") == entry(name)
        ledger.append(entry("next"))
    with contextlib.closing(Ledger(folder, IDENTITY)) as ledger:
        assert len(ledger) == whole + 1
        assert ledger.find("next", "request next") == entry("next")


def test_damage_before_the_last_line_is_refused_by_line(tmp_path):
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        for name in "abc":
            ledger.append(entry(name))
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    for bad in (b"{]\n", b"\n", b"[]\n", b"\xff\n", lines[1].replace(b'"report"', b'"rapport"')):
        ledger.path.write_bytes(b"".join([*lines[:2], bad, *lines[3:]]))
        with pytest.raises(BadInput, match="line 3"):
            Ledger(tmp_path, IDENTITY)
        assert ledger.path.read_bytes().endswith(lines[3])


def test_other_prompts_models_and_settings_are_kept_apart(tmp_path):
    others = [
        IDENTITY | change
        for change in (
            {"task": "vote"},
            {"prompt_digest": "abd"},
            {"model": "some_model:7b"},
            {"decoding": {"seed": 1, "temperature": 0.0}},
        )
    ]
    for identity in (IDENTITY, *others):
        with contextlib.closing(Ledger(tmp_path, identity)) as ledger:
            assert len(ledger) == 0
            ledger.append(entry("a"))
    assert len(list(tmp_path.iterdir())) == 5


def test_paid_answers_to_another_version_of_the_prompt_are_refused_by_name(tmp_path):
    newer = IDENTITY | {"prompt_version": "2", "prompt_digest": "abd"}
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        path = ledger.path
    Ledger(tmp_path, newer).close()  # nothing was paid for
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        ledger.append(entry("a"))
    for changes in ({}, {"decoding": {"seed": 1}}):
        with pytest.raises(BadInput, match=r"answers to version 1 of the prompt, expected version 2") as caught:
            Ledger(tmp_path, newer | changes)
        assert str(path) in str(caught.value)
    for changes in ({"task": "vote"}, {"model": "other"}, {"model": "some_model:7b"}):
        Ledger(tmp_path, newer | changes).close()
    path.rename(tmp_path / "moved away")
    Ledger(tmp_path, newer).close()


def test_a_file_of_another_identity_under_this_name_is_refused(tmp_path):
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        ledger.append(entry("a"))
    content = ledger.path.read_bytes()
    ledger.path.write_bytes(content.replace(b'"prompt_version": "1"', b'"prompt_version": "2"'))
    with pytest.raises(BadInput, match="another prompt"):
        Ledger(tmp_path, IDENTITY)


@pytest.mark.parametrize("model", ["../../etc/passwd", "a" * 500, "", "ä/ö", ".."])
def test_a_models_name_cannot_lead_out_of_the_folder(tmp_path, model):
    with contextlib.closing(Ledger(tmp_path / "in", IDENTITY | {"model": model})) as ledger:
        assert ledger.path.resolve().parent == (tmp_path / "in").resolve()


def test_two_processes_are_refused(tmp_path):
    script = (
        "import sys, pathlib; from stepcot_jax.annotate.llm.answers import Ledger\n"
        f"Ledger(pathlib.Path(sys.argv[1]), {IDENTITY!r})"
    )
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True)
        assert "BadInput" in run.stderr
        assert "in use by another process" in run.stderr
        ledger.append(entry("a"))
    assert subprocess.run([sys.executable, "-c", script, tmp_path]).returncode == 0
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        assert len(ledger) == 1


def test_a_full_disk_stops_the_run_and_leaves_no_part(tmp_path, monkeypatch):
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        ledger.append(entry("a"))
        before = ledger.path.read_bytes()
        write = os.write
        parts = iter([5])

        def write_a_part(descriptor, content):
            for size in parts:
                return write(descriptor, content[:size])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", write_a_part)
        with pytest.raises(RunStopped, match="No space left"):
            ledger.append(entry("b"))
        monkeypatch.undo()
        assert ledger.path.read_bytes() == before
        assert ledger.find("b", "request b") is None
        ledger.append(entry("c"))
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        assert ledger.find("c", "request c") == entry("c")


def test_an_entry_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    synchronised = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synchronised.append(os.fstat(descriptor).st_size))
    with contextlib.closing(Ledger(tmp_path, IDENTITY)) as ledger:
        ledger.append(entry("a"))
        assert ledger.path.stat().st_size in synchronised


def test_requests_differ_by_their_messages():
    first = [{"role": "user", "content": "a"}]
    assert digest_messages(first) != digest_messages([*first, {"role": "assistant", "content": "b"}])
    assert digest_messages(first) != digest_messages([{"role": "system", "content": "a"}])
    assert digest_text("\ud800") != digest_text("?")
