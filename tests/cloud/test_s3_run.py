"""A run whose workdir is on a server of S3: killed by SIGKILL, and resumed elsewhere to the same bits."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest
from cloud.s3_server import BUCKET, s3_server
from run.small_run import assert_same, final_state, read_log, small_run

from stepcot_jax.extras.cloud.copies import MANIFEST, download
from stepcot_jax.extras.cloud.stores import StoreFolder

pytestmark = pytest.mark.slow

TESTS = pathlib.Path(__file__).resolve().parents[1]

SHORT = {"training__teacher_epochs": 3, "training__joint_epochs": 0}
KILLED = f"""
import os, signal, sys
import pytest
from run.small_run import small_run, stop_at
patch = pytest.MonkeyPatch()
run = small_run(sys.argv[1], patch, **{SHORT})
stop_at(run.task, "validate", 3, patch, stop=lambda: os.kill(os.getpid(), signal.SIGKILL))
run.execute()
"""


def test_a_run_killed_on_a_store_resumes_elsewhere_as_an_undisturbed_run(tmp_path, monkeypatch, capsys):
    with s3_server() as environment, jax.numpy_dtype_promotion("standard"):
        address = f"s3://{BUCKET}/runs/one"
        report, state, best = final_state(small_run(tmp_path / "local", monkeypatch, **SHORT), monkeypatch)
        paths = os.pathsep.join(map(str, (TESTS.parent, TESTS)))
        environment = environment | {"XDG_CACHE_HOME": str(tmp_path / "first"), "PYTHONPATH": paths}
        command = [sys.executable, "-c", KILLED, address]
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        store = StoreFolder(address)
        assert json.loads(store.read(MANIFEST))["checkpoints"]
        assert "report.json" not in store.list()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
        again, found, found_best = final_state(small_run(address, monkeypatch, **SHORT), monkeypatch)
        printed = capsys.readouterr()
        assert "resuming from step 10" in printed.err
        assert "never-printed" not in printed.out + printed.err + killed.stdout + killed.stderr
        assert_same(found, state)
        assert (again["test"], found_best) == (report["test"], best)
        assert read_log(download(address)) == read_log(tmp_path / "local")
