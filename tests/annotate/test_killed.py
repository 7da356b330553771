"""Runs that are killed go on where they were: no report is paid for twice but those under way at the kill."""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("openai", reason="the extra annotate")

from annotate.kill_harness import CONCURRENCY, NUM_REPORTS
from annotate.misbehaving_server import MisbehavingServer, read_data

from stepcot_jax.data.records.records import read_records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def happened(tmp_path_factory):
    script = pathlib.Path(__file__).with_name("kill_harness.py")
    base = tmp_path_factory.mktemp("killed")
    with MisbehavingServer(lambda request, number: ("answer_slowly", 0.02)) as server:
        command = [sys.executable, script, base, server.base_url]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-none"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert run.returncode == 0, run.stderr
        asked = [(name_report(request), at) for request, at in zip(server.requests, server.times, strict=True)]
        paid = [name_report(request) for request in server.paid]
    return json.loads(run.stdout), asked, paid


def name_report(request):
    """Round and id of the report that a request is about."""
    return re.search(r"Number (\w+) (\d+)\.", read_data(request)["report"]).groups()


def test_there_were_kills_at_all_stages(happened):
    rounds, _, _ = happened
    assert sum(len(done["kills"]) for done in rounds[:4]) >= 5
    assert all(len(done["kills"]) == 3 for done in rounds[4:])
    assert len({len(kill["answered"]) for done in rounds for kill in done["kills"]}) > 4


def test_no_answer_in_the_ledger_is_asked_for_again_and_what_is_paid_twice_was_under_way_at_a_kill(happened):
    rounds, asked, paid = happened
    for done in rounds:
        for kill in done["kills"]:
            later = {report for (name, report), at in asked if name == done["name"] and at > kill["time"]}
            assert not later & set(kill["answered"])
        counts = collections.Counter(report for name, report in paid if name == done["name"])
        assert len(counts) == NUM_REPORTS
        assert sum(counts.values()) - NUM_REPORTS <= CONCURRENCY * len(done["kills"])


def test_every_round_ends_with_a_complete_ledger_and_all_records(happened):
    rounds, _, _ = happened
    for done in rounds:
        assert sorted(done["answered"], key=int) == [str(number) for number in range(NUM_REPORTS)]
        cases = read_records(pathlib.Path(done["folder"]), require_images=False).cases
        assert [case.patient for case in cases] == [str(number) for number in range(NUM_REPORTS)]
