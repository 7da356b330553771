import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.features.store import FeatureStore, StoredFeatures, StoreSpec, digest_fields, open_features

SPEC = StoreSpec(kind="image", encoder="fake", digest="d" * 64, width=5, details={"size": 4, "mean": (0.5, 0.1)})
KEYS = [digest_fields("test", number=number) for number in range(40)]
ROWS = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)


@pytest.fixture
def filled(tmp_path):
    store = FeatureStore(tmp_path / "store", SPEC)
    for start in range(0, 40, 10):
        store.write(KEYS[start : start + 10], ROWS[start : start + 10])
    return store


def shards(store):
    return sorted(path for path in store.folder.iterdir() if path.suffix == ".safetensors")


def test_round_trip_in_any_order_and_again(filled):
    order = np.random.default_rng(1).integers(0, 40, 200)
    for store in (filled, FeatureStore(filled.folder, SPEC), FeatureStore(filled.folder)):
        assert len(store) == 40
        np.testing.assert_array_equal(store.read([KEYS[k] for k in order]), ROWS[order])
    assert store.spec == SPEC
    assert store.read([]).shape == (0, 5)
    late = digest_fields("test", number=99)
    filled.write([late], ROWS[:1])
    assert late not in store
    store.refresh()
    np.testing.assert_array_equal(store.read([late]), ROWS[:1])
    spec = dataclasses.replace(SPEC, patches="float16", details={"patch_shape": (7, 3)})
    tokens = np.random.default_rng(2).standard_normal((10, 7, 3)).astype(np.float32)
    FeatureStore(filled.folder / "patches", spec).write(KEYS[:10], ROWS[:10], tokens)
    store = FeatureStore(filled.folder / "patches", spec)
    found = store.read_patches(KEYS[9::-1])
    np.testing.assert_array_equal(found, tokens[::-1].astype("float16"))
    assert found.dtype == "float16"
    np.testing.assert_array_equal(store.read(KEYS[:10]), ROWS[:10])


def test_a_shard_is_the_same_file_whenever_it_is_written(tmp_path):
    contents = set()
    for number in range(8):
        store = FeatureStore(tmp_path / str(number), SPEC)
        store.write(KEYS[:10], ROWS[:10])
        store.write(KEYS[:10], ROWS[:10])
        (path,) = shards(store)
        contents.add((path.name, path.read_bytes()))
    assert len(contents) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        lambda content: content.replace(b'"F32"', b'"U8" '),
    ],
)
def test_a_damaged_shard_is_named_and_set_aside_and_its_features_made_anew(filled, caplog, damage):
    victim = shards(filled)[1]
    victim.write_bytes(damage(victim.read_bytes()))
    store = FeatureStore(filled.folder, SPEC)
    assert len(store) == 30
    assert len(caplog.messages) == 1
    assert victim.name in caplog.text
    assert "does not match its name" in caplog.text
    assert not victim.exists()
    assert victim.with_name(victim.name + ".bad").exists()
    missing = [k for k in range(40) if KEYS[k] not in store]
    refuse("10 of 40 features are missing", store.read, KEYS)
    store.write([KEYS[k] for k in missing], ROWS[missing])
    np.testing.assert_array_equal(FeatureStore(filled.folder, SPEC).read(KEYS), ROWS)


def test_every_flipped_byte_of_a_shard_is_noticed(tmp_path):
    folder = tmp_path / "store"
    FeatureStore(folder, SPEC).write(KEYS[:2], ROWS[:2])
    (path,) = folder.glob("*.safetensors")
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        store = FeatureStore(folder, SPEC)
        assert not len(store)
        for aside in folder.glob("*.bad"):
            aside.unlink()


def test_a_shard_of_another_store_is_not_taken(filled, tmp_path, caplog):
    other = FeatureStore(tmp_path / "other", dataclasses.replace(SPEC, digest="e" * 64))
    other.write(KEYS[:3], ROWS[:3])
    (shard,) = other.folder.glob("*.safetensors")
    shard.rename(filled.folder / shard.name)
    assert len(FeatureStore(filled.folder, SPEC)) == 40
    assert "shard of another store" in caplog.text


