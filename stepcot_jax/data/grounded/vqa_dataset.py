"""The data of a policy's run in memory: reasoning records with boxes in pixels of what the model sees, and pixels."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from jaxtyping import Int32, UInt8

from stepcot_jax.data.grounded.making import Progress, draw_phantoms, plan_phantoms
from stepcot_jax.data.grounded.scaled_records import scale_record
from stepcot_jax.data.grounded.vqa_folder import LoadedRecords, digest_pixels, load_folder
from stepcot_jax.data.images.pixels import CompactPixels, PhantomPixels, PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, resize_image
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.record import VqaRecord
from stepcot_jax.settings.run_settings import Settings

Places = Int32[np.ndarray, " place"]

_ENCODER = msgspec.json.Encoder()


@dataclasses.dataclass(frozen=True)
class VqaDataset:
    """Reasoning records with their images and splits; `load_vqa_dataset` makes one.

    Attributes:
      records: those of the loaded splits, in order; boxes are in pixels of the picture that the model sees, so that
        every `image_size` is (size, size).
      image_of: [record], place of its image.
      splits: of each loaded split, the places of its records, ascending; no patient is in two.
      digest: SHA-256 of records, splits and pixels: what a resumed run must find unchanged. With
        `data.check_images="on_use"` of the image files' paths and sizes in place of the pixels.
      set_aside: records that take no part, with the reason.
      pixels: place of an image -> uint8 [size, size, 3]; cached up to `data.cache_megabytes`.
    """

    records: tuple[VqaRecord, ...]
    image_of: Places
    splits: Mapping[str, Places]
    digest: str
    set_aside: tuple[SetAside, ...]
    pixels: PixelCache

    @property
    def num_images(self) -> int:
        """Number of different images."""
        return int(self.image_of.max(initial=-1)) + 1

    def load_images(self, places: Iterable[int] | np.ndarray) -> UInt8[np.ndarray, "image size size 3"]:
        """Return images by their places, such as `dataset.image_of[:32]`; at least one."""
        return np.stack([self.pixels[int(place)] for place in places])


def load_vqa_dataset(
    settings: Settings, *, splits: Sequence[str] = SPLIT_NAMES, progress: Progress = iter
) -> VqaDataset:
    """Load the reasoning records that `settings.vqa` names.

    "phantom" draws `settings.phantom` as `python -m stepcot_jax.data vqa` does, with the same records. Splits are made
    from the sum of `phantom.seed` and `data.split_seed`, and `data.split_fractions`. "folder" reads
    `vqa.root/records.jsonl`; see `vqa_folder`. Pictures are stretched to `image_encoder.image_size`, whatever its fit.
    """
    _refuse_settings(settings, splits)
    preprocessing = Preprocessing(settings.image_encoder.image_size, fit="stretch")
    load = _load_phantoms if settings.vqa.source == "phantom" else load_folder
    loaded = load(settings, preprocessing=preprocessing, splits=splits, progress=progress)
    size = (preprocessing.size, preprocessing.size)
    records = tuple(scale_record(record, size) for record in loaded.records)
    places = {
        name: np.array([place for place, record in enumerate(records) if record.split == name], np.int32)
        for name in SPLIT_NAMES
        if name in splits
    }
    for name, found in places.items():
        if not len(found):
            where = settings.vqa.root or "the phantoms"
            raise BadInput(f"{where}: split {name!r} has no record; expected at least one")
    digest = hashlib.sha256(loaded.digest)
    digest.update(_ENCODER.encode([list(places), loaded.image_of, records]))
    image_of = np.array(loaded.image_of, np.int32)
    return VqaDataset(records, image_of, places, digest.hexdigest(), loaded.set_aside, loaded.pixels)


def _refuse_settings(settings: Settings, splits: Sequence[str]) -> None:
    if not splits or not set(splits) <= set(SPLIT_NAMES):
        raise ValueError(f"splits must be some of {', '.join(SPLIT_NAMES)}; got {list(splits)}")
    for name in ("fold", "near_duplicate_radius", "origins"):
        if value := getattr(settings.data, name):
            raise BadInput(f"config.data.{name}: {value!r} has no effect on reasoning records; leave it out")


@dataclasses.dataclass(frozen=True)
class _ChosenPhantoms:
    """Draws the picture of a chosen phantom again, for what the cache does not hold."""

    drawing: PhantomPixels
    numbers: tuple[int, ...]

    def __call__(self, place: int) -> CompactPixels:
        return self.drawing(self.numbers[place])


def _load_phantoms(
    settings: Settings, *, preprocessing: Preprocessing, splits: Sequence[str], progress: Progress
) -> LoadedRecords:
    phantom = settings.phantom
    planned = plan_phantoms(
        num_cases=phantom.num_cases,
        seed=phantom.seed,
        prevalence=phantom.prevalence,
        split_seed=phantom.seed + settings.data.split_seed,
        fractions=settings.data.split_fractions,
    )
    chosen = [(case, split) for case, split in planned if split in splits]
    drawing = PhantomPixels(phantom.seed, phantom.image_size, phantom.prevalence, preprocessing)
    redraw = _ChosenPhantoms(drawing, tuple(case.index for case, _ in chosen))
    pixels = PixelCache(redraw, settings.data.cache_megabytes * 1e6)
    records, image_of, digests = list[VqaRecord](), list[int](), list[bytes]()
    drawn = draw_phantoms(chosen, size=phantom.image_size, prevalence=phantom.prevalence, progress=progress)
    for place, (case, asked) in enumerate(drawn):
        picture = resize_image(case.image, preprocessing)
        pixels.put(place, picture)
        digests.append(digest_pixels(picture))
        records += asked
        image_of += [place] * len(asked)
    return LoadedRecords(tuple(records), tuple(image_of), pixels, hashlib.sha256(b"".join(digests)).digest())
