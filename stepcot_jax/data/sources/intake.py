"""One intake for every source: sorts records, joins sizes and duplicates, finds images and reads their sizes."""

import collections
import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from PIL import ImageFile, JpegImagePlugin, PngImagePlugin

from stepcot_jax.box import Box
from stepcot_jax.data.identities import normalise_image_path
from stepcot_jax.data.images.file_formats import describe_other, is_dicom
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, drop_comments, most_bytes
from stepcot_jax.data.images.image_files import set_laterals_aside
from stepcot_jax.data.images.stated_sizes import StatedSizes
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.records.data_json import ImageLocator, fold_name
from stepcot_jax.data.records.records import Collection, OnBadRecord, describe_bad_records
from stepcot_jax.data.sources.listed import FRACTIONS, Listed, Source, refused
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record, SetAside

_LOG = logging.getLogger(__name__)


class Intake:
    """Sorts the records of a source into good ones and those set aside."""

    def __init__(self, source: Source, *, on_bad_record: OnBadRecord, set_aside: list[SetAside] | None = None) -> None:
        if on_bad_record not in ("stop", "skip"):
            raise BadInput(f"on_bad_record: {on_bad_record!r:.80} is not 'stop' or 'skip'")
        self.source, self._on_bad_record = source, on_bad_record
        self.set_aside = [] if set_aside is None else set_aside
        self.missing: dict[str, str] = {}  # by image, why a kept record's image cannot be found
        self._first: dict[str, str] = {}
        self._stated = StatedSizes(source.size_from)
        self._num_good, self._unscaled = 0, list[tuple[int, int]]()

    @property
    def bad(self) -> list[SetAside]:
        """The records set aside that no rule excludes."""
        return [item for item in self.set_aside if not item.by_rule]

    def read_cases(self, layout: str, *, keeps_missing: bool = False) -> Collection:
        """Return images with the answers of a chain, boxes in pixels of their files, lateral views set aside."""
        source = self.source
        sort = functools.partial(self._sort, self._scale_to_file, keeps_missing=keeps_missing)
        table = RecordTable(sort(source.records, name="image", name_of=lambda item, _: item.real_path))
        self._stated.warn(source.path)
        if self._unscaled:
            width, height = self._unscaled[0]
            stated = f"in pixels of the released {width} x {height} image" if source.size_from else "ignored"
            what = "%s: %d images with boxes have no file: their boxes are %s"
            _LOG.warning(what, source.path, len(self._unscaled), stated)
        aside, bad = self.set_aside, self.bad
        if bad and self._on_bad_record == "stop":
            num_good = len(table) + len(aside) - len(bad)
            raise BadInput(describe_bad_records(source.path, bad, num_good=num_good))
        if not len(table):
            raise BadInput(
                describe_bad_records(source.path, aside, num_good=0) if aside else f"{source.path}: has no records"
            )
        return set_laterals_aside(Collection(source.root, source.chain, table, tuple(aside), layout, source.file))

    def read_images(self, *, with_normal: bool) -> list[Record]:
        """Return images with boxed findings and, with `with_normal`, those in which the source denies findings."""
        path, images, num_boxless = self.source.path, [], 0
        # A rule about an image's labels is one of cases; one about a single box has no image to ask about.
        listed = (item._replace(rule="") if item.record.id else item for item in self.source.records)
        for image in self._sort(_scale_fractions, listed, name="id", name_of=lambda _, image: image.id, at_once=True):
            # Of a grounded report without labels: questions name a region.
            is_told = any(region.sentence and (region.region or with_normal) for region in image.regions)
            if image.boxes or is_told or (with_normal and image.absent):
                images.append(_drop_repeats(image))
            else:
                num_boxless += 1
        self._check_any()
        boxless = "without a finding that counts (no box, or too few readers agree) left out"
        boxless += ", since the source denies no finding in them" if with_normal else ""
        if num_boxless:
            _LOG.warning("%s: %d image%s %s", path, num_boxless, "" if num_boxless == 1 else "s", boxless)
        if self.set_aside:
            _LOG.warning("%s: %d set aside, such as %s", path, len(self.set_aside), self.set_aside[0].reason)
        if not images:
            raise BadInput(f"{path}: no image has a box")
        return list(compare_sizes(images, self.source.root, self.source.size_from))

    def iterate_questions(self) -> Iterator[Record]:
        """Yield the questions of a source."""
        records, of = self.source.records, lambda _, record: record.id
        yield from self._sort(lambda item: item.record, records, name="id", name_of=of, at_once=True)
        self._check_any()

    def _sort(
        self,
        prepare: Callable[[Listed], Record],
        items: Iterable[Listed],
        *,
        name: str = "",
        name_of: Callable[[Listed, Record], str] | None = None,
        keeps_missing: bool = False,
        at_once: bool = False,
    ) -> Iterator[Record]:
        """Yield good records; of several with one name the first. `at_once`: stop at the first bad one, if at all."""
        where = f"{self.source.file}, " if at_once and self.source.file else ""  # of several, the location names it
        for item in items:
            record, reason = item.record, item.refusal or ("" if keeps_missing else item.missing)
            try:
                record = record if reason else prepare(item)
            except BadInput as error:
                reason = f"{item.location}: {error}"
            if not reason and not item.rule and name_of is not None:
                known = self._first.setdefault(name_of(item, record), item.location)
                if known != item.location:
                    shown = f" {record.id[:80]!r}" if name == "id" else ""
                    reason = f"{item.location}: has the same {name}{shown} as {known}; expected one record per {name}"
            if reason and at_once and self._on_bad_record == "stop":
                raise BadInput(f"{self.source.path}, {reason}; on_bad_record=skip sets bad records aside")
            if reason or item.rule:
                number, why = self._num_good + len(self.set_aside), where + (reason or item.rule)
                self.set_aside.append(SetAside(number, record.image, why, record.patient, by_rule=not reason))
                continue
            self._num_good += 1
            if item.missing:
                self.missing[record.image] = item.missing
            yield record

    def _check_any(self) -> None:
        if not self._num_good:
            why = f"no record is valid ({self.set_aside[0].reason})" if self.set_aside else "has no records"
            raise BadInput(f"{self.source.path}: {why}")

    def _scale_to_file(self, item: Listed) -> Record:
        """Return a case with boxes in pixels of its file, without what belongs to questions alone."""
        record, size, num_steps = item.record, item.record.image_size, self.source.chain.num_steps
        if len(record.answers) not in (0, num_steps):  # none: of reports that are to be annotated
            raise BadInput(f"{len(record.answers)} answers; the chain has {num_steps} steps")
        record = (
            record
            if record.reasoning or not record.answers
            else msgspec.structs.replace(record, reasoning=("",) * num_steps)
        )
        if size == (0, 0):
            return record
        boxes, path = record.boxes, Path(item.real_path)
        if boxes and path.is_file():
            actual = read_image_size(path)
            if size != FRACTIONS:
                self._stated.compare(len(self._stated.seen), record.image, [size], actual, path)
            across, down = (now / before for now, before in zip(actual, size, strict=True))
            boxes = tuple(scale_box(box, across, down) for box in boxes)
        elif boxes and not item.rule:
            self._unscaled.append(size)
            boxes = () if size == FRACTIONS else boxes
        return msgspec.structs.replace(record, boxes=boxes, id="", image_size=(0, 0), absent=(), provenance={})


