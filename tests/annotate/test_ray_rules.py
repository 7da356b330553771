"""The rules on local Ray clusters: the files of the local run, whoever is killed on the way."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from annotate.test_sharding import TEXTS, files, write_source
from ray_cluster import run_cluster

from stepcot_jax.annotate.blocks import BLOCK_SIZE
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.annotate.command import main

pytestmark = pytest.mark.slow

pytest.importorskip("ray.data", reason="the extra ray")

pytestmark = pytest.mark.slow
ENVIRONMENT = {}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """The environment of drivers."""
    with run_cluster() as environment:
        ENVIRONMENT.update(environment)
        yield


def start(source, out, *more):
    command = [sys.executable, "-m", "stepcot_jax", "annotate", source, f"--out={out}", "--engine=ray", *more]
    return subprocess.Popen(
        list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    printed, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    return printed


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Twenty blocks of reports that differ, and their result without Ray."""
    folder = tmp_path_factory.mktemp("many")
    texts = [f"{text} {'Stable since. ' * 40} Number" for text in TEXTS if text]
    rows = [
        {"id": f"r{number}", "report": f"{texts[number % 5]} {number}.", "image": f"{number}.png"}
        for number in range(20 * BLOCK_SIZE - 7)
    ]
    (folder / "reports.jsonl").write_text("\n".join(map(json.dumps, rows)))
    main([str(folder / "reports.jsonl"), f"--out={folder / 'local'}", "--images=none"])
    return folder / "reports.jsonl", files(folder / "local")


def count_blocks(out):
    return len(list((out / "blocks").glob("*.json")))


def find_workers():
    """Processes of this cluster's workers: children of the raylet that has its address on the command line."""
    found, address = [], ENVIRONMENT["RAY_ADDRESS"].encode()
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"MapWorker" in (path / "cmdline").read_bytes():
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if address in pathlib.Path("/proc", parent, "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    return found


def test_the_files_are_those_of_the_local_run(tmp_path):
    source = write_source(tmp_path / "source", number=600)
    main([str(source), f"--out={tmp_path / 'local'}"])
    printed = finish(start(source, tmp_path / "ray", "--ray-workers=2"))
    assert "| collected | reports" in printed
    assert files(tmp_path / "ray") == files(tmp_path / "local")
    with pytest.raises(BadInput, match="--engine=ray is for --annotator=rules without --voter"):
        main([str(source), f"--out={tmp_path}", "--engine=ray", "--voter=v"])
    with pytest.raises(BadInput, match="number of Ray workers must be at least 1; got 0"):
        main([str(source), f"--out={tmp_path}", "--engine=ray", "--ray-workers=0"])


def test_a_killed_worker_is_replaced_and_a_killed_driver_is_resumed_with_the_blocks_that_are_missing(tmp_path, many):
    source, expected = many
    process = start(source, tmp_path / "ray", "--images=none")
    wait_for(lambda: count_blocks(tmp_path / "ray") >= 2, process)
    os.kill(wait_for(find_workers, process)[0], signal.SIGKILL)
    wait_for(lambda: count_blocks(tmp_path / "ray") >= 5, process)
    process.kill()
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "ray" / "blocks").glob("*.json")}
    assert 5 <= len(kept) < 20
    process = start(source, tmp_path / "ray", "--images=none")
    wait_for(lambda: count_blocks(tmp_path / "ray") > len(kept), process)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    finish(process)
    assert files(tmp_path / "ray") == expected
