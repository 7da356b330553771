import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from features.crash_harness import BATCH_SIZE, NUM_IMAGES, SHARD_SIZE
from features.fake_encoders import FakeImageEncoder, make_items

from stepcot_jax.features.encode import encode_images
from stepcot_jax.features.store import FeatureStore, describe_image_store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def happened(tmp_path_factory):
    script = pathlib.Path(__file__).with_name("crash_harness.py")
    base = tmp_path_factory.mktemp("interrupted")
    run = subprocess.run([sys.executable, script, base], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "computed again" not in run.stderr  # no reader ever met a half-written shard
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    encoder = FakeImageEncoder()
    store = FeatureStore(tmp_path_factory.mktemp("whole") / "store", describe_image_store(encoder))
    items = make_items(range(NUM_IMAGES), encoder)
    encode_images(encoder, items, store, batch_size=BATCH_SIZE, shard_size=SHARD_SIZE)
    return [item.key for item in items], store.read([item.key for item in items])


def check_whole(folder, uninterrupted):
    keys, expected = uninterrupted
    store = FeatureStore(pathlib.Path(folder), describe_image_store(FakeImageEncoder()))
    assert len(store) == NUM_IMAGES
    np.testing.assert_array_equal(store.read(keys), expected)


def test_killed_before_and_after_every_sync(happened, uninterrupted):
    assert all(done["kills"] for done in happened["fsync"])
    for done in happened["fsync"]:
        check_whole(done["folder"], uninterrupted)
        assert done["again"] == 0  # nothing that was written is encoded again
        # Lost at a kill: what waits for its shard, and the batch at work; every batch is filled up to one size.
        assert done["encoded"] <= NUM_IMAGES + BATCH_SIZE + done["kills"] * (SHARD_SIZE + 2 * BATCH_SIZE)


def test_two_processes_fill_one_store(happened, uninterrupted):
    for done in happened["together"]:
        assert done["codes"] == [0, 0]
        check_whole(done["folder"], uninterrupted)
    # They share the work as far as each sees the other's shards.
    assert min(done["encoded"] for done in happened["together"]) < 2 * NUM_IMAGES