def scale_box(box: Box, across: float, down: float) -> Box:
    """Return a box in a picture that is stretched by two factors."""
    width, height = box.size
    return Box.of_size(box.label, box.x1 * across, box.y1 * down, width * across, height * down, box.sentence)


def _scale_fractions(item: Listed) -> Record:
    """Return an image with boxes in pixels, all of them usable."""
    image = item.record
    if image.image_size == FRACTIONS:
        width, height = size = read_image_size(Path(item.real_path))
        boxes = [(box, (box.x1 * width, box.y1 * height, box.x2 * width, box.y2 * height)) for box in image.boxes]
        scaled = tuple(msgspec.structs.replace(box, corners=corners) for box, corners in boxes)
        image = msgspec.structs.replace(image, image_size=size, boxes=scaled)
    for box in image.boxes:
        box.check()
        try:
            Box(box.region or "unknown", box.corners).check()
        except BadInput as error:
            raise BadInput(f"region: {str(error).removeprefix('label: ')}") from None
        width, height = image.image_size
        if box.x2 > width or box.y2 > height:
            raise BadInput(f"box: {list(box.corners)} of {box.label!r} leaves the picture of {width} by {height}")
    return image


def _drop_repeats(image: Record) -> Record:
    """Keep one of several equal findings, and note it in the provenance."""
    findings = tuple(dict.fromkeys(image.boxes))
    number = len(image.boxes) - len(findings)
    if not number:
        return image
    provenance = {**image.provenance, "repeated": f"{number} box{'' if number == 1 else 'es'} listed again, kept once"}
    return msgspec.structs.replace(image, boxes=findings, provenance=provenance)


