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


def test_nothing_is_asked_twice_but_what_was_under_way_at_a_kill_and_every_round_ends_complete(tmp_path):
    script = pathlib.Path(__file__).with_name("kill_harness.py")
    with MisbehavingServer(lambda request, number: ("answer_slowly", 0.02)) as server:
        command = [sys.executable, script, tmp_path, server.base_url]
        environment = {**os.environ, "OPENAI_API_KEY": "sk-none"}
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert run.returncode == 0, run.stderr
    asked = [(name_report(request), at) for request, at in zip(server.requests, server.times, strict=True)]
    rounds, expected = json.loads(run.stdout), [str(number) for number in range(NUM_REPORTS)]
    assert [len(done["kills"]) for done in rounds[2:]] == [2, 2, 2]
    assert len({len(kill["answered"]) for done in rounds for kill in done["kills"]}) > 2
    for done in rounds:
        for kill in done["kills"]:
            later = {report for (name, report), at in asked if name == done["name"] and at > kill["time"]}
            assert not later & set(kill["answered"])
        counts = collections.Counter(report for name, report in map(name_report, server.paid) if name == done["name"])
        assert sum(counts.values()) - len(counts) <= CONCURRENCY * len(done["kills"])
        cases = read_records(pathlib.Path(done["folder"]), require_images=False).cases
        assert (
            sorted(counts, key=int) == sorted(done["answered"], key=int) == [case.patient for case in cases] == expected
        )


def name_report(request):
    """Round and id of the report that a request is about."""
    return re.search(r"Number (\w+) (\d+)\.", read_data(request)["report"]).groups()
