"""The Ray engine on local clusters: the local engine's store, byte for byte, whoever is killed on the way."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from features.fake_encoders import FakeImageEncoder
from features.ray_harness import BATCH_SIZE, SHARD_SIZE, make_dataset
from ray_cluster import run_cluster

from stepcot_jax.contrib.cloud.ray_blocks import RayCluster
from stepcot_jax.features.encode import encode_images, image_item
from stepcot_jax.features.store import FeatureStore, describe_image_store
from stepcot_jax.host.errors import BadInput

pytestmark = pytest.mark.slow

pytest.importorskip("ray.data", reason="the extra ray")

NUM_IMAGES = 70


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """The environment of drivers."""
    with run_cluster() as environment:
        ENVIRONMENT.update(environment)
        yield


ENVIRONMENT = {}


def start(folder, log, *, seconds=0.0):
    command = [sys.executable, "-m", "features.ray_harness", folder, log, NUM_IMAGES, 2, seconds]
    return subprocess.Popen(
        list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    printed, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    return printed.strip()


def encode_locally(folder):
    dataset, keys = make_dataset(NUM_IMAGES)
    encoder = FakeImageEncoder()
    store = FeatureStore(folder, describe_image_store(encoder))
    items = [
        image_item(index, key, pixels=dataset.pixels.__getitem__, name=str(index)) for index, key in enumerate(keys)
    ]
    encode_images(encoder, items, store, batch_size=BATCH_SIZE, shard_size=SHARD_SIZE)


def files(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if not path.name.startswith(".")}


def encoded(log):
    """Images in the order of the log, without the workers' starts."""
    return [int(line.split()[1]) for line in log.read_text().splitlines() if not line.endswith("start")]


def wait_for(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def test_the_store_is_that_of_the_local_engine_byte_for_byte_though_a_worker_is_killed(tmp_path):
    log = tmp_path / "log"
    process = start(tmp_path / "ray", log, seconds=0.2)
    wait_for(lambda: log.exists() and len(encoded(log)) >= 3 * SHARD_SIZE, process)
    victim = int(log.read_text().splitlines()[-1].split()[0])
    os.kill(victim, signal.SIGKILL)
    assert "images: 63 encoded" in finish(process)  # after what Ray says of the lost worker
    starts = collections.Counter(line for line in log.read_text().splitlines() if line.endswith("start"))
    assert len(starts) == 3
    assert set(starts.values()) == {1}  # each worker loads the encoder once
    encode_locally(tmp_path / "local")
    assert files(tmp_path / "ray") == files(tmp_path / "local")
    assert len(files(tmp_path / "ray")) == 1 + 8
    assert set(encoded(log)) == {number - (number % 10 == 9) for number in range(NUM_IMAGES)}
    before = log.read_text()
    assert finish(start(tmp_path / "ray", log)) == "images: 0 encoded, 63 read from the store"
    assert log.read_text() == before  # nothing to do: no worker starts


def test_a_killed_driver_is_resumed_without_encoding_stored_blocks_again(tmp_path):
    folder, log = tmp_path / "ray", tmp_path / "log"
    process = start(folder, log, seconds=0.2)
    wait_for(lambda: len(list(folder.glob("[!.]*.safetensors"))) >= 2, process)  # the driver writes them
    process.kill()
    process.communicate()
    workers = {int(line.split()[0]) for line in log.read_text().splitlines()}
    end = time.monotonic() + 60
    while any(pathlib.Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < end:
        time.sleep(0.1)  # Ray ends the workers of a dead driver
    num_stored = len(FeatureStore(folder, describe_image_store(FakeImageEncoder())))
    assert 0 < num_stored < 63
    log.unlink()
    assert finish(start(folder, log)) == f"images: {63 - num_stored} encoded, {num_stored} read from the store"
    assert len(set(encoded(log))) == 63 - num_stored
    encode_locally(tmp_path / "local")
    assert files(folder) == files(tmp_path / "local")
    for changes in ({"num_workers": 0}, {"num_cpus": -1.0}, {"num_gpus": float("inf")}):
        with pytest.raises(BadInput, match="Ray worker"):
            RayCluster(**changes)
