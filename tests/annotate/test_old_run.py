"""A run paid for before the annotator was generalised goes on without a single request, and gives the same records."""

import pathlib
import shutil

import pytest
from annotate.misbehaving_server import MisbehavingServer

from stepcot_jax.annotate.__main__ import main

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
