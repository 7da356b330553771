"""Sources of encoded images, one interface for folders and others, and the check that all can be decoded."""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data import parquet
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes, read_projection
from stepcot_jax.data.images.preprocessing import Preprocessing, prepare_image
from stepcot_jax.data.projections import LATERAL, is_frontal_task, name_projection
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.record import Record

Pixels = UInt8[np.ndarray, "height width *channel"]
Decoded = TypeVar("Decoded")
_LOG = logging.getLogger(__name__)


def read_picture(root: Path, image: str, *, max_bytes: int) -> bytes:
    """Return the content of an image below a root: a file, or a cell of a Parquet table."""
    cell = parquet.find_cell(image)
    try:
        # A new locator each time: an old one caches folders, which may have become links since.
        path = Path(ImageLocator(root, require_images=True).locate(image if cell is None else cell.file))
        return (
            read_file(path, max_bytes=max_bytes) if cell is None else parquet.read_cell(path, cell, max_bytes=max_bytes)
        )
    except BadInput as error:
        name = str(root / image)
        raise BadInput(str(error) if name in str(error) else f"{name}: {error}") from None
    except OSError as error:
        raise BadInput(f"{root / image}: cannot be read ({error.strerror})") from None


@runtime_checkable
class ImageFiles(Protocol):
    """Encoded images by number; worker processes get a pickled copy."""

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it cannot be read or has changed."""
        ...

    def name(self, index: int) -> str:
        """Return the image's name for messages, such as its path."""
        ...


def digest_content(images: ImageFiles, index: int) -> str:
    """Return the SHA-256 of an image's content in hex."""
    known: Callable[[int], str] | None = getattr(images, "digest", None)
    return known(index) if known else hashlib.sha256(images.read(index)).hexdigest()


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some images of another source, in a given order."""

    images: ImageFiles
    indices: Sequence[int] | np.ndarray  # index in the other source of each image

    def name(self, index: int) -> str:
        """See `ImageFiles`."""
        return self.images.name(self.indices[index])

    def read(self, index: int) -> bytes:
        """See `ImageFiles`."""
        return self.images.read(self.indices[index])

    def digest(self, index: int) -> str:
        """See `digest_content`."""
        return digest_content(self.images, self.indices[index])


@dataclasses.dataclass(frozen=True)
class FolderFiles:
    """Image files below a data root; links may not lead out of it."""

    root: Path
    paths: Sequence[str]  # of the images, relative to it
    max_bytes: int  # a larger file is refused before it is read

    def name(self, index: int) -> str:
        """Return the image's path."""
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        """Return the content of an image file."""
        return read_picture(self.root, self.paths[index], max_bytes=self.max_bytes)


def examine_image(
    images: ImageFiles, index: int, decode: Callable[..., Decoded], *, is_frontal: bool
) -> tuple[Decoded | BadInput | str, list[str]]:
    """Return what `decode(content, name=, note=)` makes of an image, else why not, and what is odd about its file.

    A text, not an error, says that it is a lateral view among frontal ones by its DICOM header.
    """
    notes = list[str]()
    try:
        content, name = images.read(index), images.name(index)
        if is_frontal and read_projection(content, name=name) == "lateral":
            return f"{name}: {LATERAL} (DICOM header)", []
        return decode(content, name=name, note=notes.append), notes
    except BadInput as error:
        return error, []


def check_images(
    collection: Collection,
    *,
    images: ImageFiles | None = None,
    on_bad_record: OnBadRecord = "stop",
    max_pixels: int = MAX_PIXELS,
    preprocessing: Preprocessing | None = None,
    visit: Callable[[int, Pixels], None] | None = None,
    is_known: Callable[[Record, bytes], bool] | None = None,
    progress: Callable[[Iterable[Record]], Iterable[Record]] | None = None,
    num_threads: int = 2,
) -> Collection:
    """Decode every image that is not known yet and return the collection without the unreadable ones.

    Lateral views by their DICOM header are set aside too, which stops no run. What is odd about other DICOM headers is
    counted in a warning for each oddity.
    """
    from stepcot_jax.data.reasons import Reasons, note_oddities  # runs on phantoms check no image

    frontal = is_frontal_task(case.view for case in collection.cases)
    files = images or folder_files(collection, max_pixels=max_pixels)

    def prepare(item: tuple[int, Record]) -> tuple[Pixels | BadInput | str | None, list[str]]:
        index, case = item

        def decode(content: bytes, **how: Any) -> Pixels | None:
            if is_known is not None and is_known(case, content):
                return None
            if preprocessing is None:
                return np.array(decode_picture(content, max_pixels=max_pixels, **how))
            return prepare_image(content, preprocessing=preprocessing, max_pixels=max_pixels, **how)

        return examine_image(files, index, decode, is_frontal=frontal)

    reasons: dict[int, str] = {}
    oddities = Reasons()
    laterals: dict[int, str] = {}
    watched = collection.cases if progress is None else progress(collection.cases)
    for (index, _), (pixels, notes) in map_in_threads(prepare, enumerate(watched), num_threads=num_threads):
        if isinstance(pixels, BadInput):
            reasons[index] = str(pixels)
        elif isinstance(pixels, str):
            laterals[index] = pixels
        elif visit is not None and pixels is not None:
            visit(index - len(reasons) - len(laterals), pixels)
        for note in notes:
            oddities.append(SetAside(index, collection.cases.image_paths[index], note))
    for line in note_oddities(oddities):
        _LOG.warning("%s: %s", collection.path, line)
    if reasons and on_bad_record == "stop":
        return set_aside_cases(collection, reasons, on_bad_record="stop")
    return set_aside_cases(collection, dict(sorted({**reasons, **laterals}.items())), on_bad_record="skip")


def set_laterals_aside(collection: Collection) -> Collection:
    """Return the collection without the views that it states as lateral, unless all are."""
    laterals = [index for index, case in enumerate(collection.cases) if name_projection(case.view) == "lateral"]
    if len(laterals) == len(collection.cases):
        return collection
    return set_aside_cases(collection, dict.fromkeys(laterals, f"view: {LATERAL}"), on_bad_record="skip")


def set_aside_cases(collection: Collection, reasons: Mapping[int, str], *, on_bad_record: OnBadRecord) -> Collection:
    """Return the collection with the cases that have a reason, by their index, moved to `set_aside`."""
    if not reasons:
        return collection
    numbers, paths, patients = collection.record_numbers, collection.cases.image_paths, collection.cases.patient_ids
    cases = RecordTable(case for index, case in enumerate(collection.cases) if index not in reasons)
    unusable = [
        SetAside(numbers[index], paths[index], reason, patients[index], by_rule=LATERAL in reason)
        for index, reason in reasons.items()
    ]
    if on_bad_record == "stop" or not cases:
        raise BadInput(describe_bad_records(collection.path, unusable, num_good=len(cases)))
    set_aside = sorted([*collection.set_aside, *unusable], key=lambda aside: aside.record)
    return dataclasses.replace(collection, cases=cases, set_aside=tuple(set_aside))


def folder_files(collection: Collection, *, max_pixels: int = MAX_PIXELS) -> FolderFiles:
    """Return the cases' image files below the collection's root."""
    return FolderFiles(collection.root, collection.cases.image_paths, most_bytes(max_pixels))
