"""Images that are no upright frontal radiograph: radiographs changed by hand, and others from installed libraries."""

import gzip
import pathlib
from collections.abc import Callable

import matplotlib
import numpy as np
import pydicom
import sklearn.datasets
from PIL import Image, ImageFilter
from pydicom.data import get_testdata_file

Random = np.random.Generator
Pixels = np.ndarray
"""uint8 [size, size], or [size, size, 3]."""


def _crop(pixels: Pixels, random: Random) -> Pixels:
    """A quarter of the picture, enlarged."""
    side = pixels.shape[0]
    left, top = random.integers(0, side - side // 2, 2)
    part = Image.fromarray(pixels).crop((left, top, left + side // 2, top + side // 2))
    return np.array(part.resize((side, side), Image.Resampling.BICUBIC))


def _blur(pixels: Pixels, _: Random) -> Pixels:
    return np.array(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(pixels.shape[0] / 20)))


def _add_noise(pixels: Pixels, random: Random) -> Pixels:
    return np.clip(pixels + random.normal(0, 40, pixels.shape), 0, 255).astype(np.uint8)


def _cover(pixels: Pixels, _: Random) -> Pixels:
    return np.where(np.arange(pixels.shape[0])[:, None] < pixels.shape[0] // 2, pixels, 0).astype(np.uint8)


CHANGES: dict[str, Callable[[Pixels, Random], Pixels]] = {
    "inverted": lambda pixels, _: 255 - pixels,
    "turned by 90 degrees": lambda pixels, _: np.rot90(pixels).copy(),
    "upside down": lambda pixels, _: np.rot90(pixels, 2).copy(),
    "left and right exchanged": lambda pixels, _: pixels[:, ::-1].copy(),
    "a quarter, enlarged": _crop,
    "lower half black": _cover,
    "blurred": _blur,
    "noise added": _add_noise,
    "30 % as bright": lambda pixels, _: (0.3 * pixels).astype(np.uint8),
    "one grey value": lambda pixels, random: np.full_like(pixels, random.integers(0, 256)),
    "noise alone": lambda pixels, random: random.integers(0, 256, pixels.shape, dtype=np.uint8),
}
"""Changes of a grey radiograph by name."""


def draw_others(size: int, num_images: int, random: Random) -> dict[str, list[Pixels]]:
    """Return images of other things by name: parts of three photographs, of CT and MR slices, and colour charts."""
    samples = pathlib.Path(matplotlib.get_data_path()) / "sample_data"
    folder = pathlib.Path(sklearn.datasets.__file__).parent / "images"
    photographs = [
        np.array(Image.open(path).convert("RGB"))
        for path in (folder / "china.jpg", folder / "flower.jpg", samples / "grace_hopper.jpg")
    ]
    slices = [pydicom.dcmread(get_testdata_file(name)).pixel_array for name in ("CT_small.dcm", "MR_small.dcm")]
    with gzip.open(samples / "s1045.ima.gz") as file:  # a slice of a head by magnetic resonance
        slices.append(np.frombuffer(file.read(), "<u2").reshape(256, 256))
    parts = _cut(photographs, size, num_images, random)
    return {
        "photographs": parts,
        "photographs in grey": [np.array(Image.fromarray(part).convert("L")) for part in parts],
        "CT and MR slices": _cut([_to_bytes(each) for each in slices], size, num_images, random),
        "colour charts": [_draw_chart(size, random) for _ in range(num_images)],
    }


def _to_bytes(values: np.ndarray) -> Pixels:
    values = values.astype(np.float64)
    return np.round(255 * (values - values.min()) / np.ptp(values)).astype(np.uint8)


def _cut(pictures: list[Pixels], size: int, num_images: int, random: Random) -> list[Pixels]:
    """Return square parts of pictures in turn, each a third of the short side or more."""
    parts = []
    for number in range(num_images):
        picture = pictures[number % len(pictures)]
        short = min(picture.shape[:2])
        side = int(random.integers(short // 3, short + 1))
        top, left = (int(random.integers(0, length - side + 1)) for length in picture.shape[:2])
        part = Image.fromarray(picture[top : top + side, left : left + side])
        parts.append(np.array(part.resize((size, size), Image.Resampling.BICUBIC)))
    return parts


def _draw_chart(size: int, random: Random) -> Pixels:
    fields = random.integers(0, 256, (*[int(random.integers(3, 9))] * 2, 3), dtype=np.uint8)
    return np.array(Image.fromarray(fields).resize((size, size), Image.Resampling.NEAREST))
