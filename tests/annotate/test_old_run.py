"""A paid run goes on without a single request and gives the same records.

`old_run/*_2.jsonl` hold answers to version 2 of the prompts: a first line with what they share, then one a line.
"""

import contextlib
import json
import pathlib

import msgspec
import pytest
from annotate.misbehaving_server import MisbehavingServer

from stepcot_jax import __version__
from stepcot_jax.annotate.llm.answers import Answers, Ledger
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.tools.annotate.command import main

pytest.importorskip("openai", reason="the extra annotate")

OLD = pathlib.Path(__file__).parent / "old_run"


@pytest.fixture
def server():
    with MisbehavingServer(lambda request, number: ("status", (500, {}, {}))) as server:
        yield server
    assert server.requests == []


def annotate(server, out, *more):
    llm = ["--annotator=llm", "--model=m", f"--base-url={server.base_url}", "--attempts=1"]
    main([str(OLD / "reports.jsonl"), f"--out={out}", *llm, *more])


def write_answers(folder, *names):
    with contextlib.closing(Answers(folder / "ledger")) as answers:
        for name in names:
            identity, *lines = (OLD / name).read_text().splitlines()
            ledger = Ledger(answers, json.loads(identity))
            for line in lines:
                ledger.append(msgspec.json.decode(line, type=Entry))


def test_paid_answers_with_repair_trust_and_votes_answer_everything(tmp_path, server):
    write_answers(tmp_path, "annotate_2.jsonl", "trust_2.jsonl", "vote_2.jsonl")
    annotate(server, tmp_path, "--trust", "--voter=v")
    for name in ("set_aside.jsonl", "funnel.csv"):
        assert (tmp_path / name).read_bytes() == (OLD / name).read_bytes()
    records = json.loads((tmp_path / "data.json").read_text())
    assert {record["stepcot_jax"]["provenance"].pop("version") for record in records} == {__version__}
    assert records == json.loads((OLD / "data.json").read_text())
