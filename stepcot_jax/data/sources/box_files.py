"""Boxes of detection data sets: what a table writes becomes boxes in pixels of the picture's file.

Mended, and counted in the log, is what has one reading alone: corners in another order, a box over the picture's edge,
boxes in a copy of another size and the same shape. Whatever else is wrong with a box sets it aside with its reason; a
picture that has no other box is set aside too, so that it never passes for a normal one.
"""

import collections
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.images.stated_sizes import Size, have_same_shape
from stepcot_jax.data.questions.questions import UNKNOWN
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.data.sources.listed import FRACTIONS, How, Listed, Source, refused
from stepcot_jax.data.sources.question_files import Folders
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record, Split

_FURTHEST = 1.5  # of a share: half a box may lie over the edge
_UNSAFE = str.maketrans("|\\", "//", "<>[](){}*\"'`")
_LOG = logging.getLogger(__name__)


class Mark(NamedTuple):
    """A box as a table writes it."""

    location: str
    label: str
    corners: Corners  # x1, y1, x2, y2 in any order, from 0
    problem: str = ""  # why it cannot be used
    rule: str = ""  # why a rule of the layout leaves it out
    facts: tuple[tuple[str, str], ...] = ()


class Picture(NamedTuple):
    """A picture with its boxes."""

    name: str  # of the record
    image: str  # path, or name in one of the layout's folders
    location: str
    marks: Sequence[Mark] = ()
    size: Size = (0, 0)  # that the boxes refer to; (0, 0): the file's; `FRACTIONS`: shares
    keeps_size: bool = False  # whether the file may be a stretched copy: boxes stay in pixels of the stated size
    split: Split = ""
    patient: str = ""  # "": the picture's digest
    absent: tuple[str, ...] = ()  # labels that it certainly does not have
    problem: str = ""  # why it cannot be used
    modality: str = UNKNOWN
    organ: str = ""
    facts: tuple[tuple[str, str], ...] = ()


def list_pictures(
    root: Path,
    how: How,
    pictures: Iterable[Picture],
    *,
    file: str,
    origin: str,
    folders: Sequence[str] = (".",),
    licence: str = "of the data set",
    size_from: str = "",
) -> Source:
    """List pictures of one of several folders; of several with one name the intake keeps the first."""
    images = Folders(root, folders, require_images=how.require_images)
    listed = _list(root, pictures, images, {"file": file, "licence": licence}, origin)
    return Source(root, file, listed, size_from=size_from)


def _list(
    root: Path, pictures: Iterable[Picture], images: Folders, made: dict[str, str], origin: str
) -> Iterator[Listed]:
    mended = collections.Counter[str]()
    for picture in pictures:
        yield from _read(picture, images, made, origin, mended)
    for what, number in mended.items():
        _LOG.warning("%s: %d %s", root, number, what)


def _read(
    picture: Picture, images: Folders, made: dict[str, str], origin: str, mended: collections.Counter[str]
) -> Iterator[Listed]:
    where = picture.location
    try:
        if picture.problem:
            raise BadInput(picture.problem)
        found = images.find(picture.image)
        bare = Record(id=picture.name, image=found.path, patient=picture.patient or _name_original(found.path))
        if found.missing:
            yield Listed(where, bare, missing=f"{where}: {found.missing}")
            return
        file = Path(found.real_path)
        is_stated = picture.keeps_size and picture.size != (0, 0)
        size = read_image_size(file) if file.is_file() and not is_stated else picture.size
        _check_size(picture.size, size)
    except BadInput as error:
        yield refused(where, f"{where}: {error}", image=picture.image)
        return
    kept, bad = list[Box](), list[Mark]()
    for mark in picture.marks:
        if mark.rule:
            yield Listed(mark.location, Record(image=found.path, patient=""), rule=f"{mark.location}: {mark.rule}")
            continue
        try:
            if mark.problem:
                raise BadInput(mark.problem)
            kept.append(_place(mark, picture.size, size, mended))
        except BadInput as error:
            bad.append(mark._replace(problem=str(error)))
    if bad and not kept:
        own = bad[0].location.removeprefix(where).removeprefix(f"{where.rpartition(', ')[0]}, ").lstrip(", ")
        why = f"{own}: {bad[0].problem}" if own else bad[0].problem
        yield refused(where, f"{where}: {why}; it has no other box that can be used", image=found.path)
        return
    for mark in bad:
        yield refused(mark.location, f"{mark.location}: {mark.problem}", image=found.path)
    left_out = {"left_out": f"{len(bad)} bad boxes"} if bad else {}
    made = {**made, "row": where, **left_out}
    yield Listed(where, _make_record(picture, bare, size, kept, origin, made), real_path=found.real_path)


