import dataclasses
import os

import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.features.store import FeatureStore, StoredFeatures, StoreSpec, digest_fields, open_features

SPEC = StoreSpec(encoder="fake", digest="d" * 64, width=5, details={"size": 4, "mean": (0.5, 0.1)})
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
    for store in (filled, FeatureStore(filled.folder, SPEC)):
        assert len(store) == 40
        np.testing.assert_array_equal(store.read([KEYS[k] for k in order]), ROWS[order])
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


@pytest.mark.parametrize("keep", [lambda content: content[:99], lambda content: content[:-1] + b"?"])
def test_a_damaged_shard_is_named_and_its_features_are_made_anew(filled, caplog, keep):
    victim = shards(filled)[1]
    victim.write_bytes(keep(victim.read_bytes()))
    store = FeatureStore(filled.folder, SPEC)
    assert (len(store), len(caplog.messages)) == (30, 1)
    assert f"{victim}: its content does not match its name" in caplog.text
    missing = [k for k in range(40) if KEYS[k] not in store]
    refuse("10 of 40 features are missing", store.read, KEYS)
    store.write([KEYS[k] for k in missing], ROWS[missing])
    np.testing.assert_array_equal(FeatureStore(filled.folder, SPEC).read(KEYS), ROWS)


def test_a_shard_of_another_store_is_not_taken(filled, tmp_path, caplog):
    other = FeatureStore(tmp_path / "other", dataclasses.replace(SPEC, digest="e" * 64))
    other.write(KEYS[:3], ROWS[:3])
    (shard,) = other.folder.glob("*.safetensors")
    shard.rename(filled.folder / shard.name)
    assert len(FeatureStore(filled.folder, SPEC)) == 40
    assert "shard of another store" in caplog.text


def test_a_store_of_another_spec_and_a_folder_that_cannot_be_one_are_refused(filled, tmp_path):
    for change in ({"digest": "e" * 64}, {"patches": "float16"}):
        spec = dataclasses.replace(SPEC, **change)
        assert spec.folder_name != SPEC.folder_name
        refuse(r"store\.json: holds features of .*another folder", FeatureStore, filled.folder, spec)
    (tmp_path / "file").touch()
    refuse("cannot be used as a feature store", FeatureStore, tmp_path / "file" / "store", SPEC)


def test_a_write_that_fails_leaves_the_store_as_it_was(filled, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        refuse("No space left on device", filled.write, [digest_fields("test", number=99)], ROWS[:1])
    assert not list(filled.folder.glob(".*"))
    assert len(FeatureStore(filled.folder, SPEC)) == 40


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
