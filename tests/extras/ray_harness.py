"""Encodes a folder of numbered images on a local Ray cluster; a program of its own, so that it can be killed.

python -m extras.ray_harness STORE LOG NUM_IMAGES NUM_WORKERS [SECONDS_A_BATCH]

Prints the counts. The log has a line for each start of a worker and for each encoded image: "PID start", "PID NUMBER".
Workers wait while LOG.hold exists.
"""

import dataclasses
import functools
import os
import pathlib
import sys
import time
import types

from features.fake_encoders import FakeImageEncoder, draw

from stepcot_jax.extras.ray_blocks import RayCluster
from stepcot_jax.features.encode import encode_in_blocks, image_keys
from stepcot_jax.features.store import FeatureStore, describe_image_store, digest_pixels

BATCH_SIZE, SHARD_SIZE = 4, 8


def note(log, line):
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{os.getpid()} {line}\n".encode())
    os.close(descriptor)


def load(log, seconds):
    """An encoder that notes its worker and what it encodes."""

    def visit(numbers):
        time.sleep(seconds)
        while os.path.exists(f"{log}.hold"):  # noqa: PTH110
            time.sleep(0.02)
        for number in numbers:
            note(log, number)

    note(log, "start")
    return FakeImageEncoder(visit=visit)


@dataclasses.dataclass
class Cases:
    image_paths: list


def make_dataset(num_images):
    """What the engine reads of a dataset: every tenth image is the one before it again."""
    numbers = [number - (number % 10 == 9) for number in range(num_images)]
    pixels = [draw(number) for number in numbers]
    cases = Cases([f"{number}.png" for number in numbers])
    keys = image_keys(FakeImageEncoder(), list(map(digest_pixels, pixels)))
    return types.SimpleNamespace(pixels=pixels, cases=cases), keys


def encode(folder, log, num_images, num_workers, seconds=0.0):
    dataset, keys = make_dataset(num_images)
    store = FeatureStore(folder, describe_image_store(FakeImageEncoder()))
    return encode_in_blocks(
        functools.partial(load, str(log), seconds),
        dataset,
        keys,
        store,
        RayCluster("", num_workers, 1.0),
        batch_size=BATCH_SIZE,
        shard_size=SHARD_SIZE,
        num_threads=1,
    )


if __name__ == "__main__":
    out, log, number, workers, *slow = sys.argv[1:]
    print(encode(pathlib.Path(out), log, int(number), int(workers), *map(float, slow)).describe("images"))
