"""Images a second of `predict FOLDER --out answers.csv`: `python -m benchmarks.predict_throughput RUN [--rounds 5]`.

The same PNG files of 1024 px go through the training pipeline, with the settings of the run, and its image encoder,
without gradients. Both are measured in turn with compiled programs, in one process; a ratio is the median of rounds.
Seconds of CPU are measured too: on a machine with other load they say more than the clock.
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.measure import Timing, median_of_ratios, time_in_turn
from benchmarks.pipeline import write_radiographs
from configs import base
from stepcot_jax.data.batches import evaluation_batches, iterate
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.reading.answer_sheet import in_order, write_sheet
from stepcot_jax.reading.image_reader import ImageReader, load_chain_reader
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import make_settings
from stepcot_jax.systems.networks import encode_images
from stepcot_jax.tools.predict import BATCH_SIZE


def measure_predict(workdir: pathlib.Path, *, num_drawn: int, rounds: int) -> dict[str, float]:
    """Return images per second of both, and the ratio of `predict` to the pipeline."""
    with tempfile.TemporaryDirectory(prefix="stepcot-predict-") as folder:
        root = pathlib.Path(folder)
        write_radiographs(root, num_drawn=num_drawn)
        reader = load_chain_reader(workdir, batch_size=BATCH_SIZE)
        paths = sorted(root.glob("images/*.png"))

        def predict() -> None:
            rows = in_order(paths, lambda note: reader.read_files(paths, refuse=note), refuse=print)
            write_sheet(root / "answers.csv", rows, reader.chain)

        used: dict[str, list[float]] = {"predict": [], "pipeline": []}
        tasks = {"predict": predict, "pipeline": _pipeline(root, reader)}
        timings = time_in_turn({name: _count_cpu(task, used[name]) for name, task in tasks.items()}, rounds=rounds)
    cpu = {name: Timing(tuple(seconds[-rounds:])) for name, seconds in used.items()}
    numbers = {f"{name}_images_per_second": len(paths) / timing.median for name, timing in timings.items()}
    numbers |= {f"{name}_spread": timing.spread for name, timing in timings.items()}
    numbers |= {f"{name}_cpu_ms_per_image": 1000 * timing.median / len(paths) for name, timing in cpu.items()}
    numbers["predict_vs_pipeline"] = median_of_ratios(timings["pipeline"], timings["predict"])
    return numbers | {"predict_vs_pipeline_cpu": median_of_ratios(cpu["pipeline"], cpu["predict"])}


def _count_cpu(task: Callable[[], object], seconds: list[float]) -> Callable[[], object]:
    """Return the task with its seconds of CPU, all threads together, appended to a list at each call."""

    def run() -> None:
        start = time.process_time()
        task()
        seconds.append(time.process_time() - start)

    return run


def _pipeline(root: pathlib.Path, reader: ImageReader) -> Callable[[], object]:
    """Return a task that reads every image once, as training does, and encodes the batches."""
    trained, params = reader.trained, jax.device_put(reader.trained.params[reader.model])
    config = base.get_config()
    config.data.source, config.data.root = "folder", str(root)
    config.data.check_images, config.data.cache_megabytes = "on_use", 0.0
    dataset = load_dataset(make_settings(config), preprocessing=trained.preprocessing)
    everything = tuple(range(len(dataset.labels)))
    batches = evaluation_batches(
        dataclasses.replace(dataset, splits=Splits((), (), everything)),
        "test",
        batch_size=trained.run.settings.training.batch_size,
    )
    encode = jax.jit(functools.partial(encode_images, trained.networks))

    def run() -> None:
        with contextlib.closing(iterate(batches, num_threads=trained.run.settings.data.batching_threads)) as read:
            for batch in read:
                np.asarray(encode(params, {"images": batch["images"]}))

    return run


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict_throughput")
    parser.add_argument("workdir", type=pathlib.Path, help="of a run that trained its image encoder")
    parser.add_argument("--phantoms", type=int, default=16, help="drawn; each gives five images (default 16)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = measure_predict(options.workdir, num_drawn=options.phantoms, rounds=options.rounds)
    load_average = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load_average:.1f}")
    for name, number in found.items():
        print(f"{name}: {number:.3g}")


if __name__ == "__main__":
    main()