# Find a collection's files by name and read the size of images without decoding them.

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Lower-case image suffixes: copies of a collection often store JPEG under the same names."""

_OPENERS = {b"\x89P": PngImagePlugin.PngImageFile, b"\xff\xd8": JpegImagePlugin.JpegImageFile}
_ORIENTATION = 0x0112
_LONGEST_HEADER = 2**22
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


class Image(NamedTuple):
    """Where a record's image is."""

    path: str  # below the root, with "/" as separator
    real_path: str  # with every link resolved
    missing: str = ""  # why there is no such file; "" if there is one, or nobody asks


class ImagePaths:
    """Locates images by their paths below a root; a path out of it is refused, a missing file is told."""

    def __init__(self, root: Path, *, require_images: bool) -> None:
        self._loose = ImageLocator(root, require_images=False)
        self._first = ImageLocator(root, require_images=require_images)

    def locate(self, path: str) -> Image:
        """Return where an image is."""
        normal = normalise_image_path(path)
        try:
            return Image(normal, self._first.locate(path))
        except BadInput as error:
            return Image(normal, self._loose.locate(path), str(error))


class ImageFinder:
    """Finds the image of a name in the folders where a collection keeps its images."""

    def __init__(self, root: Path, *, folders: Sequence[str], require_images: bool) -> None:
        self._paths_below = ImagePaths(root, require_images=require_images)
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

    def find(self, name: str) -> Image:
        """Return where the image of a file name is; `images/NAME` if it is nowhere."""
        if name in ("", ".", "..") or not _NOT_A_NAME.isdisjoint(name):
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is not a file name without folders")
        paths = self._paths.get(os.path.splitext(name)[0], [])  # noqa: PTH122
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        if len(paths) > 1:
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is ambiguous: {' and '.join(paths[:4])}")
        if paths:
            return self._paths_below.locate(paths[0])
        image = self._paths_below.locate(f"images/{name}")
        return image._replace(missing=self._describe_missing(name) if self._require_images else "")

    def _describe_missing(self, name: str) -> str:
        near = self._near_names.get(fold_name(os.path.splitext(name)[0]), "")  # noqa: PTH122
        near = near and f" ({near[:_NUM_SHOWN]!r} differs in Unicode form or letter case)"
        return (
            f"no image {name[:_NUM_SHOWN]!r}{near}; expected a file of this name with suffix {', '.join(SUFFIXES)} in "
            f"one of the folders {', '.join(self._folders)}"
        )

    @functools.cached_property
    def _near_names(self) -> dict[str, str]:
        return {fold_name(stem): paths[0] for stem, paths in self._paths.items()}


def list_named(
    location: str, record: Record, find: Callable[[str], Image], *, rule: str = "", where: str = ""
) -> Listed:
    """Return a record with the path that `find` returns for its image; messages begin with `where` or the location."""
    where = where or location
    try:
        image = find(record.image)
    except BadInput as error:
        return refused(location, f"{where}: {error}", image=record.image, patient=record.patient)
    missing, rule = (reason and f"{where}: {reason}" for reason in (image.missing, rule))
    record = msgspec.structs.replace(record, image=image.path)
    return Listed(location, record, missing=missing, rule=rule, real_path=image.real_path)


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
            if is_dicom(start):
                from stepcot_jax.data.images.dicom import read_size  # for this format alone

                return read_size(start + file.read(_LONGEST_HEADER), name=str(path))
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
