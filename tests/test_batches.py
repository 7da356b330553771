"""Batches: a function of seed and step; every case exactly once in evaluation."""

import collections

import numpy as np
import pytest

from stepcot_jax.batches import batches_per_epoch, evaluation_batches, iterate, training_batches
from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.cases import Case
from stepcot_jax.data.dataset import Dataset, PixelCache
from stepcot_jax.data.images import Preprocessing
from stepcot_jax.data.splits import Splits

PREPROCESSING = Preprocessing(size=4)


def dataset(num_train=10, num_val=7):
    num_cases = num_train + num_val
    cases = tuple(Case(f"p{i}", f"images/{i}.png", "", "", (i % 2,), ("",)) for i in range(num_cases))
    chain = Chain((Step("Only", "?", ("Yes", "No")),))
    order = np.random.default_rng(0).permutation(num_cases)
    splits = Splits(tuple(order[:num_train]), tuple(order[num_train:]), ())
    pixels = PixelCache(lambda i: np.full((4, 4, 3), i, np.uint8), budget_bytes=5 * 16)
    return Dataset(chain, cases, splits, pixels, PREPROCESSING)


def case_of(image):
    """The case whose pixels these are, read back from the normalised picture."""
    return round(float((image[0, 0, 0] * PREPROCESSING.std[0] + PREPROCESSING.mean[0]) * 255))


def test_a_batch_depends_on_seed_and_step_alone():
    data = dataset()
    one, other = (training_batches(data, batch_size=4, seed=3) for _ in range(2))
    for step in (7, 0, 3, 7):
        for name in ("images", "labels", "index"):
            np.testing.assert_array_equal(one[step][name], other[step][name])
    assert any((one[k]["index"] != training_batches(data, batch_size=4, seed=4)[k]["index"]).any() for k in range(3))


def test_every_training_case_comes_once_before_any_comes_again():
    data = dataset()
    batches = training_batches(data, batch_size=4, seed=0)
    seen = np.concatenate([batches[step]["index"] for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])


def test_images_labels_and_index_belong_together():
    data = dataset()
    of_split = {
        data.splits.train: training_batches(data, batch_size=4, seed=0)[5],
        data.splits.val: evaluation_batches(data, "val", batch_size=4)[0],
    }
    for split, batch in of_split.items():
        split = (
            data.splits.train
            if len(batch["index"]) and case_of(batch["images"][0]) in data.splits.train
            else data.splits.val
        )
        for image, labels, index in zip(batch["images"], batch["labels"], batch["index"], strict=True):
            assert case_of(image) == split[index]
            assert labels.tolist() == list(data.cases[split[index]].labels)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 50])
def test_evaluation_counts_every_case_once_and_marks_the_padding(batch_size):
    data = dataset()
    batches = list(iterate(evaluation_batches(data, "val", batch_size=batch_size), num_threads=2))
    sizes = {batch["images"].shape[0] for batch in batches}
    assert len(sizes) == 1
    seen = [index for batch in batches for index, there in zip(batch["index"], batch["present"], strict=True) if there]
    assert seen == list(range(7))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_iterator_goes_on_where_its_saved_state_was(num_threads):
    data = dataset()
    batches = training_batches(data, batch_size=4, seed=0)
    iterator = iterate(batches, num_threads=num_threads)
    for _ in range(4):
        next(iterator)
    state = iterator.get_state()
    expected = [next(iterator)["index"] for _ in range(3)]
    fresh = iterate(batches, num_threads=num_threads)
    fresh.set_state(state)
    np.testing.assert_array_equal([next(fresh)["index"] for _ in range(3)], expected)
    np.testing.assert_array_equal([batches[step]["index"] for step in (4, 5, 6)], expected)


def test_an_epoch_is_at_least_one_batch():
    assert batches_per_epoch(dataset(), 4) == 2
    assert batches_per_epoch(dataset(), 64) == 1
    assert training_batches(dataset(), batch_size=64, seed=0)[0]["labels"].shape == (64, 1)


def test_pixels_beyond_the_budget_are_read_again_and_equal():
    reads = collections.Counter()

    def read(index):
        reads[index] += 1
        return np.full((4, 4, 3), index, np.uint8)

    cache = PixelCache(read, budget_bytes=20)
    for index in range(2):
        cache.put(index, read(index))
    for index in (0, 1, 0, 1):
        np.testing.assert_array_equal(cache[index], np.full((4, 4, 3), index))
    assert reads == {0: 1, 1: 3}
    coloured = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    cache = PixelCache(read, budget_bytes=48)
    cache.put(5, coloured)
    np.testing.assert_array_equal(cache[5], coloured)
