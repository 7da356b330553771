"""`main` in two processes whose workdir is on a server of S3, which share no folder: killed, and resumed elsewhere."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from cloud.s3_server import BUCKET, s3_server
from run.small_run import read_log
from run.test_two_process_run import SMALL

from stepcot_jax.contrib.cloud.copies import MANIFEST, download
from stepcot_jax.contrib.cloud.stores import StoreFolder

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server():
    with s3_server() as environment:
        yield environment


def start(workdir, folder, environment):
    """Two processes with two devices each, whose caches are in the folder."""
    flags = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag)
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    environment = environment | {
        "CONFIG": "configs/quickstart.py",
        "WORKDIR": str(workdir),
        "LOGS": str(folder / "logs"),
        "PYTHON": sys.executable,
        "DEVICES_PER_PROCESS": "2",
        "XLA_FLAGS": flags,
        "XDG_CACHE_HOME": str(folder / "cache"),
        "JAX_COMPILATION_CACHE_DIR": compiled,
    }
    settings = SMALL | {"training.joint_epochs": 3, "parallel.transform": "shard_map"}
    arguments = [f"--config.{name}={value}" for name, value in settings.items()]
    folder.mkdir()
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [ROOT / "launch" / "local_processes.sh", "2", *arguments],
            env=environment, cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


def finish(process, folder):
    code = process.wait(timeout=1500)
    logs = "\n".join(path.read_text() for path in sorted((folder / "logs").glob("*")))
    assert code == 0, (folder / "output").read_text()[-3000:] + logs
    return logs


def num_complete(store):
    """Checkpoints that the manifest names."""
    named = json.loads(store.read(MANIFEST) or b'{"checkpoints": {}}')["checkpoints"]
    return len({name.split("/")[1] for name in named})


def kill_in_training(process, store, folder):
    """Kill all processes when two checkpoints are on the store."""
    end = time.monotonic() + 1200
    while num_complete(store) < 2:
        assert process.poll() is None, (folder / "output").read_text()[-3000:]
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.timeout(3600)
def test_two_processes_killed_on_a_store_resume_elsewhere_as_an_undisturbed_run(tmp_path, server, monkeypatch):
    finish(start(tmp_path / "local", tmp_path / "one", server), tmp_path / "one")
    check_killed(tmp_path, server, monkeypatch)


def check_killed(tmp_path, server, monkeypatch):
    address = f"s3://{BUCKET}/runs/two"
    store = StoreFolder(address)
    kill_in_training(start(address, tmp_path / "two", server), store, tmp_path / "two")
    assert "report.json" not in store.list()
    logs = finish(start(address, tmp_path / "three", server), tmp_path / "three")
    assert "resuming from step" in logs
    assert "never-printed" not in logs
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = download(address)
    for kind in ("train", "val", "test"):
        assert read_log(found, kind) == read_log(tmp_path / "local", kind) != []
    reports = [json.loads((folder / "report.json").read_text())["test"] for folder in (found, tmp_path / "local")]
    assert reports[0] == reports[1]
