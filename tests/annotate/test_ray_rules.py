"""The rules on a local Ray cluster: the files of the local run, whoever is killed on the way."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from annotate.test_sharding import TEXTS, files
from PIL import Image
from ray_cluster import run_cluster
from refusals import refuses

from stepcot_jax.annotate.runner import BLOCK_SIZE
from stepcot_jax.tools.annotate.command import main

pytestmark = pytest.mark.slow

pytest.importorskip("ray.data", reason="the extra ray")

NUM_BLOCKS = 10


def count_blocks(out):
    return len(list((out / "blocks").glob("*.json")))


def find_workers(address):
    """Processes of this cluster's workers: children of the raylet that has its address on the command line."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"MapWorker" in (path / "cmdline").read_bytes():
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if address.encode() in pathlib.Path("/proc", parent, "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


def wait_for(condition, process, seconds=300):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    return found


def test_a_killed_worker_is_replaced_and_a_killed_driver_is_resumed_with_the_blocks_that_are_missing(tmp_path):
    texts = [f"{text} {'Stable since. ' * 8} Number" for text in TEXTS if text]
    rows = [
        {"id": f"r{number}", "report": f"{texts[number % 5]} {number}.", "image": f"{number}.png"}
        for number in range(NUM_BLOCKS * BLOCK_SIZE - 7)
    ]
    source, local, out = (tmp_path / name for name in ("reports.jsonl", "local", "ray"))
    source.write_text("\n".join(map(json.dumps, rows)))
    Image.new("L", (4, 4)).save(tmp_path / "3.png")
    main([str(source), f"--out={local}"])
    for more, words in (
        (["--voter=v"], "is for --annotator=rules without"),
        (["--ray-workers=0"], "at least 1; got 0"),
    ):
        refuses(words, main, [str(source), f"--out={out}", "--engine=ray", *more])
    with run_cluster() as environment:

        def start():
            command = [sys.executable, "-m", "stepcot_jax", "annotate", str(source), f"--out={out}", "--engine=ray"]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        process = start()
        wait_for(lambda: count_blocks(out) >= 1, process)
        os.kill(wait_for(lambda: find_workers(environment["RAY_ADDRESS"]), process)[0], signal.SIGKILL)
        wait_for(lambda: count_blocks(out) >= 3, process)
        process.kill()
        process.communicate()
        kept = {path: path.stat().st_mtime_ns for path in (out / "blocks").glob("*.json")}
        assert 3 <= len(kept) < NUM_BLOCKS
        process = start()
        wait_for(lambda: count_blocks(out) > len(kept), process)
        assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "| collected | reports" in printed
    assert files(out) == files(local)
