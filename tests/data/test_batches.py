import dataclasses
import functools
import multiprocessing
import os
import pickle
import signal
import struct
import sys
import time

import grain
import msgspec
import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.chain import Chain, Step
from stepcot_jax.data import reading_ahead
from stepcot_jax.data.batches import evaluation_batches, iterate, training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.record import Record

pytestmark = pytest.mark.slow
PREPROCESSING = Preprocessing(size=4)


def dataset(num_train=10, num_val=7):
    num_cases = num_train + num_val
    cases = tuple(
        Record(patient=f"p{i}", image=f"images/{i}.png", answers=(i % 2,), reasoning=("",)) for i in range(num_cases)
    )
    chain = Chain((Step("Only", "?", ("Yes", "No")),))
    order = np.random.default_rng(0).permutation(num_cases)
    splits = Splits(tuple(order[:num_train]), tuple(order[num_train:]), ())
    pixels = PixelCache(lambda i: np.full((4, 4, 3), i, np.uint8), budget_bytes=5 * 16)
    return Dataset(chain, cases, splits, pixels, PREPROCESSING)


def case_of(image):
    """The case whose pixels these are, read back from the normalised picture."""
    return round(float((image[0, 0, 0] * PREPROCESSING.std[0] + PREPROCESSING.mean[0]) * 255))


