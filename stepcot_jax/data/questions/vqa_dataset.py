"""The data of a policy's run in memory: reasoning records with boxes in pixels of the model's picture, and pixels."""

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from jaxtyping import Int32, UInt8

from stepcot_jax.box import Box, Corners, Space, convert, convert_rounded, pixels
from stepcot_jax.data import parquet
from stepcot_jax.data.dataset import ClosedPixels, HeldOut
from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles, read_picture
from stepcot_jax.data.images.pixels import CompactPixels, PhantomPixels, PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, drop_equal_channels, resize_image
from stepcot_jax.data.images.stated_sizes import StatedSizes, list_sizes
from stepcot_jax.data.phantom.phantom import Prevalence
from stepcot_jax.data.questions.making import Progress, draw_phantoms, plan_phantoms
from stepcot_jax.data.questions.question_splits import TEST_HINT, SplitOptions, split_records
from stepcot_jax.data.questions.record_files import VqaCollection, as_line
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.splits.near_duplicates import perceptual_hash
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.reasoning.replies import IN_ROUND_BRACKETS, corners_of, scale_points
from stepcot_jax.record import Record, SetAside

# Reasoning records whose boxes refer to a picture of another size.

_THINNEST = 1e-6  # pixels


def scale_record(record: Record, image_size: tuple[int, int]) -> Record:
    """Return a record whose boxes refer to a picture that was stretched to another size.

    References are scaled along each axis by the ratio of the sizes, as floats, and never become empty. Boxes in the
    thinking, ([x1, y1, x2, y2]), are scaled and rounded half up to whole pixels; those that are a reference's box stay
    equal to the reference as dialects write it. Boxes within the unit square, as MedCLM writes them, stay as they are.
    """
    if record.image_size == image_size:
        return record
    if record.image_size == (0, 0):  # unknown, as of a question without boxes
        return msgspec.structs.replace(record, image_size=image_size)
    source, target = pixels(record.image_size), pixels(image_size)
    corners = [reference.corners for reference in record.references]
    scaled = [_within(box, image_size) for box in convert(corners, source=source, target=target).tolist()]
    written = dict(zip(_round(corners, source, source), _round(scaled, target, target), strict=True))
    references = tuple(Box(reference.label, box) for reference, box in zip(record.references, scaled, strict=True))

    def rewrite(match: re.Match[str]) -> str:
        box = corners_of(match)
        if max(box) <= 1:
            return match[0]
        new = written.get(box) or _round([box], source, target)[0]
        return f"({[int(edge) for edge in new]})"

    thinking = IN_ROUND_BRACKETS.sub(rewrite, record.thinking)
    moved = {"points": scale_points(record, target), "image_size": image_size}
    return msgspec.structs.replace(record, **moved, references=references, thinking=thinking)


def _round(boxes: list[Corners], source: Space, target: Space) -> list[Corners]:
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in convert_rounded(boxes, source=source, target=target).tolist()]


def _within(box: list[float], image_size: tuple[int, int]) -> Corners:
    """Return a scaled box within the picture, with a positive width and height in spite of rounding."""
    (x1, x2), (y1, y2) = (
        (min(low, float(np.nextafter(end, 0))), end)
        for low, high, side in zip(box[:2], box[2:], image_size, strict=True)
        for end in [min(max(high, _THINNEST), float(side))]
    )
    return x1, y1, x2, y2


# No message names an image's path: paths of MIMIC-CXR hold patient numbers. Records are named by line and id.


