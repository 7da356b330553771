"""Encoding of files into a feature store, compared with normalising and waiting in the thread that queues batches.

The encoder is light, so that the pipeline is what is measured. For `overlap` reading and encoding sleep 20 ms a batch
each: both together take 1 of the longer alone if nothing waits, 2 without overlap. For `queue` both take no time: what
is left is the thread that fills batches and stores features.
"""

import dataclasses
import io
import itertools
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from PIL import Image

from benchmarks.measure import Timing, median_of_ratios, time_in_turn
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, prepare_image, repeat_grey
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.features.encode import ImageItem, encode_images
from stepcot_jax.features.store import FeatureStore, describe_image_store, digest_fields

_SECONDS, _NUM_BATCHES, _NUM_QUEUED, _NUM_FILES, _FILE_SIZE = 0.02, 25, 1024, 64, 1024
_REDUCED = Preprocessing(224, reduced_jpeg=True)


class _Light(nn.Module):
    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        patches = images.reshape(len(images), 14, 16, 14, 16, 3).mean((2, 4)).reshape(len(images), 196, 3)
        return patches.mean(1), patches


@dataclasses.dataclass(frozen=True)
class _Waiting:
    """An encoder that gets float32 from this thread, which waits for each batch."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        return np.asarray(self.inner.encode(normalise(pixels, self.inner.preprocessing)))


@dataclasses.dataclass(frozen=True)
class _Sleeping(_Waiting):
    seconds: float

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds)
        return np.zeros((len(pixels), 3), np.float32)


def measure_encoding(rounds: int) -> dict[str, float]:
    """Return images per second by file format, ratios to the waiting encoder's, and the overlap of 20 ms with 20 ms."""
    about: Any = {"name": "light", "width": 3, "digest": "", "num_parameters": 0, "read_params": dict}
    encoder = ImageEncoder(network=_Light(), preprocessing=Preprocessing(224), **about)
    with tempfile.TemporaryDirectory(prefix="stepcot-encoding-") as folder:
        root, tasks, stores = pathlib.Path(folder), dict[str, Callable[[], object]](), itertools.count()

        def fill(encoder: Any, read: Callable[[int], np.ndarray], number: int, **how: int) -> None:
            spec = describe_image_store(encoder)
            items = [
                ImageItem(digest_fields("image", number=n), lambda n=n: read(n), f"image {n}") for n in range(number)
            ]
            encode_images(encoder, items, FeatureStore(root / f"store{next(stores)}", spec), **how)

        for name, preprocessing in {
            "png": Preprocessing(224),
            "jpeg": Preprocessing(224),
            "reduced_jpeg": _REDUCED,
        }.items():
            contents = _make_files("PNG" if name == "png" else "JPEG")

            def read(number: int, contents: Any = contents, preprocessing: Any = preprocessing) -> np.ndarray:
                return repeat_grey(prepare_image(contents[number], name="it", preprocessing=preprocessing))

            for kind, each in {name: encoder, f"{name}_waiting": _Waiting(encoder)}.items():
                tasks[kind] = lambda each=each, read=read: fill(each, read, _NUM_FILES, batch_size=32)
        for name, reading, encoding in (("both", 1, 1), ("reading", 1, 0), ("encoding", 0, 1)):

            def sleep(_: int, seconds: float = 2 * _SECONDS / 8 * reading) -> np.ndarray:
                time.sleep(seconds)
                return np.zeros((224, 224, 3), np.uint8)

            each = _Sleeping(encoder, _SECONDS * encoding)
            tasks[name] = lambda each=each, read=sleep: fill(each, read, 8 * _NUM_BATCHES, batch_size=8, num_threads=2)
        idle, picture = _Sleeping(encoder, 0.0), np.zeros((224, 224, 3), np.uint8)
        for name, each in {"queue": idle, "queue_waiting": _Waiting(idle)}.items():
            tasks[name] = lambda each=each: fill(each, lambda _: picture, _NUM_QUEUED, batch_size=256)
        timings = time_in_turn(tasks, rounds=rounds)
    longer = Timing(tuple(map(max, timings["reading"].seconds, timings["encoding"].seconds)))
    numbers = {"overlap": median_of_ratios(timings["both"], longer), "overlap_spread": timings["both"].spread}
    for name in ("queue", "png", "jpeg", "reduced_jpeg"):
        number = _NUM_QUEUED if name == "queue" else _NUM_FILES
        numbers[f"{name}_images_per_second"] = number / timings[name].median
        numbers[f"{name}_spread"] = timings[name].spread
        numbers[f"{name}_vs_waiting"] = median_of_ratios(timings[f"{name}_waiting"], timings[name])
    return numbers | {"reduced_jpeg_vs_jpeg": median_of_ratios(timings["jpeg"], timings["reduced_jpeg"])}


def _make_files(kind: str) -> list[bytes]:
    """Return radiographs of 1024 px, of which many are copies, as files."""
    files = []
    for number in range(4):
        stream = io.BytesIO()
        Image.fromarray(draw_case(number, seed=0, size=_FILE_SIZE, prevalence="flat").image).save(stream, kind)
        files.append(stream.getvalue())
    return files * (_NUM_FILES // 4)
