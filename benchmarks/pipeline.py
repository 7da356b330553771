"""The input pipeline from files of 1024 px to normalised batches of 224 px, compared with a PyTorch DataLoader.

Both read the same PNG files with two worker processes and return float32 batches of 32. Before each is timed, its
prefetched batches are drained, while the other is idle with full buffers. The start-up time is for 10,068 cases in
small images, so that decoding does not hide the time that grows with the number of cases.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from benchmarks.measure import median_of_ratios, time_in_turn
from configs import base
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.batches import iterate, training_batches
from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import Settings, make_settings

NUM_CASES = 10_068
BATCH_SIZE = 32
NUM_WORKERS = 2
RADIOGRAPH_SIZE, SIZE = 1024, 224
_NUM_DRAWN, _NUM_ROLLED = 40, 5
_NUM_BATCHES, _NUM_DRAINED = 12, 16  # more than either prefetches
_SMALL_SIZE = 128


def measure_pipeline(rounds: int) -> dict[str, float]:
    """Return images per second, the ratio to PyTorch's if installed, and seconds to read the records and to start."""
    with tempfile.TemporaryDirectory(prefix="stepcot-pipeline-") as folder:
        root = pathlib.Path(folder)
        return measure_throughput(root / "large", rounds) | measure_start(root, rounds)


def measure_throughput(root: pathlib.Path, rounds: int) -> dict[str, float]:
    """Return the images per second of both pipelines, measured in turn."""
    write_radiographs(root)
    tasks: dict[str, Callable[[], object]] = {}
    with contextlib.ExitStack() as stack:
        readers: dict[str, Any] = {"pipeline": stack.enter_context(_ours(root))}
        with contextlib.suppress(ImportError):
            readers["pipeline_torch"] = _torchs(root)
        for name, reader in readers.items():
            tasks[f"{name}_drain"] = lambda reader=reader: [next(reader) for _ in range(_NUM_DRAINED)]
            tasks[name] = lambda reader=reader: [np.asarray(next(reader)).dtype for _ in range(_NUM_BATCHES)]
        timings = time_in_turn(tasks, rounds=rounds)
    numbers = {}
    for name in readers:
        numbers[f"{name}_images_per_second"] = _NUM_BATCHES * BATCH_SIZE / timings[name].median
        numbers[f"{name}_spread"] = timings[name].spread
    if "pipeline_torch" in timings:
        numbers["pipeline_vs_torch"] = median_of_ratios(timings["pipeline_torch"], timings["pipeline"])
    return numbers


def measure_start(root: pathlib.Path, rounds: int) -> dict[str, float]:
    """Return the seconds to check the records of a full-size folder, and from it to the first batch."""
    files = root / "files"
    write_cases(files)

    def start() -> None:
        with contextlib.closing(_batches(_settings(files, num_workers=0))) as batches:
            next(batches)

    tasks = {"records": lambda: read_records(files), "pipeline_start": start}
    timings = time_in_turn(tasks, rounds=min(rounds, 5))
    numbers = {f"{name}_seconds": timing.median for name, timing in timings.items()}
    return numbers | {f"{name}_spread": timing.spread for name, timing in timings.items()}


def write_radiographs(root: pathlib.Path, *, num_drawn: int = _NUM_DRAWN) -> None:
    """Write a data root of radiographs, five a phantom, each shifted within its image, as 8-bit grey PNG."""
    cases = []
    for index in range(num_drawn):
        drawn = draw_case(index, seed=0, size=RADIOGRAPH_SIZE, prevalence="flat")
        for roll in range(_NUM_ROLLED):
            name = f"images/{index}_{roll}.png"
            _save(root / name, np.roll(drawn.image, 37 * roll, axis=1))
            cases.append(msgspec.structs.replace(drawn.case, patient=f"{index}_{roll}", image=name))
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)


def write_cases(root: pathlib.Path) -> None:
    """Write a data root of full size that repeats a few cases."""
    drawn = [draw_case(index, seed=0, size=_SMALL_SIZE) for index in range(200)]
    cases = []
    for index in range(NUM_CASES):
        source = drawn[index % len(drawn)]
        name = f"images/{index:05d}.png"
        _save(root / name, source.image)
        cases.append(msgspec.structs.replace(source.case, patient=f"patient {index:05d}", image=name))
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)


def _save(path: pathlib.Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _settings(root: pathlib.Path, *, num_workers: int) -> Settings:
    config = base.get_config()
    config.data.source, config.data.root = "folder", str(root)
    config.data.check_images = "on_use"
    config.data.cache_megabytes = 0.0
    config.data.num_workers = num_workers
    config.data.split_fractions = (0.98, 0.01, 0.01)
    return make_settings(config)


def _batches(settings: Settings) -> Any:
    dataset = load_dataset(settings, preprocessing=Preprocessing(SIZE))
    num_workers = settings.data.num_workers
    batches = training_batches(dataset, batch_size=BATCH_SIZE, seed=0)
    return iterate(batches, num_threads=1 if num_workers else NUM_WORKERS, num_workers=num_workers)


@contextlib.contextmanager
def _ours(root: pathlib.Path) -> Iterator[Iterator[np.ndarray]]:
    with contextlib.closing(_batches(_settings(root, num_workers=NUM_WORKERS))) as batches:
        yield (batch["images"] for batch in batches)


class TorchImages:
    """A PyTorch data set of the same files: decoded by Pillow, resized as CLIP does, normalised, channels first."""

    def __init__(self, paths: list[pathlib.Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> Any:
        import torch

        with Image.open(self._paths[index % len(self._paths)]) as opened:
            image = opened.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
        return pixels.float().div_(255).sub_(mean).div_(std)


def _torchs(root: pathlib.Path) -> Iterator[Any]:
    import torch

    # In order: both pipelines read every image equally often, and no permutation of a billion is drawn.
    return iter(
        torch.utils.data.DataLoader(
            TorchImages(sorted(root.glob("images/*.png"))),  # type: ignore[arg-type]
            batch_size=BATCH_SIZE,
            num_workers=NUM_WORKERS,
            multiprocessing_context="spawn",  # a process that runs JAX must not be forked
        )
    )