def test_a_batch_depends_on_seed_and_step_and_has_every_case_once_with_its_labels():
    data = dataset()
    one, other = (training_batches(data, batch_size=4, seed=3) for _ in range(2))
    for step in (7, 0, 3, 7):
        for name in ("images", "labels", "index"):
            np.testing.assert_array_equal(one[step][name], other[step][name])
    assert any((one[k]["index"] != training_batches(data, batch_size=4, seed=4)[k]["index"]).any() for k in range(3))
    batches = training_batches(data, batch_size=4, seed=0)
    seen = np.concatenate([batches[step]["index"] for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert list(seen[:10]) != list(seen[10:])
    train, val = training_batches(data, batch_size=4, seed=0)[5], evaluation_batches(data, "val", batch_size=4)[0]
    for split, batch in ((data.splits.train, train), (data.splits.val, val)):
        assert len(batch["index"]) == 4
        for image, labels, index in zip(batch["images"], batch["labels"], batch["index"], strict=True):
            assert (case_of(image), labels.tolist()) == (split[index], list(data.cases[split[index]].answers))


def read_number(index):
    return np.full((4, 4), index, np.uint8)


def read_coloured(index):
    return np.stack([np.full((4, 4), index + channel, np.uint8) for channel in range(3)], axis=-1)


def read_mixed(index):
    return read_coloured(index) if index % 3 == 0 else read_number(index)


def dataset_reading(read, **sizes):
    return dataclasses.replace(dataset(**sizes), pixels=PixelCache(read, 0))


def assert_equal(batch, expected):
    assert sorted(batch) == sorted(expected)
    for name in batch:
        np.testing.assert_array_equal(batch[name], expected[name])
        assert batch[name].dtype == expected[name].dtype


def test_workers_give_the_same_batches_from_any_position_and_a_killed_one_ends_in_a_message():
    batches = training_batches(dataset_reading(read_mixed, num_train=23), batch_size=4, seed=5, augment=True)
    alone = iterate(batches, num_threads=2)
    for step in range(3):
        assert_equal(next(alone), batches[step])
    iterator = iterate(batches, num_threads=1, num_workers=2)
    iterator.set_state(alone.get_state())
    for step in range(3, 8):
        assert_equal(next(iterator), batches[step])
    alone.set_state(iterator.get_state())
    assert_equal(next(alone), batches[8])
    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(RunStopped, match=r"one of the 2 worker processes .* process [0-9]+ was ended by SIGKILL"):
        take(iterator, 100)
    assert time.monotonic() - start < 90  # a few seconds of grace; a wait for the worker never ends
    assert not multiprocessing.active_children()


def take(iterator, number):
    return [next(iterator) for _ in range(number)]


def read_badly(index):
    raise BadInput(f"data.json: record {index}: cannot be decoded")


def test_what_a_worker_refuses_arrives_as_it_is_and_what_cannot_cross_as_a_message():
    data = dataset_reading(read_badly)
    iterator = iterate(evaluation_batches(data, "val", batch_size=3), num_threads=1, num_workers=1)
    refuse(f"record {data.splits.val[0]}: cannot be decoded", next, iterator)
    assert not multiprocessing.active_children()
    iterator = reading_ahead.ReadAhead(grain.MapDataset.range(9).map(refuse_oddly), int, num_threads=0, num_workers=1)
    refuse("ended with exit code 1", next, iterator, error=RunStopped)
    assert not multiprocessing.active_children()


def end_while_writing(marks, at, step):
    """A worker that has come to a batch announces a message, writes a part of it, and is no more."""
    (marks / str(step)).touch()
    if step == at:
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_put_dataset_elements_in_buffer":
            frame = frame.f_back
        if frame is not None:
            time.sleep(0.5)  # for the thread that writes what was read before
            writer = frame.f_locals["buffer"]._writer
            os.write(writer.fileno(), struct.pack("!i", 1000) + b"part")
            os.kill(os.getpid(), signal.SIGKILL)
    return np.int64(step)


def reader_that_ends(monkeypatch, marks, *, at):
    monkeypatch.setattr(reading_ahead, "_GRACE_SECONDS", 1.0)
    items = grain.MapDataset.range(10).map(functools.partial(end_while_writing, marks, at))
    # No threads in the worker: the writing must happen below the function whose frame has the pipe.
    return reading_ahead.ReadAhead(items, int, num_threads=0, num_workers=1)


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_that_ends_while_it_writes_leaves_nobody_waiting(monkeypatch, tmp_path):
    iterator = reader_that_ends(monkeypatch, tmp_path, at=0)
    refuse("SIGKILL", take, iterator, 10, error=RunStopped)
    assert not multiprocessing.active_children()


def test_no_worker_reads_before_it_is_known(monkeypatch, tmp_path):
    """However late this process looks for its workers: one that had read and ended by then would be forgotten."""
    look, reported = reading_ahead.RollCall.look, []

    def look_late(roll):
        if not reported:
            wait_for(lambda: len(list(roll.waiting.iterdir())) == 1)
            time.sleep(1.0)
            reported.extend(path.name for path in roll.waiting.iterdir())
            assert not list(tmp_path.iterdir())
        look(roll)

    monkeypatch.setattr(reading_ahead.RollCall, "look", look_late)
    iterator = reader_that_ends(monkeypatch, tmp_path, at=2)
    assert next(iterator) == 0
    refuse(f"process {reported[0]} was ended by SIGKILL", take, iterator, 10, error=RunStopped)


@pytest.mark.parametrize("hangs", [False, True])
def test_closing_waits_for_no_worker_that_is_gone_or_hangs(monkeypatch, tmp_path, hangs):
    iterator = reader_that_ends(monkeypatch, tmp_path, at=None if hangs else 3)
    assert next(iterator) == 0
    if hangs:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGSTOP)
    else:
        wait_for((tmp_path / "3").exists)
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 90  # a few seconds of grace; a wait for the worker never ends
    assert not multiprocessing.active_children()


def read_slowly(step):
    time.sleep(0.1)
    return np.int64(step)


def test_closing_at_the_start_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(reading_ahead, "_GRACE_SECONDS", 120.0)
    items = grain.MapDataset.range(10).map(read_slowly)
    for reported in (False, True):
        workers = reading_ahead._Workers(items, int, num_threads=0, num_workers=1)
        wait_for(lambda: len(multiprocessing.active_children()) == 1)
        if reported:
            wait_for(lambda roll=workers._roll: len(list(roll.waiting.iterdir())) == 1)
        start = time.monotonic()
        workers.close()
        assert time.monotonic() - start < 100
        assert not multiprocessing.active_children()


def test_signals_to_the_whole_group_are_left_to_the_parent():
    items = grain.MapDataset.range(20).map(read_slowly)
    workers = reading_ahead._Workers(items, int, num_threads=0, num_workers=1)
    found = []
    for number in (signal.SIGTERM, signal.SIGINT):
        wait_for(lambda: len(multiprocessing.active_children()) == 1)  # at first as soon as they are there
        for process in multiprocessing.active_children():
            os.kill(process.pid, number)
            os.kill(process.pid, signal.SIGTERM)
        found += [next(workers) for _ in range(5)]
    assert found == list(range(10))
    workers.close()
    assert not multiprocessing.active_children()


def refuse_oddly(_):
    error = ValueError("no")
    error.reason = lambda: "cannot be pickled"
    raise error


def test_processes_share_each_batch_and_grey_coloured_and_mixed_ones_are_normalised_alike():
    reads = []

    def read(index):
        reads.append(index)
        return read_number(index)

    data = dataset_reading(read)
    whole = training_batches(data, batch_size=6, seed=2, augment=True)[4]
    reads.clear()
    parts = [
        training_batches(data, batch_size=6, seed=2, augment=True, process_index=index, process_count=3)[4]
        for index in range(3)
    ]
    assert len(reads) == 6
    assert_equal({name: np.concatenate([part[name] for part in parts]) for name in whole}, whole)
    with pytest.raises(BadInput, match="batch size 7 is not a multiple of 3"):
        training_batches(data, batch_size=7, seed=2, process_index=0, process_count=3)
    for read in (read_number, read_coloured, read_mixed):
        data = dataset_reading(read)
        batch = training_batches(data, batch_size=5, seed=0)[1]
        cases = [data.splits.train[index] for index in batch["index"]]
        expected = normalise(np.stack([data.pixels[case] for case in cases]), PREPROCESSING)
        np.testing.assert_array_equal(batch["images"], expected)
        assert (batch["images"].dtype, len(np.unique(cases))) == (np.float32, 5)


@pytest.mark.parametrize(("batch_size", "count"), [(1, 1), (3, 1), (50, 1), (2, 2), (6, 2), (100, 2)])
def test_processes_evaluate_every_case_once_and_mark_the_padding(batch_size, count):
    data, seen, shapes = dataset(), [], set()
    for process in range(count):
        batches = evaluation_batches(data, "val", batch_size=batch_size, process_index=process, process_count=count)
        for batch in iterate(batches, num_threads=2):
            shapes.add((len(batches), *batch["images"].shape))
            seen += batch["index"][batch["present"]].tolist()
    assert (sorted(seen), len(shapes)) == (list(range(7)), 1)


def uneven_dataset():
    """A rare answer at step 1 in two of 64 cases, one at step 3 in two others, which nobody annotated at step 2."""
    data = dataset(num_train=64, num_val=1)
    labels = np.tile([0, 1, 0], (65, 1))
    first, last = np.array(data.splits.train)[:2], np.array(data.splits.train)[2:4]
    labels[first, 0], labels[last, 2], labels[last, 1] = 1, 1, -100
    cases = tuple(
        msgspec.structs.replace(case, answers=tuple(own), reasoning=("",) * 3)
        for case, own in zip(data.cases, labels.tolist(), strict=True)
    )
    chain = Chain(tuple(Step(name, "?", ("Yes", "No")) for name in ("First", "Second", "Last")))
    return dataclasses.replace(data, chain=chain, cases=cases)


def share_of_draws(data, sampling):
    """Share of the draws of the cases with the rare answer of step 1, and of those with the rare one of step 3."""
    batches = training_batches(data, batch_size=64, seed=0, sampling=sampling)
    drawn = np.concatenate([batches.read[step]["index"] for step in range(100)])
    return (drawn < 2).mean(), ((drawn == 2) | (drawn == 3)).mean()


def test_inverse_frequency_of_steps_is_the_mean_over_the_annotated_ones():
    """By hand: 1 / 62 and 1 / 2 at steps 1 and 3, 1 / 62 at step 2 where it is annotated."""
    at_first = (1 / 2 + 1 / 62 + 1 / 62) / 3
    at_last = (1 / 62 + 1 / 2) / 2
    total = 2 * at_first + 2 * at_last + 60 * (3 / 62) / 3
    found = share_of_draws(uneven_dataset(), "inverse_frequency_of_steps")
    np.testing.assert_allclose(found, [2 * at_first / total, 2 * at_last / total], atol=0.02)
    rare_at_first, rare_at_last = share_of_draws(uneven_dataset(), "inverse_frequency")
    assert (rare_at_last, rare_at_first) == (pytest.approx(0.5, abs=0.03), pytest.approx(0.5 * 2 / 62, abs=0.01))
    one, again, other = (
        training_batches(uneven_dataset(), batch_size=64, seed=seed, sampling="inverse_frequency").read[0]["index"]
        for seed in (0, 0, 1)
    )
    assert ((one == again).all(), (one == other).all()) == (True, False)


def test_augmentation_is_a_function_of_seed_step_and_row_and_a_copied_cache_keeps_nothing():
    picture = np.random.default_rng(0).integers(0, 256, (4, 4), np.uint8)
    data = dataset_reading(lambda index: picture)
    one, other, third = (training_batches(data, batch_size=4, seed=seed, augment=True) for seed in (3, 3, 4))
    assert_equal(one[5], other[5])
    images = [*one[5]["images"], *one[6]["images"], *third[5]["images"]]
    assert len({image.tobytes() for image in images}) == len(images)
    plain = evaluation_batches(data, "val", batch_size=3)[0]["images"]
    np.testing.assert_array_equal(plain[0], normalise(np.repeat(picture[..., None], 3, -1), PREPROCESSING))
    cache = PixelCache(read_number, 1e6)
    for index in range(100):
        cache.put(index, np.full((64, 64), index, np.uint8))
    content = pickle.dumps(cache)
    assert len(content) < 1000
    copy = pickle.loads(content)  # noqa: S301
    np.testing.assert_array_equal(copy[3], cache.read(3)[..., None].repeat(3, -1))
    assert not copy._kept