@dataclasses.dataclass(frozen=True)
class RecordPictures:
    """Reads, decodes and stretches the images of records."""

    root: Path  # folder that image paths are relative to
    paths: tuple[str, ...]
    names: tuple[str, ...]  # name of each image in messages
    preprocessing: Preprocessing
    max_pixels: int  # largest accepted width times height
    sizes: tuple[tuple[tuple[int, int], ...], ...]  # `image_size` of the records of each image
    says: bool = False  # whether to warn of the first one whose size has another shape; a check counts them
    stated: StatedSizes = dataclasses.field(default_factory=StatedSizes, compare=False)

    def __call__(self, index: int) -> CompactPixels:
        """Return the pixels of an image; a `BadInput` names the record, never the path."""
        content, name = self.read(index), self.names[index]
        picture, is_first = decode_picture(content, name=name, max_pixels=self.max_pixels), not self.stated.other
        self.stated.compare(index, name, self.sizes[index], picture.size, content)
        if self.says and is_first:
            self.stated.warn(self.root)
        return drop_equal_channels(resize_image(np.asarray(picture), self.preprocessing))

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it is missing, too large or outside of the root."""
        try:
            return FolderFiles(self.root, self.paths, most_bytes(self.max_pixels)).read(index)
        except BadInput as error:
            raise self._hide_path(error, index) from None

    def num_bytes(self, index: int) -> int:
        """Return the size of an image file; `BadInput` if it is missing or outside of the root."""
        try:
            cell = parquet.find_cell(self.paths[index])
            file = self.paths[index] if cell is None else cell.file
            return Path(ImageLocator(self.root, require_images=True).locate(file)).stat().st_size
        except BadInput as error:
            raise self._hide_path(error, index) from None
        except OSError as error:
            raise BadInput(f"{self.names[index]}: cannot be read ({error.strerror})") from None

    def _hide_path(self, error: BadInput, index: int) -> BadInput:
        path = self.paths[index]
        reason = str(error).removeprefix(f"{self.root / path}: ").replace(repr(path[:80]), "the file")
        return BadInput(f"{self.names[index]}: {reason.replace(path, '...')}")

    def select(self, indices: Sequence[int]) -> "RecordPictures":
        """Return some of the images, in this order."""
        columns: tuple[tuple[Any, ...], ...] = (self.paths, self.names, self.sizes)
        paths, names, sizes = (tuple(column[index] for index in indices) for column in columns)
        return dataclasses.replace(self, paths=paths, names=names, sizes=sizes, stated=StatedSizes())


@dataclasses.dataclass(frozen=True)
class LoadedRecords:
    """Records of some splits with their pixels."""

    records: tuple[Record, ...]  # in order, each with its split
    image_of: tuple[int, ...]  # index of each record's image
    pixels: PixelCache  # index of an image -> uint8 [size, size, 3]
    digest: bytes
    set_aside: tuple[SetAside, ...] = ()  # records set aside, with the reason


def load_pictures(
    collection: VqaCollection,
    *,
    preprocessing: Preprocessing,
    splits: Sequence[str],
    how: SplitOptions,
    on_bad_record: OnBadRecord,
    check_images: Literal["ahead", "on_use"],
    max_pixels: int,
    cache_bytes: float,
    num_threads: int,
    progress: Progress = iter,
) -> LoadedRecords:
    """Load the records of a collection that are in `splits`, with boxes as in the file, and their pictures."""
    hashes = _hash_pictures(collection, max_pixels=max_pixels, progress=progress) if how.near_duplicate_radius else None
    line_of = {record.id: line for record, line in zip(collection.records, collection.lines, strict=True)}
    split = split_records(collection, how, hashes=hashes)
    chosen = [(record, line_of[record.id]) for record in split if record.split in splits]
    first: dict[str, str] = {}
    for record, line in chosen:
        first.setdefault(record.image, f"{collection.unit} {line}, image of record {record.id[:80]!r}")
    sizes = tuple(list_sizes(record for record, _ in chosen).values())
    decodes = check_images == "ahead"
    names = tuple(first), tuple(first.values())
    pictures = RecordPictures(collection.root, *names, preprocessing, max_pixels, sizes, says=not decodes)
    pixels = PixelCache(pictures, cache_bytes)
    digests, reasons = _examine(pictures, pixels, decodes=decodes, num_threads=num_threads, progress=progress)
    pictures.stated.warn(collection.path)
    bad = {pictures.paths[index]: reason for index, reason in reasons.items()}
    if bad and (on_bad_record == "stop" or len(bad) == len(first)):
        more = f"; {len(bad) - 1} more of {len(first)} images are bad" if len(bad) > 1 else ""
        advice = "" if len(bad) == len(first) else "; data.on_bad_record=skip sets bad records aside"
        raise BadInput(f"{collection.path}, {next(iter(bad.values()))}{more}{advice}")
    kept = [index for index in range(len(first)) if index not in reasons]
    index_of = {pictures.paths[index]: number for number, index in enumerate(kept)}
    records = tuple(record for record, _ in chosen if record.image not in bad)
    unusable = [SetAside(line, "", bad[record.image]) for record, line in chosen if record.image in bad]
    return LoadedRecords(
        records,
        tuple(index_of[record.image] for record in records),
        pixels.select(kept, pictures.select(kept)) if bad else pixels,
        hashlib.sha256(b"".join(digests[index] for index in kept)).digest(),
        tuple(sorted([*collection.set_aside, *unusable], key=lambda aside: aside.record)),
    )


def _hash_pictures(collection: VqaCollection, *, max_pixels: int, progress: Progress) -> dict[str, np.uint64]:
    """Return the perceptual hash of each picture; those that cannot be read are told of where they are loaded."""
    hashes = {}
    for image in progress(list(dict.fromkeys(record.image for record in collection.records))):
        with contextlib.suppress(BadInput):
            content = read_picture(collection.root, image, max_bytes=most_bytes(max_pixels))
            hashes[image] = perceptual_hash(np.asarray(decode_picture(content, name=image, max_pixels=max_pixels)))
    return hashes


Checked = tuple[dict[int, bytes], dict[int, str]]
"""Digests of the readable images, and the reasons of the others, by index."""


def _examine(
    pictures: RecordPictures, pixels: PixelCache, *, decodes: bool, num_threads: int, progress: Progress
) -> Checked:
    """Decode every image into the cache and digest its pixels, or else digest the path and size of its file."""
    digests, reasons = dict[int, bytes](), dict[int, str]()

    def examine(index: int) -> CompactPixels | bytes | BadInput:
        try:
            path = pictures.paths[index]
            return pictures(index) if decodes else f"{path}:{pictures.num_bytes(index)}".encode()
        except BadInput as error:
            return error

    for index, result in map_in_threads(examine, progress(range(len(pictures.paths))), num_threads=num_threads):
        if isinstance(result, BadInput):
            reasons[index] = str(result)
        elif isinstance(result, bytes):
            digests[index] = hashlib.sha256(result).digest()
        else:
            pixels.put(index, result)
            digests[index] = digest_pixels(result)
    return digests, reasons


def digest_pixels(pixels: CompactPixels) -> bytes:
    """Return the SHA-256 of pixels, the same for a grey picture with one channel or three."""
    compact = drop_equal_channels(pixels)
    return hashlib.sha256(str(compact.shape).encode() + compact.tobytes()).digest()


Indices = Int32[np.ndarray, " record"]
_ENCODER = msgspec.json.Encoder()


@dataclasses.dataclass(frozen=True)
class VqaDataset:
    """Reasoning records with their images and splits; `make_vqa_dataset` makes one."""

    records: tuple[Record, ...]  # those of the loaded splits, in order
    image_of: Indices  # [record], index of its image
    splits: Splits  # indices of the records; a split that was not loaded has none
    digest: str  # SHA-256 of records, splits and pixels, which must not change before a run resumes
    set_aside: tuple[SetAside, ...]  # records set aside, with the reason
    pixels: PixelCache  # index of an image -> uint8 [size, size, 3]; cached up to `data.cache_megabytes`

    @property
    def num_images(self) -> int:
        """Number of different images."""
        return int(self.image_of.max(initial=-1)) + 1

    def hold_out(self) -> "tuple[VqaDataset, HeldOut[VqaDataset]]":
        """Return a view without the test split's answers, boxes and pictures, and the data for the last evaluation."""
        closed = list(self.splits.test)
        records = list(self.records)
        for index in closed:
            records[index] = _without_answer(records[index])
        # A picture that training has too is open: `question_splits` warns of it, or takes it out of training.
        seen = set(self.image_of[[index for index in range(len(records)) if records[index].split != "test"]].tolist())
        pixels = ClosedPixels(self.pixels, [image for image in self.image_of[closed].tolist() if image not in seen])
        return dataclasses.replace(self, records=tuple(records), pixels=pixels), HeldOut(self)

    def load_images(self, indices: Iterable[int] | np.ndarray) -> UInt8[np.ndarray, "image size size 3"]:
        """Return the images of at least one index, such as those in `dataset.image_of[:32]`."""
        return np.stack([self.pixels[int(index)] for index in indices])