def _name_original(path: str) -> str:
    """Return one patient for the copies of a picture that Roboflow augments (".rf." in their names), else the path."""
    original, is_copy, _ = path.rpartition("/")[2].partition(".rf.")
    return f"picture-{original}" if is_copy else path


def _make_record(
    picture: Picture, bare: Record, size: Size, boxes: Sequence[Box], origin: str, made: dict[str, str]
) -> Record:
    return msgspec.structs.replace(
        bare,
        image_size=size,
        origin=origin,
        split=picture.split,
        boxes=tuple(boxes),
        absent=picture.absent,
        modality=picture.modality,
        organ=picture.organ,
        facts=dict(picture.facts),
        provenance=made,
    )


def _check_size(stated: Size, size: Size) -> None:
    if min(size) < 1 or (size == FRACTIONS and stated == FRACTIONS):
        raise BadInput("its size is unknown: neither a file of the picture nor a stated size")
    if stated not in ((0, 0), FRACTIONS) and stated != size and not have_same_shape(stated, size):
        shown = f"{stated[0]} by {stated[1]}, the file {size[0]} by {size[1]}"
        raise BadInput(f"its stated size is {shown}: boxes cannot be placed in a picture of another shape")


def _place(mark: Mark, stated: Size, size: Size, mended: collections.Counter[str]) -> Box:
    """Return a mark as a box in pixels of the file."""
    if not all(map(math.isfinite, mark.corners)):
        raise BadInput(f"box: {list(mark.corners)} has no four numbers")
    if stated == FRACTIONS and not all(1 - _FURTHEST <= number <= _FURTHEST for number in mark.corners):
        raise BadInput(f"box: {list(mark.corners)} are no shares from 0 to 1 (pixels?)")
    x1, y1, x2, y2 = mark.corners
    if x1 > x2 or y1 > y2:
        mended["boxes with corners in another order, sorted"] += 1
    scale = (1.0, 1.0) if stated == (0, 0) else (size[0] / stated[0], size[1] / stated[1])
    if stated not in ((0, 0), FRACTIONS) and stated != size:
        mended["boxes of a copy of another size, scaled to the file"] += 1
    low, high = (min(x1, x2), min(y1, y2)), (max(x1, x2), max(y1, y2))
    left, top = (max(0.0, value * factor) for value, factor in zip(low, scale, strict=True))
    right, bottom = (min(float(side), value * factor) for value, factor, side in zip(high, scale, size, strict=True))
    if left >= right or top >= bottom:
        raise BadInput(f"box: {list(mark.corners)} has no area within the picture of {size[0]} by {size[1]}")
    if min(low) < 0 or high[0] * scale[0] > size[0] + 1e-6 or high[1] * scale[1] > size[1] + 1e-6:
        mended["boxes over the picture's edge, cut there"] += 1
    label = " ".join(mark.label.translate(_UNSAFE).split())
    return Box(label, (left, top, right, bottom)).check()


def read_number(written: object) -> float:
    """Return a number, NaN for what is none."""
    try:
        return float(written) if isinstance(written, str | int | float) else math.nan
    except ValueError:
        return math.nan
