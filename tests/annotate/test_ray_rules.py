"""The rules on a local Ray cluster: the files of the local run, though the driver is killed.

tests/features/test_ray_engine.py kills a worker of the same engine.
"""

import json
import subprocess
import sys
import time

import pytest
from annotate.test_sharding import TEXTS, files
from PIL import Image
from ray_cluster import run_cluster
from refusals import refuse

from stepcot_jax.annotate.runner import BLOCK_SIZE
from stepcot_jax.tools.annotate.command import main

pytestmark = pytest.mark.slow

pytest.importorskip("ray.data", reason="the extra ray")

NUM_BLOCKS = 6


def count_blocks(out):
    return len(list((out / "blocks").glob("*.json")))


def wait_for(condition, process, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def test_a_killed_driver_is_resumed_with_the_blocks_that_are_missing(tmp_path):
    texts = [f"{text} {'Stable since. ' * 8} Number" for text in TEXTS if text]
    rows = [
        {"id": f"r{number}", "report": f"{texts[number % 5]} {number}.", "image": f"{number}.png"}
        for number in range(NUM_BLOCKS * BLOCK_SIZE - 7)
    ]
    source, local, out = (tmp_path / name for name in ("reports.jsonl", "local", "ray"))
    source.write_text("\n".join(map(json.dumps, rows)))
    Image.new("L", (4, 4)).save(tmp_path / "3.png")
    main([str(source), f"--out={local}"])
    on_ray = [str(source), f"--out={out}", "--engine=ray"]
    refuse("is for --annotator=rules without", main, [*on_ray, "--voter=v"])
    refuse("at least 1; got 0", main, [*on_ray, "--ray-workers=0"])
    with run_cluster() as environment:

        def start():
            command = [sys.executable, "-m", "stepcot_jax", "annotate", *on_ray]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        process = start()
        wait_for(lambda: count_blocks(out) >= 1, process)
        process.kill()
        process.communicate()
        kept = {path: path.stat().st_mtime_ns for path in (out / "blocks").glob("*.json")}
        assert 1 <= len(kept) < NUM_BLOCKS
        process = start()
        wait_for(lambda: count_blocks(out) > len(kept), process)
        assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "| collected | reports" in printed
    assert files(out) == files(local)
