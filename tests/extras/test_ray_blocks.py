import collections
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from annotate.test_sharding import TEXTS
from annotate.test_sharding import files as annotated
from extras.ray_harness import BATCH_SIZE, SHARD_SIZE, make_dataset
from features.fake_encoders import FakeImageEncoder
from PIL import Image
from ray_cluster import run_cluster
from refusals import refuse

from stepcot_jax.annotate.runner import BLOCK_SIZE
from stepcot_jax.extras.ray_blocks import RayCluster
from stepcot_jax.features.encode import encode_images, image_item
from stepcot_jax.features.store import FeatureStore, describe_image_store
from stepcot_jax.tools.annotate.command import main

pytestmark = pytest.mark.slow

pytest.importorskip("ray.data", reason="the extra ray")

NUM_IMAGES, NUM_BLOCKS = 70, 6


@pytest.fixture(scope="module")
def start():
    with run_cluster() as environment:

        def start(*arguments):
            command = [sys.executable, "-m", *map(str, arguments)]
            return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        yield start


def finish(process):
    printed, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    return printed.strip()


def kill(process):
    process.kill()
    process.communicate()


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def encode_locally(folder):
    dataset, keys = make_dataset(NUM_IMAGES)
    encoder = FakeImageEncoder()
    store = FeatureStore(folder, describe_image_store(encoder))
    items = [
        image_item(index, key, pixels=dataset.pixels.__getitem__, name=str(index)) for index, key in enumerate(keys)
    ]
    encode_images(encoder, items, store, batch_size=BATCH_SIZE, shard_size=SHARD_SIZE)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def encoded(log):
    """Images in the order of the log, without the workers' starts."""
    return [int(line.split()[1]) for line in log.read_text().splitlines() if not line.endswith("start")]


def test_a_store_is_the_local_engines_though_a_worker_and_then_the_driver_are_killed(tmp_path, start):
    folder, log = tmp_path / "ray", tmp_path / "log"

    def start_encoding(seconds=0.0):
        return start("extras.ray_harness", folder, log, NUM_IMAGES, 2, seconds)

    def starts():
        return collections.Counter(line for line in log.read_text().splitlines() if line.endswith("start"))

    process, hold = start_encoding(seconds=0.2), tmp_path / "log.hold"
    wait_for(lambda: log.exists() and len(encoded(log)) >= 2 * SHARD_SIZE, process)
    hold.touch()  # else the other worker encodes all before the replacement has started
    victim = int(log.read_text().splitlines()[-1].split()[0])
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(starts()) == 3, process)
    assert set(starts().values()) == {1}  # each worker loads the encoder once
    at_start = log.read_text()
    replacement = next(line.split()[0] for line in reversed(at_start.splitlines()) if line.endswith("start"))
    hold.unlink()
    wait_for(lambda: f"\n{replacement} " in log.read_text()[len(at_start) - 1 :], process)
    wait_for(lambda: len(list(folder.glob("[!.]*.safetensors"))) >= 2, process)  # the driver writes them
    kill(process)
    workers = {int(line.split()[0]) for line in log.read_text().splitlines()}
    end = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{worker}") for worker in workers) and time.monotonic() < end:  # noqa: PTH110
        time.sleep(0.1)  # Ray ends the workers of a dead driver
    num_stored = len(FeatureStore(folder, describe_image_store(FakeImageEncoder())))
    assert 0 < num_stored < 63
    log.unlink()
    assert finish(start_encoding()) == f"images: {63 - num_stored} encoded, {num_stored} read from the store"
    assert len(set(encoded(log))) == 63 - num_stored  # no stored block is encoded again
    encode_locally(tmp_path / "local")
    assert files(folder) == files(tmp_path / "local")
    assert len(files(folder)) == 1 + 8
    before = log.read_text()
    assert finish(start_encoding()) == "images: 0 encoded, 63 read from the store"
    assert log.read_text() == before  # nothing to do: no worker starts


def test_rules_of_a_killed_driver_are_resumed_with_the_blocks_that_are_missing(tmp_path, start):
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

    def blocks():
        return {path: path.stat().st_mtime_ns for path in (out / "blocks").glob("*.json")}

    process = start("stepcot_jax", "annotate", *on_ray)
    wait_for(blocks, process)
    kill(process)
    kept = blocks()
    assert 1 <= len(kept) < NUM_BLOCKS
    process = start("stepcot_jax", "annotate", *on_ray)
    wait_for(lambda: len(found := blocks()) > len(kept) and kept.items() <= found.items(), process)
    assert "| collected | reports" in finish(process)
    assert annotated(out) == annotated(local)


def test_options_of_the_engine_that_cannot_be_used_are_refused(tmp_path):
    (tmp_path / "reports.jsonl").write_text('{"id": "r", "report": "Clear.", "image": "3.png"}')
    on_ray = [str(tmp_path / "reports.jsonl"), f"--out={tmp_path / 'out'}", "--engine=ray"]
    refuse("is for --annotator=rules without", main, [*on_ray, "--voter=v"])
    refuse("at least 1; got 0", main, [*on_ray, "--ray-workers=0"])
    for changes in ({"num_workers": 0}, {"num_cpus": -1.0}, {"num_gpus": float("inf")}):
        refuse("Ray worker", RayCluster, **changes)