def _without_answer(record: Record) -> Record:
    """Return a record with a fixed answer of its form, without references, reasoning, facts and lesion."""
    same: dict[str, str | tuple[str, ...]] = {"closed": "No", "single": "A", "multi": ("A",)}
    answer = "withheld" if record.is_answered_in_words else same[record.kind]
    organ = "" if record.lesion else record.organ  # a lesion's host is an answer
    kept = ("image", "patient", "id", "image_size", "origin", "split", "kind", "topic", "question", "options", "cue")
    fields = {name: getattr(record, name) for name in (*kept, "modality")}
    return Record(answer=answer, organ=organ, **fields)


def make_vqa_dataset(loaded: LoadedRecords, *, splits: Sequence[str], size: int, where: str) -> VqaDataset:
    """Return the dataset of loaded records, with boxes in pixels of pictures that are stretched to `size`."""
    records = tuple(scale_record(record, (size, size)) for record in loaded.records)
    indices_of: dict[str, tuple[int, ...]] = {
        name: tuple(index for index, record in enumerate(records) if record.split == name)
        for name in SPLIT_NAMES
        if name in splits
    }
    for name, indices in indices_of.items():
        if not len(indices):
            more = TEST_HINT if name == "test" else ""
            raise BadInput(f"{where}: split {name!r} has no record; expected at least one{more}")
    digest = hashlib.sha256(loaded.digest)
    digest.update(_ENCODER.encode([list(indices_of), loaded.image_of, list(map(as_line, records))]))
    image_of = np.array(loaded.image_of, np.int32)
    chosen = Splits(*(indices_of.get(name, ()) for name in SPLIT_NAMES))
    return VqaDataset(records, image_of, chosen, digest.hexdigest(), loaded.set_aside, loaded.pixels)


