import threading

from features.fake_encoders import FakeImageEncoder, make_items

from stepcot_jax.features.encode import Processes, encode_together
from stepcot_jax.features.store import FeatureStore, describe_image_store

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
