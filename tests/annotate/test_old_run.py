"""A paid run goes on without a single request and gives the same records; an older prompt's answers are refused.

`old_run/ledger` holds answers to version 2 of the annotation prompt, `old_run/version_1.jsonl` those to version 1.
"""

import json
import pathlib
import shutil

import pytest
from annotate.misbehaving_server import MisbehavingServer
from refusals import refuse

from stepcot_jax.tools.annotate.command import main

pytest.importorskip("openai", reason="the extra annotate")

OLD = pathlib.Path(__file__).parent / "old_run"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-marker-0123456789")
    with MisbehavingServer(lambda request, number: ("status", (500, {}, {}))) as server:
        yield server
    assert server.requests == []


def annotate(server, out, *more):
    llm = ["--annotator=llm", "--model=m", f"--base-url={server.base_url}", "--attempts=1"]
    main([str(OLD / "reports.jsonl"), f"--out={out}", *llm, *more])


def test_an_old_ledger_with_repair_trust_and_votes_answers_everything(tmp_path, server):
    shutil.copytree(OLD / "ledger", tmp_path / "ledger")
    annotate(server, tmp_path, "--trust", "--voter=v")
    for name in ("set_aside.jsonl", "funnel.csv"):
        assert (tmp_path / name).read_bytes() == (OLD / name).read_bytes()
    assert json.loads((tmp_path / "data.json").read_text()) == json.loads((OLD / "data.json").read_text())
    for path in (OLD / "ledger").iterdir():
        assert (tmp_path / "ledger" / path.name).read_bytes() == path.read_bytes()


def test_answers_to_the_prompt_without_quotes_are_refused_before_a_request(tmp_path, server):
    old = tmp_path / "ledger" / "annotate-m-cf2a986ef0e5.jsonl"
    old.parent.mkdir()
    shutil.copy(OLD / "version_1.jsonl", old)
    refuse("has answers to version 1 of the prompt, expected version 2", annotate, server, tmp_path)
    assert old.read_bytes() == (OLD / "version_1.jsonl").read_bytes()