@pytest.mark.parametrize(
    ("change", "content", "message"),
    [
        ({"digest": "e" * 64}, None, "digest="),
        ({"patches": "float16"}, None, 'patches="none"; expected patches="float16"'),
        ({}, b"", r"store\.json: Input data was truncated"),
        ({}, b'{"stepcot_jax": "0.0.1", "kind": "image"}', r"missing required field .*written by stepcot_jax 0\.0\.1"),
    ],
)
def test_a_store_of_another_spec_and_a_bad_description_are_refused(filled, change, content, message):
    spec = dataclasses.replace(SPEC, **change)
    if content is not None:
        (filled.folder / "store.json").write_bytes(content)
    refuse(message, FeatureStore, filled.folder, spec)
    assert (spec.folder_name == SPEC.folder_name) == (not change)


def test_folders_that_are_no_store_are_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for folder, spec, message in (
        (tmp_path, SPEC, r"contains 'notes.txt' and no store.json"),
        (tmp_path / "notes.txt" / "store", SPEC, "cannot be used as a feature store"),
        (tmp_path / "nothing", None, r"store\.json: cannot be read"),
    ):
        refuse(message, FeatureStore, folder, spec)
    assert not (tmp_path / "store.json").exists()


def test_a_write_that_fails_leaves_the_store_as_it_was(filled, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        refuse("No space left on device", filled.write, [digest_fields("test", number=99)], ROWS[:1])
    assert not list(filled.folder.glob(".*"))
    assert len(FeatureStore(filled.folder, SPEC)) == 40


def test_a_shard_that_vanishes_while_reading_is_named(filled):
    victim = shards(filled)[0]
    victim.write_bytes(victim.read_bytes()[:300])
    refuse(f"{victim.name}: can no longer be read", filled.read, KEYS)


def test_features_are_in_memory_up_to_a_limit_and_read_by_index_beyond_it(filled):
    found = open_features(filled, KEYS[::-1], max_bytes=800)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, ROWS[::-1])
    lazy = open_features(filled, KEYS, max_bytes=799)
    assert isinstance(lazy, StoredFeatures)
    assert (len(lazy), lazy.shape, lazy.dtype) == (40, (40, 5), np.float32)
    for index in (3, -1, slice(5, 9), [7, 7, 0], np.array([[1, 2], [3, 4]]), np.int64(4)):
        np.testing.assert_array_equal(lazy[index], ROWS[index])
    assert lazy[[]].shape == (0, 5)
    with pytest.raises(IndexError):
        lazy[40]
    with pytest.raises(IndexError, match="whole numbers"):
        lazy[np.ones(40, bool)]
    refuse("1 of 2 features are missing", open_features, filled, [KEYS[0], digest_fields("test", number=99)])


READ_ALL = """
import os, pathlib, resource, sys
from stepcot_jax.features.store import digest_fields
from stepcot_jax.features.store import FeatureStore
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store = FeatureStore(pathlib.Path(sys.argv[1]))
keys = [digest_fields("test", number=number) for number in range(400)]
for start in range(0, 400, 4):
    store.read_patches(keys[start : start + 4])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_reading_by_index_takes_little_memory_and_few_files(tmp_path):
    """120 MB of patch tokens are verified and read within some MB, and no file stays open."""
    store = FeatureStore(
        tmp_path / "store", dataclasses.replace(SPEC, patches="float32", details={"patch_shape": (50, 1500)})
    )
    tokens = np.ones((20, 50, 1500), np.float32)
    for start in range(0, 400, 20):
        keys = [digest_fields("test", number=number) for number in range(start, start + 20)]
        store.write(keys, np.zeros((20, 5)), tokens)
    command = [sys.executable, "-c", READ_ALL, store.folder]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    grown_kilobytes, num_open = map(int, run.stdout.split())
    assert grown_kilobytes < 30_000
    assert num_open < 10
