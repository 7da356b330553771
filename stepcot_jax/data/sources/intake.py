"""Collect the records of a source: cases, bad records, and records that a rule of the reader excludes."""

import collections
import contextlib
import functools
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

from PIL import ImageFile, JpegImagePlugin, PngImagePlugin

from stepcot_jax.chain import Chain
from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.images.file_formats import describe_other
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, drop_comments, most_bytes
from stepcot_jax.data.images.image_files import set_laterals_aside
from stepcot_jax.data.images.stated_sizes import StatedSizes
from stepcot_jax.data.records.data_json import ImageLocator, fold_name
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record


class Intake:
    """Collects every record of a source in order and numbers them from 0."""

    def __init__(self, root: Path, *, file: str, layout: str, on_bad_record: OnBadRecord) -> None:
        self._root, self._file, self._layout, self._on_bad_record = root, file, layout, on_bad_record
        self._cases: list[Record] = []
        self._bad: list[SetAside] = []
        self._set_aside: list[SetAside] = []
        self._first: dict[str, str] = {}

    def keep(self, case: Record, *, real_path: str, location: str) -> None:
        """Add a case; it is a bad record if another case has its image."""
        known = self._first.setdefault(real_path, location)
        if known != location:
            reason = f"{location}: has the same image as {known}; expected one record per image"
            self.refuse(reason, image_path=case.image, patient_id=case.patient)
        else:
            self._cases.append(case)

    def refuse(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Add a bad record."""
        self.leave_out(reason, image_path=image_path, patient_id=patient_id)
        self._bad.append(self._set_aside[-1])

    def leave_out(self, reason: str, *, image_path: str, patient_id: str) -> None:
        """Add a valid record that a rule of the reader excludes."""
        number = len(self._cases) + len(self._set_aside)
        self._set_aside.append(SetAside(number, image_path, reason, patient_id))

    def finish(self, chain: Chain) -> Collection:
        """Return all records as a collection, lateral views set aside."""
        path = self._root / self._file
        aside = self._set_aside
        if self._bad and self._on_bad_record == "stop":
            num_good = len(self._cases) + len(aside) - len(self._bad)
            raise BadInput(describe_bad_records(path, self._bad, num_good=num_good))
        if not self._cases:
            raise BadInput(describe_bad_records(path, aside, num_good=0) if aside else f"{path}: has no records")
        return set_laterals_aside(
            Collection(self._root, chain, RecordTable(self._cases), tuple(aside), self._layout, self._file)
        )


# Bad records of a source that is read one record at a time: stop, or set them aside and continue.

Readers = int | Literal["all"]
Listing = Iterator[tuple[str, Record | BadInput]]
"""Location of each image in its list, such as "row 7", and the image, or why it is bad."""


class Sorting:
    """Sorts the records of a source into good ones and those set aside."""

    def __init__(self, path: Path, *, on_bad_record: OnBadRecord, set_aside: list[SetAside] | None = None) -> None:
        if on_bad_record not in ("stop", "skip"):
            raise BadInput(f"on_bad_record: {on_bad_record!r:.80} is not 'stop' or 'skip'")
        self._path, self._on_bad_record = path, on_bad_record
        self.set_aside = [] if set_aside is None else set_aside
        self._first: dict[str, str] = {}
        self._num_good = 0

    def keep(self, name: str, *, location: str) -> bool:
        """Count a good record, unless another one has its name; return whether it was counted."""
        known = self._first.setdefault(name, location)
        if known != location:
            self.refuse(f"{location}: has the same id {name[:80]!r} as {known}; expected one record per id")
            return False
        self.count()
        return True

    def count(self) -> None:
        """Count a good record whose name is unique by construction."""
        self._num_good += 1

    def refuse(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Stop at a bad record or set it aside; `reason` begins with its file or row."""
        if self._on_bad_record == "stop":
            raise BadInput(f"{self._path}, {reason}; on_bad_record=skip sets bad records aside")
        self.leave_out(reason, image_path=image_path, patient_id=patient_id)

    def leave_out(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Set aside a valid record that a rule of the reader excludes."""
        number = self._num_good + len(self.set_aside)
        self.set_aside.append(SetAside(number, image_path, f"{self._path.name}, {reason}", patient_id))

    def finish(self) -> None:
        """Check that at least one record is good."""
        if not self._num_good:
            why = f"no record is valid ({self.set_aside[0].reason})" if self.set_aside else "has no records"
            raise BadInput(f"{self._path}: {why}")


# Find a collection's files by name and read the size of images without decoding them.

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Lower-case image suffixes: copies of a collection often store JPEG under the same names."""

_OPENERS = {b"\x89P": PngImagePlugin.PngImageFile, b"\xff\xd8": JpegImagePlugin.JpegImageFile}
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_NOT_A_NAME = frozenset("/\\\0")
_NUM_SHOWN = 80


def find_file(root: Path, *patterns: str) -> Path | None:
    """Return the one file of a data root that matches a pattern, None if there is none."""
    paths = [path for pattern in patterns for path in sorted(root.glob(pattern)) if path.exists() and not path.is_dir()]
    if len(paths) > 1:
        names = ", ".join(str(path.relative_to(root)) for path in paths[:5])
        raise BadInput(f"{root}: several files {patterns[0]} ({names}); expected one")
    return paths[0] if paths else None


class ImageFinder:
    """Finds the image of a name in the folders where a collection keeps its images."""

    def __init__(self, root: Path, *, folders: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._folders = tuple(folders)
        self._require_images = require_images
        self._paths: dict[str, list[str]] = collections.defaultdict(list)
        existing: list[Path] = []
        for pattern in folders:
            existing += [root] if pattern == "." else filter(Path.is_dir, sorted(root.glob(pattern)))
        for folder in dict.fromkeys(path.relative_to(root).as_posix() for path in existing):
            try:
                names = sorted(os.listdir(root / folder))  # noqa: PTH208
            except OSError as error:
                problem = f"cannot be read ({error.strerror}); expected a folder with images"
                raise BadInput(f"{root / folder}: {problem}") from error
            for stem, suffix in map(os.path.splitext, names):
                if suffix.lower() in SUFFIXES:
                    self._paths[stem].append(stem + suffix if folder == "." else f"{folder}/{stem}{suffix}")

    def find(self, name: str) -> tuple[str, str]:
        """Return the image's path below the root, and its real path with every link resolved."""
        if name in ("", ".", "..") or not _NOT_A_NAME.isdisjoint(name):
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is not a file name without folders")
        paths = self._paths.get(os.path.splitext(name)[0], [])  # noqa: PTH122
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        if len(paths) > 1:
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is ambiguous: {' and '.join(paths[:4])}")
        if not paths and self._require_images:
            near = self._near_names.get(fold_name(os.path.splitext(name)[0]), "")  # noqa: PTH122
            near = near and f" ({near[:_NUM_SHOWN]!r} differs in Unicode form or letter case)"
            raise BadInput(
                f"no image {name[:_NUM_SHOWN]!r}{near}; expected a file of this name with suffix "
                f"{', '.join(SUFFIXES)} in one of the folders {', '.join(self._folders)}"
            )
        path = paths[0] if paths else f"images/{name}"
        return path, self._locator.locate(path)

    @functools.cached_property
    def _near_names(self) -> dict[str, str]:
        return {fold_name(stem): paths[0] for stem, paths in self._paths.items()}


def compare_sizes(records: Iterable[Record], root: Path, field: str) -> Iterator[Record]:
    """Yield records, then warn of images whose stated size has another shape than the header of their file says."""
    stated, first = StatedSizes(field), dict[str, int]()
    for number, record in enumerate(records):
        path = root / record.image
        if first.setdefault(record.image, number) == number and path.is_file():
            with contextlib.suppress(BadInput):
                stated.compare(number, f"record {record.id!r}", [record.image_size], read_image_size(path), path)
        yield record
    stated.warn(root)


def _open_header(magic: bytes, file: BinaryIO) -> ImageFile.ImageFile:
    try:
        return _OPENERS[magic](file)
    except ValueError:  # of Pillow's limit for a PNG's comments
        file.seek(0)
        return _OPENERS[magic](io.BytesIO(drop_comments(file.read(most_bytes(MAX_PIXELS)))))


def read_image_size(path: Path) -> tuple[int, int]:
    """Return width and height in pixels after EXIF orientation; reads only the header."""
    try:
        with open_untrusted(path, accepted="a PNG or JPEG image") as file:
            start = file.read(1024)
            file.seek(0)
            if start[:2] not in _OPENERS:
                raise BadInput(f"{path}: {describe_other(start)}; size cannot be read: neither a PNG nor a JPEG image")
            with _open_header(start[:2], file) as image:
                width, height = image.size
                # Without this check Pillow would decode the picture to look for metadata behind it.
                sideways = "exif" in image.info and image.getexif().get(_ORIENTATION) in _SIDEWAYS
    except BadInput:
        raise
    # Pillow raises a dozen types of error on broken headers.
    except Exception as error:
        raise BadInput(
            f"{path}: size cannot be read: {type(error).__name__}: {str(error)[:200]}; expected a PNG or JPEG image"
        ) from error
    return (height, width) if sideways else (width, height)
