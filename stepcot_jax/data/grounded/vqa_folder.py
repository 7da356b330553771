"""Reasoning records of a folder with their splits and images, for runs.

No message names an image's path: paths of MIMIC-CXR hold patient numbers. Records are named by line and id.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.data.grounded.image_splits import split_by_patient
from stepcot_jax.data.grounded.making import Progress
from stepcot_jax.data.grounded.record_files import VqaCollection, read_vqa_records
from stepcot_jax.data.grounded.vocabulary import canonical
from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.data.images.pixels import CompactPixels, PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, drop_equal_channels, prepare_image
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.store_cache import find_files
from stepcot_jax.reasoning.record import VqaRecord
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.sections import DataSettings


@dataclasses.dataclass(frozen=True)
class RecordPictures:
    """Reads, decodes and stretches the images of records.

    Attributes:
      root: folder that image paths are relative to.
      names: of each image in messages.
      max_pixels: largest accepted width times height.
    """

    root: Path
    paths: tuple[str, ...]
    names: tuple[str, ...]
    preprocessing: Preprocessing
    max_pixels: int

    def __call__(self, place: int) -> CompactPixels:
        """Return the pixels of an image; a `BadInput` names the record, never the path."""
        content = self.read(place)
        name = self.names[place]
        return prepare_image(content, name=name, preprocessing=self.preprocessing, max_pixels=self.max_pixels)

    def read(self, place: int) -> bytes:
        """Return the content of an image file; `BadInput` if it is missing, too large or outside of the root."""
        try:
            return FolderFiles(self.root, self.paths, most_bytes(self.max_pixels)).read(place)
        except BadInput as error:
            raise self._hide_path(error, place) from None

    def num_bytes(self, place: int) -> int:
        """Return the size of an image file; `BadInput` if it is missing or outside of the root."""
        try:
            found = ImageLocator(self.root, require_images=True).locate(self.paths[place])
            return Path(found).stat().st_size
        except BadInput as error:
            raise self._hide_path(error, place) from None
        except OSError as error:
            raise BadInput(f"{self.names[place]}: cannot be read ({error.strerror})") from None

    def _hide_path(self, error: BadInput, place: int) -> BadInput:
        path = self.paths[place]
        reason = str(error).removeprefix(f"{self.root / path}: ").replace(repr(path[:80]), "the file")
        return BadInput(f"{self.names[place]}: {reason.replace(path, '...')}")

    def select(self, places: Sequence[int]) -> "RecordPictures":
        """Return some of the images, in this order."""
        paths, names = (tuple(each[place] for place in places) for each in (self.paths, self.names))
        return dataclasses.replace(self, paths=paths, names=names)


def split_records(collection: VqaCollection, *, settings: DataSettings) -> tuple[VqaRecord, ...]:
    """Return the records with a split each, by patient.

    Splits that all records name are kept. If they name only "train" and "test", the share of "val" in
    `data.split_fractions` is taken from the training patients (GEMeX has no validation split). If no record names a
    split, all are made. Images are stratified by diagnosis, or else lesion, and origin; records of one image stay
    together.
    """
    records, path = collection.records, collection.path
    first: dict[str, VqaRecord] = {}
    for record, line in zip(records, collection.lines, strict=True):
        other = first.setdefault(record.image_path, record)
        if (other.patient_id, other.split) != (record.patient_id, record.split):
            what = "patient" if other.patient_id != record.patient_id else "split"
            raise BadInput(
                f"{path}, line {line}: {what} differs from that of {other.id[:80]!r}, which has the same image"
            )
    named = {record.split for record in records}
    if "" in named and len(named) > 1:
        number = sum(not record.split for record in records)
        raise BadInput(f"{path}: {number} of {len(records)} records have no split; expected all or none")
    images = list(first.values())
    _check_patients(images, path)
    train, val, _ = shares = settings.split_fractions
    names: tuple[str, ...] = SPLIT_NAMES
    if named == {"train", "test"}:
        images = [image for image in images if image.split == "train"]
        names, shares = ("train", "val"), (train / (train + val), val / (train + val))
    elif named != {""}:
        return records
    try:
        strata = [_stratum(image) for image in images]
        splits = split_by_patient(images, strata, seed=settings.split_seed, fractions=shares, names=names)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    made = {image.image_path: split for image, split in zip(images, splits, strict=True)}
    return tuple(msgspec.structs.replace(record, split=made.get(record.image_path, record.split)) for record in records)


def _check_patients(images: Iterable[VqaRecord], path: Path) -> None:
    """Refuse patients in two splits, without naming them."""
    splits = collections.defaultdict(set)
    for image in images:
        splits[image.patient_id].add(image.split)
    number = sum(len(found) > 1 for found in splits.values())
    if number:
        raise BadInput(f"{path}: {number} of {len(splits)} patients are in more than one split; expected one each")


def _stratum(record: VqaRecord) -> str:
    return record.facts.get("diagnosis") or canonical(record.lesion)


@dataclasses.dataclass(frozen=True)
class LoadedRecords:
    """Records of some splits with their pixels.

    Attributes:
      records: in order, each with its split.
      image_of: place of each record's image.
      pixels: place of an image -> uint8 [size, size, 3].
      set_aside: records that take no part.
    """

    records: tuple[VqaRecord, ...]
    image_of: tuple[int, ...]
    pixels: PixelCache
    digest: bytes
    set_aside: tuple[SetAside, ...] = ()


def load_folder(
    settings: Settings, *, preprocessing: Preprocessing, splits: Sequence[str], progress: Progress = iter
) -> LoadedRecords:
    """Load the records of `settings.vqa.root` that are in `splits`, with boxes as in the file.

    `data.check_images` "ahead" decodes every image of these splits; "on_use" looks whether the files exist. A bad image
    stops the run, or sets its records aside, as `data.on_bad_record` says. Splits are made before, so that they do not
    depend on it.
    """
    data = settings.data
    root = find_files(settings.vqa.root, "config.vqa.root", holds="a folder with records.jsonl")
    collection = read_vqa_records(root, on_bad_record=data.on_bad_record)
    split = split_records(collection, settings=data)
    chosen = [(record, line) for record, line in zip(split, collection.lines, strict=True) if record.split in splits]
    first: dict[str, str] = {}
    for record, line in chosen:
        first.setdefault(record.image_path, f"line {line}, image of record {record.id[:80]!r}")
    max_pixels = int(data.max_megapixels * 1e6)
    pictures = RecordPictures(collection.root, tuple(first), tuple(first.values()), preprocessing, max_pixels)
    pixels = PixelCache(pictures, data.cache_megabytes * 1e6)
    check = _decode_ahead if data.check_images == "ahead" else _find_files
    digests, reasons = check(pictures, pixels, settings=data, progress=progress)
    bad = {pictures.paths[place]: reason for place, reason in reasons.items()}
    if bad and (data.on_bad_record == "stop" or len(bad) == len(first)):
        more = f"; {len(bad) - 1} more of {len(first)} images are bad" if len(bad) > 1 else ""
        way_on = "" if len(bad) == len(first) else "; data.on_bad_record=skip sets bad records aside"
        raise BadInput(f"{collection.path}, {next(iter(bad.values()))}{more}{way_on}")
    kept = [place for place in range(len(first)) if place not in reasons]
    place_of = {pictures.paths[place]: number for number, place in enumerate(kept)}
    records = tuple(record for record, _ in chosen if record.image_path not in bad)
    unusable = [SetAside(line, "", bad[record.image_path]) for record, line in chosen if record.image_path in bad]
    return LoadedRecords(
        records,
        tuple(place_of[record.image_path] for record in records),
        pixels.select(kept, pictures.select(kept)) if bad else pixels,
        hashlib.sha256(b"".join(digests[place] for place in kept)).digest(),
        tuple(sorted([*collection.set_aside, *unusable], key=lambda aside: aside.record)),
    )


Checked = tuple[dict[int, bytes], dict[int, str]]
"""Digests of the readable images, and the reasons against the others, by place."""


def _decode_ahead(
    pictures: RecordPictures, pixels: PixelCache, *, settings: DataSettings, progress: Progress
) -> Checked:
    """Decode every image into the cache; digests are of pixels."""
    digests, reasons = dict[int, bytes](), dict[int, str]()

    def decode(place: int) -> CompactPixels | BadInput:
        try:
            return pictures(place)
        except BadInput as error:
            return error

    places = progress(range(len(pictures.paths)))
    for place, found in map_in_threads(decode, places, num_threads=settings.num_threads):
        if isinstance(found, BadInput):
            reasons[place] = str(found)
        else:
            pixels.put(place, found)
            digests[place] = digest_pixels(found)
    return digests, reasons


def _find_files(pictures: RecordPictures, pixels: PixelCache, *, settings: DataSettings, progress: Progress) -> Checked:
    """Locate every image file; digests are of path and size in bytes."""
    del pixels, settings
    digests, reasons = dict[int, bytes](), dict[int, str]()
    for place in progress(range(len(pictures.paths))):
        try:
            digests[place] = hashlib.sha256(f"{pictures.paths[place]}:{pictures.num_bytes(place)}".encode()).digest()
        except BadInput as error:
            reasons[place] = str(error)
    return digests, reasons


def digest_pixels(pixels: CompactPixels) -> bytes:
    """Return the SHA-256 of pixels, the same for a grey picture with one channel or three."""
    compact = drop_equal_channels(pixels)
    return hashlib.sha256(str(compact.shape).encode() + compact.tobytes()).digest()
