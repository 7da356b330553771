import logging
import subprocess
import sys
import threading

import numpy as np
import pytest
from features.fake_encoders import FakeImageEncoder, FakeTextEncoder, draw, make_items

from stepcot_jax.features.encode import (
    EncodeCounts,
    ImageItem,
    Processes,
    encode_images,
    encode_prompts,
    encode_together,
)
from stepcot_jax.features.store import FeatureStore, describe_image_store, open_features
from stepcot_jax.host.errors import BadInput


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.INFO, "stepcot_jax.features")


def open_store(tmp_path, encoder, **options):
    return FeatureStore(tmp_path / "store", describe_image_store(encoder, **options))


def test_each_distinct_image_is_encoded_once_in_batches_of_one_shape(tmp_path, caplog):
    encoder = FakeImageEncoder()
    store = open_store(tmp_path, encoder)
    items = make_items([*range(10), 3, 3, 9], encoder)
    counts = encode_images(encoder, items, store, batch_size=4, shard_size=5)
    assert counts == EncodeCounts(encoded=10, read=0)
    assert encoder.shapes == [(4, 4, 4, 3)] * 3
    assert encoder.images == [*range(10), 9, 9]  # the filling repeats the last image
    assert caplog.messages[-1] == "images: 10 encoded, 0 read from the store"
    expected = FakeImageEncoder().encode(np.stack([draw(k) / np.float32(127.5) - 1 for k in range(10)]))
    np.testing.assert_allclose(open_features(store, [item.key for item in items[:10]]), expected, rtol=1e-5)


def test_only_what_is_missing_is_read_and_encoded_and_patches_are_stored_beside_the_features(tmp_path, caplog):
    encoder, reads = FakeImageEncoder(), []
    store = open_store(tmp_path, encoder, patches="float16")
    encode_images(encoder, make_items(range(0, 20, 2), encoder), store, batch_size=4)
    items = make_items(range(18), encoder, reads)
    encode_images(encoder, items, store, batch_size=4)
    assert reads == list(range(1, 18, 2))
    assert caplog.messages[-1] == "images: 9 encoded, 9 read from the store"
    patches = store.read_patches([item.key for item in items])
    assert (patches.shape, patches.dtype) == ((18, 16, 3), np.float16)
    np.testing.assert_allclose(
        patches[:, 0, 0], [draw(k)[0, 0, 0] / 127.5 - 1 for k in range(18)], rtol=2e-3, atol=1e-3
    )


def test_a_failing_image_and_a_feature_that_is_not_finite_name_their_case_and_lose_nothing(tmp_path, monkeypatch):
    encoder = FakeImageEncoder()
    store = open_store(tmp_path, encoder)
    items = make_items(range(12), encoder)

    def fail():
        raise BadInput("images/a.png: found an empty file")

    items[9] = ImageItem(items[9].key, fail, "case 9 (image_path 'images/a.png')")
    with pytest.raises(BadInput, match=r"case 9 \(image_path 'images/a.png'\): cannot be encoded: .*empty file"):
        encode_images(encoder, items, store, batch_size=4)
    assert len(open_store(tmp_path, encoder)) == 8
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda images: np.where(np.arange(4)[:, None] == 2, np.nan, encode(images)))
    with pytest.raises(BadInput, match="case 22: its feature from fake is not finite"):
        encode_images(encoder, make_items(range(20, 28), encoder), store, batch_size=4)
    assert len(store) == 8


def test_prompts_are_checked():
    encoder = FakeTextEncoder()
    encoder.encode = lambda texts, pooling: np.array([[1.0], [np.nan]])
    with pytest.raises(BadInput, match="text 'two': its feature from fake text is not finite"):
        encode_prompts(encoder, ["one", "two"], pooling="cls")


def test_importing_the_features_imports_no_framework():
    code = (
        "import sys; import stepcot_jax.features.encode, stepcot_jax.features.store, "
        "stepcot_jax.features.importing, stepcot_jax.features.frozen_encoders; "
        "print([name for name in ('jax', 'torch', 'transformers', 'tensorflow') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


NUMBERS = [*range(40), 3, 5]  # two images are in the data twice


def fill(folder, encoder, processes, said):
    store = FeatureStore(folder, describe_image_store(encoder))
    items = make_items(NUMBERS, encoder)
    return encode_together(encoder, items, store, processes, say=said.append, batch_size=4), store


def test_each_image_is_encoded_by_one_process_and_found_by_all(tmp_path):
    count = 3
    barrier = threading.Barrier(count)
    encoders = [FakeImageEncoder() for _ in range(count)]
    found = [None] * count

    def run(index):
        said = []
        processes = Processes(index, count, lambda name: barrier.wait(timeout=60) and None)
        found[index] = (*fill(tmp_path, encoders[index], processes, said), said)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shares = [set(encoder.images) for encoder in encoders]
    assert all(shares)
    assert set.union(*shares) == set(NUMBERS)
    assert sum(map(len, shares)) == 40
    for index, (counts, store, said) in enumerate(found):
        assert (counts.encoded, counts.read, len(store)) == (0, 40, 40)
        assert said == [f"images of process {index} of {count}: {len(shares[index])} encoded, 0 read from the store"]


def test_what_the_others_left_out_is_made_all_the_same(tmp_path):
    encoder = FakeImageEncoder()
    counts, store = fill(tmp_path, encoder, Processes(0, 2, lambda name: None), said := [])
    assert len(said) == 1
    assert 0 < counts.encoded < 40
    assert len(store) == 40