@dataclasses.dataclass(frozen=True)
class _ChosenPhantoms:
    """Draws the picture of a chosen phantom again if the cache does not hold it."""

    drawing: PhantomPixels
    numbers: tuple[int, ...]

    def __call__(self, index: int) -> CompactPixels:
        return self.drawing(self.numbers[index])


def load_phantoms(
    *,
    num_cases: int,
    seed: int,
    image_size: int,
    prevalence: Prevalence,
    preprocessing: Preprocessing,
    splits: Sequence[str],
    fractions: Sequence[float],
    split_seed: int,
    cache_bytes: float,
    progress: Progress = iter,
) -> LoadedRecords:
    """Draw the phantoms of some splits with the records that `stepcot data vqa` writes for them."""
    planned = plan_phantoms(
        num_cases=num_cases,
        seed=seed,
        prevalence=prevalence,
        split_seed=split_seed,
        fractions=tuple(fractions),
    )
    chosen = [(case, split) for case, split in planned if split in splits]
    drawing = PhantomPixels(seed, image_size, prevalence, preprocessing)
    redraw = _ChosenPhantoms(drawing, tuple(case.index for case, _ in chosen))
    pixels = PixelCache(redraw, cache_bytes)
    records, image_of, digests = list[Record](), list[int](), list[bytes]()
    drawn = draw_phantoms(chosen, size=image_size, prevalence=prevalence, progress=progress)
    for index, (case, asked) in enumerate(drawn):
        picture = resize_image(case.image, preprocessing)
        pixels.put(index, picture)
        digests.append(digest_pixels(picture))
        records += asked
        image_of += [index] * len(asked)
    return LoadedRecords(tuple(records), tuple(image_of), pixels, hashlib.sha256(b"".join(digests)).digest())
