"""COCO's detection files: annotations/*.json with images, annotations and categories, as Roboflow exports them too."""

import collections
import contextlib
import logging
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Corners
from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file, read_json
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Split

PATTERNS = ("annotations/*.json", "*/_annotations.coco.json", "*.json")
_LARGEST = 2**31
_LOG = logging.getLogger(__name__)
_NAN = re.compile(rb"(?<=[\[,:\s])NaN(?=[\s,\]}])")
_NAMED = re.compile(r"(?:instances|annotations|person_keypoints)?[_.-]*(.*)")


class _Image(msgspec.Struct):
    id: int | str
    file_name: str
    width: float | None = None
    height: float | None = None


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int | str = ""
    id: int | str = ""
    bbox: Any = None
    iscrowd: Any = 0
    segmentation: msgspec.Raw = msgspec.Raw(b"null")


class _Category(msgspec.Struct):
    id: int | str
    name: str


class _File(msgspec.Struct):
    images: list[_Image]
    annotations: list[_Annotation] = []
    categories: list[_Category] = []


def is_coco(root: Path) -> bool:
    """Return whether a folder has a file of images, annotations and categories."""
    return bool(_find_files(root))


def _find_files(root: Path) -> list[Path]:
    files = sorted(path for pattern in PATTERNS for path in root.glob(pattern) if path.is_file())
    return [path for path in files if _looks_right(path)]


def _looks_right(path: Path) -> bool:
    """Return whether the keys stand in the first or the last part of a file."""
    with open_untrusted(path, accepted="a COCO file") as file:
        head = file.read(2**16)
        file.seek(max(0, path.stat().st_size - 2**16))
        tail = file.read(2**16)
    keys = (b'"images"', b'"annotations"', b'"categories"')
    return head.lstrip()[:1] == b"{" and sum(key in head or key in tail for key in keys) >= 2


def list_coco(root: Path, how: How) -> Source:
    """List the pictures of all files; a crowd is a rule's, a polygon without a box becomes the box around it."""
    files = _find_files(root)
    if not files:
        raise BadInput(f"{root}: has no {' or '.join(PATTERNS)} with images, annotations and categories")
    folders = dict.fromkeys(("images", *(folder for path in files for folder in _guess_folders(root, path))))
    images_by_name = dict[str, str]()  # of all files, each of which may count its images from 1
    pictures = (picture for path in files for picture in _read(path, root, images_by_name, several=len(files) > 1))
    file = files[0].relative_to(root).as_posix() if len(files) == 1 else ""
    return list_pictures(root, how, pictures, file=file, origin=root.name or "COCO", folders=(".", *folders))


def _guess_folders(root: Path, path: Path) -> list[str]:
    """Return the folders below the root in which a file's pictures may lie, the likeliest first."""
    match, split = _NAMED.fullmatch(path.stem), _split_of(path)
    part, beside = match[1] if match else "", path.parent.relative_to(root).as_posix()
    folders = (part, part and f"images/{part}", beside, split and f"images/{split}", split)
    return [folder for folder in folders if folder not in ("", ".")]


def _split_of(path: Path) -> Split:
    return split_of_name(path.stem) or split_of_name(path.parent.name)


def _decode(path: Path) -> _File:
    try:
        return read_json(path, _File, accepted="a COCO file", max_bytes=_LARGEST)
    except BadInput:  # Python writes NaN, which is no JSON
        written = read_file(path, max_bytes=_LARGEST, accepted="a COCO file")
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(_NAN.sub(b"null", written), type=_File)
        raise


def _read(path: Path, root: Path, images_by_name: dict[str, str], *, several: bool) -> Iterator[Picture]:
    content = _decode(path)
    if not content.categories or not content.annotations:  # of captions, or of a test part whose boxes are withheld
        _LOG.warning("%s: has no boxes of categories; it is not read", path)
        return
    name = f"{path.relative_to(root).as_posix()}, " if several else ""
    categories = {category.id: category.name for category in content.categories}
    marks: dict[int | str, list[Mark]] = collections.defaultdict(list)
    known = {image.id for image in content.images}
    for number, annotation in enumerate(content.annotations):
        where = f"{name}annotation {annotation.id if annotation.id != '' else number}"
        if annotation.image_id in known:
            marks[annotation.image_id].append(_read_mark(annotation, categories, where))
        else:
            yield Picture("", "", where, problem=f"image_id: {annotation.image_id!r:.40} is no listed image")
    split, folders = _split_of(path), _guess_folders(root, path)
    for image in content.images:
        where = f"{name}image {image.id!r:.40} ({image.file_name[:80]})"
        file = _find_picture(root, folders, image.file_name)
        is_known = images_by_name.setdefault(str(image.id), file) != file
        yield Picture(
            f"{split or path.stem}/{image.id}" if is_known or path.stem.startswith("_") else str(image.id),
            file,
            where,
            marks[image.id],
            size=(int(image.width), int(image.height)) if image.width and image.height else (0, 0),
            split=split,
        )


def _find_picture(root: Path, folders: Sequence[str], name: str) -> str:
    """Return an image's path; pictures of one name may lie in the folders of several splits."""
    there = (f"{folder}/{name}" for folder in folders if ".." not in name and (root / folder / name).is_file())
    return next(there, name)


def _read_mark(annotation: _Annotation, categories: dict[int | str, str], where: str) -> Mark:
    label = categories.get(annotation.category_id, "")
    corners, problem = (0.0, 0.0, 0.0, 0.0), ""
    try:
        corners = _corners(annotation)
    except BadInput as error:
        problem = str(error)
    if not label:
        problem = f"category_id: {annotation.category_id!r:.40} is no listed category"
    rule = "iscrowd: a region of many, not one finding" if annotation.iscrowd else ""
    return Mark(where, label, corners, "" if rule else problem, rule)


def _corners(annotation: _Annotation) -> Corners:
    box = annotation.bbox
    if box:
        numbers = list(map(read_number, box)) if isinstance(box, list) else []
        if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
            raise BadInput(f"bbox: {str(box)[:80]}; expected x, y, width, height")
        x, y, width, height = numbers
        if width <= 0 or height <= 0:
            raise BadInput(f"bbox: {box} has no area")
        return x, y, x + width, y + height
    try:
        polygons = msgspec.json.decode(annotation.segmentation, type=list[list[float]])
    except msgspec.MsgspecError:
        raise BadInput("bbox: missing, and no polygon in its place") from None
    return enclose([number for polygon in polygons for number in polygon])


def enclose(numbers: Sequence[float]) -> Corners:
    """Return the box around a polygon, x and y in turn."""
    if len(numbers) < 6 or len(numbers) % 2:
        raise BadInput(f"segmentation: {len(numbers)} numbers; expected x and y of at least three points")
    xs, ys = numbers[::2], numbers[1::2]
    return min(xs), min(ys), max(xs), max(ys)
