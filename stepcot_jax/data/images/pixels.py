"""Pixels of cases at the encoder's size: cached in memory up to a budget, and augmented for training."""

import dataclasses
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from stepcot_jax.data.images.preprocessing import (
    Preprocessing,
    drop_equal_channels,
    prepare_image,
    repeat_grey,
    resize_image,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

if TYPE_CHECKING:  # runs on phantoms read no files, runs on files draw no phantoms
    from stepcot_jax.data.images.image_files import ImageFiles
    from stepcot_jax.data.phantom.answers import Prevalence

Pixels = UInt8[np.ndarray, "size size 3"]
CompactPixels = UInt8[np.ndarray, "size size"] | UInt8[np.ndarray, "size size 3"]
"""One channel where all three are equal."""
_LOG = logging.getLogger(__name__)
_SAID = set[tuple[str, str]]()  # the notes of each file that this process has said


@dataclasses.dataclass(frozen=True)
class FilePixels:
    """Reads, decodes and resizes the image of a case."""

    images: "ImageFiles"
    preprocessing: Preprocessing
    max_pixels: int  # largest accepted width times height
    file: str  # with the records, for messages
    records: Sequence[int]  # position of each case in that file
    says_notes: bool = False  # whether to warn of the first picture with each DICOM note; a check counts them

    def __call__(self, index: int) -> CompactPixels:
        """Return the pixels of a case; a `BadInput` names record and file."""
        try:
            content, name = self.images.read(index), self.images.name(index)
            limits: Any = {"preprocessing": self.preprocessing, "max_pixels": self.max_pixels}
            notes = list[str]()
            pixels = prepare_image(content, name=name, note=notes.append, **limits)
        except BadInput as error:
            raise BadInput(f"{self.file}, record {self.records[index]}: {error}") from None
        for note in notes if self.says_notes else ():
            if (self.file, note) not in _SAID:
                _SAID.add((self.file, note))
                _LOG.warning("%s: %s: %s; `stepcot data check` counts such pictures", self.file, name, note)
        return pixels


@dataclasses.dataclass(frozen=True)
class PhantomPixels:
    """Draws the picture of a phantom case."""

    seed: int
    size: int  # side of the drawn picture
    prevalence: "Prevalence"
    preprocessing: Preprocessing

    def plan(self, index: int) -> Record:
        """Return a case without drawing it."""
        from stepcot_jax.data.phantom.phantom import plan_case

        return plan_case(index, seed=self.seed, prevalence=self.prevalence).case

    def draw(self, index: int) -> tuple[Record, CompactPixels]:
        """Draw a case with its pixels."""
        from stepcot_jax.data.phantom.phantom import draw_case

        drawn = draw_case(index, seed=self.seed, size=self.size, prevalence=self.prevalence)
        return drawn.case, resize_image(drawn.image, self.preprocessing)

    def __call__(self, index: int) -> CompactPixels:
        """Return the pixels of a case."""
        return self.draw(index)[1]


class PixelCache:
    """Pixels of cases, cached in memory up to a budget.

    A pickled copy in a worker process caches nothing: the workers' caches would add up beyond the budget.
    """

    def __init__(self, read: Callable[[int], CompactPixels], budget_bytes: float) -> None:
        self.read = read
        self._left = budget_bytes
        self._kept: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return PixelCache, (self.read, 0)

    def put(self, index: int, pixels: CompactPixels) -> None:
        """Cache the pixels of a case if the budget allows."""
        kept = drop_equal_channels(pixels)
        with self._lock:
            if index not in self._kept and kept.nbytes <= self._left:
                self._left -= kept.nbytes
                self._kept[index] = kept

    def select(self, indices: Sequence[int], read: Callable[[int], CompactPixels]) -> "PixelCache":
        """Return a cache of some of the images, in this order, that takes over their cached pixels and the budget."""
        selected = PixelCache(read, self._left + sum(kept.nbytes for kept in self._kept.values()))
        for index, old in enumerate(indices):
            if old in self._kept:
                selected.put(index, self._kept[old])
        return selected

    def compact(self, index: int) -> CompactPixels:
        """Return the pixels of a case, with one channel if all three are equal; read-only."""
        kept = self._kept.get(index)
        if kept is None:
            kept = drop_equal_channels(self.read(index))
            self.put(index, kept)
        return kept

    def __getitem__(self, index: int) -> Pixels:
        pixels = self.compact(index)
        return pixels if pixels.ndim == 3 else repeat_grey(pixels)


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Limits of the changes to a training image; each change is uniform between minus and plus its limit.

    No flips: left and right of a chest differ (the heart's apex points to the patient's left), and answers about
    location may name the side.
    """

    degrees: float = 5.0  # of rotation about the centre
    shift: float = 0.03  # along each axis, as a share of the side
    scale: float = 0.05  # of the size, as a share
    brightness: float = 0.05  # added to every pixel, as a share of full scale
    contrast: float = 0.1  # of the distance from mid grey, as a share


LIGHT = Augmentation()


def augment_image(
    pixels: CompactPixels, generator: np.random.Generator, augmentation: Augmentation = LIGHT
) -> CompactPixels:
    """Return a changed copy of an image, uint8 [size, size] or [size, size, 3]; beyond its edges it is black."""
    turn, right, down, growth, brightness, contrast = generator.uniform(-1.0, 1.0, 6)
    slope = 1.0 + augmentation.contrast * contrast
    values = (np.arange(256) - 127.5) * slope + 127.5 + 255.0 * augmentation.brightness * brightness
    exposed = np.clip(np.round(values), 0, 255).astype(np.uint8)[pixels]
    height, width = pixels.shape[:2]
    angle = math.radians(augmentation.degrees * turn)
    factor = 1.0 / (1.0 + augmentation.scale * growth)
    cosine, sine = factor * math.cos(angle), factor * math.sin(angle)
    # Pillow wants the inverse transform: from each output pixel to its source.
    centre_x, centre_y = width / 2, height / 2
    from_x, from_y = centre_x + augmentation.shift * width * right, centre_y + augmentation.shift * height * down
    rows = (
        *(cosine, sine, centre_x - cosine * from_x - sine * from_y),
        *(-sine, cosine, centre_y + sine * from_x - cosine * from_y),
    )
    image = Image.fromarray(exposed)
    return np.array(image.transform(image.size, Image.Transform.AFFINE, rows, Image.Resampling.BICUBIC, fillcolor=0))
