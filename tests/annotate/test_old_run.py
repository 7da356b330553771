"""A paid run goes on without a single request and gives the same records; an older prompt's answers are refused.

`old_run/ledger` holds answers to version 2 of the annotation prompt, `old_run/version_1.jsonl` those to version 1.
"""

import pathlib
import shutil

import pytest
from annotate.misbehaving_server import MisbehavingServer

from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.annotate.command import main

pytest.importorskip("openai", reason="the extra annotate")

OLD = pathlib.Path(__file__).parent / "old_run"


def test_an_old_ledger_with_repair_trust_and_votes_answers_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker-0123456789")
    shutil.copytree(OLD / "ledger", tmp_path / "ledger")
    with MisbehavingServer(lambda request, number: ("status", (500, {}, {}))) as server:
        llm = ["--annotator=llm", "--model=m", f"--base-url={server.base_url}", "--trust", "--voter=v", "--attempts=1"]
        main([str(OLD / "reports.jsonl"), f"--out={tmp_path}", *llm])
        assert server.requests == []
    for name in ("data.json", "set_aside.jsonl", "funnel.csv"):
        assert (tmp_path / name).read_bytes() == (OLD / name).read_bytes()
    for path in (OLD / "ledger").iterdir():
        assert (tmp_path / "ledger" / path.name).read_bytes() == path.read_bytes()


def test_answers_to_the_prompt_without_quotes_are_refused_before_a_request(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker-0123456789")
    old = tmp_path / "ledger" / "annotate-m-cf2a986ef0e5.jsonl"
    old.parent.mkdir()
    shutil.copy(OLD / "version_1.jsonl", old)
    with MisbehavingServer() as server:
        llm = ["--annotator=llm", "--model=m", f"--base-url={server.base_url}", "--attempts=1"]
        with pytest.raises(BadInput, match="has answers to version 1 of the prompt, expected version 2"):
            main([str(OLD / "reports.jsonl"), f"--out={tmp_path}", *llm])
        assert server.requests == []
    assert old.read_bytes() == (OLD / "version_1.jsonl").read_bytes()
