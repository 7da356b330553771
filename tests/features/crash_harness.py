"""Processes that fill a store and are killed: run by `test_interrupted.py` in a process of its own, without JAX.

Forking here is cheap, so that many kills take seconds. Prints a JSON object with what happened.
"""

import json
import os
import pathlib
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from features.fake_encoders import FakeImageEncoder, make_items

from stepcot_jax.features.encode import encode_images
from stepcot_jax.features.store import FeatureStore, describe_image_store

NUM_IMAGES, BATCH_SIZE, SHARD_SIZE = 60, 4, 8


def fill(folder, log, *, numbers=None, die_at=None):
    """Fill a store, noting every encoded image; `die_at` (when, count) dies around that fsync."""
    if die_at is not None:
        _die_at_fsync(*die_at)

    def visit(encoded):
        os.write(log, "".join(f"{number}\n" for number in encoded).encode())
        time.sleep(0.001)

    encoder = FakeImageEncoder(visit=visit)
    store = FeatureStore(folder, describe_image_store(encoder))
    items = make_items(range(NUM_IMAGES) if numbers is None else numbers, encoder)
    encode_images(encoder, items, store, batch_size=BATCH_SIZE, shard_size=SHARD_SIZE, num_threads=1)


def _die_at_fsync(when, count):
    synchronise, calls = os.fsync, iter(range(count))

    def fsync(descriptor):
        last = next(calls) == count - 1
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        synchronise(descriptor)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync


def start(folder, log, **options):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        fill(folder, descriptor, **options)
        code = 0
    finally:
        os._exit(code)


def stored_numbers(folder):
    encoder = FakeImageEncoder()
    if not (folder / "store.json").exists():
        return set()
    store = FeatureStore(folder, describe_image_store(encoder))
    return {number for number, item in enumerate(make_items(range(NUM_IMAGES), encoder)) if item.key in store}


def run_once(folder, log, *, die_at=None):
    """One process; returns whether it was killed, and how many images it encoded, those that the store had first."""
    log.unlink(missing_ok=True)
    stored = stored_numbers(folder)
    child = start(folder, log, die_at=die_at)
    status = os.waitpid(child, 0)[1]
    encoded = [int(line) for line in log.read_text().split()] if log.exists() else []
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a process that was not killed failed")
    return os.WIFSIGNALED(status), len(stored.intersection(encoded)), len(encoded)


def kill_at_every_fsync(base):
    rounds = []
    for when in ("before", "after"):
        for count in range(1, 18):
            folder, log = base / f"{when}{count}", base / "log"
            killed, _, first = run_once(folder, log, die_at=(when, count))
            _, again, second = run_once(folder, log)
            rounds.append({"folder": str(folder), "kills": int(killed), "again": again, "encoded": first + second})
    return rounds


def fill_together(base, *, num_rounds):
    rounds = []
    for number in range(num_rounds):
        folder, log = base / f"together{number}", base / f"log{number}"
        children = [start(folder, log, numbers=list(range(NUM_IMAGES))[::step]) for step in (1, -1)]
        codes = [os.waitpid(child, 0)[1] for child in children]
        rounds.append({"folder": str(folder), "codes": codes, "encoded": len(log.read_text().split())})
    return rounds


if __name__ == "__main__":
    base = pathlib.Path(sys.argv[1])
    print(json.dumps({"fsync": kill_at_every_fsync(base), "together": fill_together(base, num_rounds=4)}))
