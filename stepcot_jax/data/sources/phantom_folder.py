"""Folders of `stepcot data phantom`: the boxes of `boxes.csv`, regions from masks, answers as facts."""

import collections
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import BOX_COLUMNS
from stepcot_jax.data.questions.making import as_grounded, corners_of, ground_marks, list_answers
from stepcot_jax.data.questions.vocabulary import NORMAL, find_regions
from stepcot_jax.data.records.records import Collection, read_records
from stepcot_jax.data.sources.delimited import Row, read_table
from stepcot_jax.data.sources.intake import Listing, Readers, read_image_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record

_NUM_PLAIN = 6
"""Columns of the exports of earlier versions, without sides and kinds, so that a finding's region is unknown."""

_KINDS = ("focus", "fluid", "air", "sign")
_LICENCE = "drawn by this package"
_LARGEST_MASK = 4096
_Listed = tuple[Mark, str]  # a mark and the side of its case; "" for an earlier export


def list_phantoms(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the cases of a phantom folder: patients and answers from `data.json`, boxes from `boxes.csv`."""
    del readers
    root = path.parent
    collection = read_records(root, require_images=require_images)
    header, rows = read_table(path, known_columns=set(BOX_COLUMNS))
    if header not in (BOX_COLUMNS, BOX_COLUMNS[:_NUM_PLAIN]):
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} is not {','.join(BOX_COLUMNS)}")
    known = {case.image for case in collection.cases}
    boxes: dict[str, list[tuple[int, _Listed | BadInput]]] = collections.defaultdict(list)
    for row in rows:
        image, listed_mark = _read_mark(row, num_columns=len(header))
        boxes[image].append((row.number, listed_mark))
        if image not in known:
            yield f"row {row.number}", BadInput(f"image_path: {image[:80]!r} is no image of {collection.path.name}")
    for case in collection.cases:
        listed = boxes.get(case.image, [])
        bad = next(((number, mark) for number, mark in listed if isinstance(mark, BadInput)), None)
        if bad:
            yield f"row {bad[0]}", bad[1]
            continue
        try:
            marks = [mark for _, mark in listed if not isinstance(mark, BadInput)]
            grounded = _ground(case, marks, collection=collection, rows=[number for number, _ in listed])
            yield f"image {case.image!r}", grounded
        except BadInput as error:
            yield f"image {case.image!r}", error


def _read_mark(row: Row, *, num_columns: int) -> tuple[str, _Listed | BadInput]:
    image, label, *numbers = (*row.cells, *[""] * len(BOX_COLUMNS))[:_NUM_PLAIN]
    try:
        x, y, width, height = map(float, numbers)
    except ValueError:
        x = y = width = height = math.nan
    box = Box.of_size(label, x, y, width, height)
    if len(row.cells) != num_columns or not (0 <= x < x + width < math.inf and 0 <= y < y + height < math.inf):
        return image, BadInput(f"x, y, width, height: {[number[:40] for number in numbers]} is no box in pixels")
    if num_columns == _NUM_PLAIN:
        return image, (Mark(box, 0, ""), "")
    side, kind, case_side = row.cells[_NUM_PLAIN:]
    if side not in ("-1", "0", "1") or kind not in _KINDS or case_side not in ("right", "left", "bilateral"):
        shown = [cell[:40] for cell in row.cells[_NUM_PLAIN:]]
        return image, BadInput(f"side, kind, case_side: {shown}; expected -1, 0 or 1, one of {_KINDS}, and a side")
    return image, (Mark(box, int(side), kind), case_side)


def _ground(case: Record, listed: Sequence[_Listed], *, collection: Collection, rows: list[int]) -> Record:
    root, name = collection.root, Path(case.image).name
    masks = [root / "masks" / organ / name for organ in ("lung", "heart")]
    marks, sides = [mark for mark, _ in listed], {side for _, side in listed}
    if len(sides) > 1:
        raise BadInput(f"case_side: {' and '.join(sorted(sides))} of one image; expected one")
    provenance = {"file": "boxes.csv", "row": ", ".join(map(str, rows)), "licence": _LICENCE}
    facts = list_answers(case, collection.chain)
    regions: tuple[Box, ...] = ()
    if all(mask.is_file() for mask in masks):
        lungs, heart = map(_read_binary, masks)
        if all(sides) and (marks or facts["diagnosis"] == NORMAL):
            side, chain = "".join(sides), collection.chain
            image = ground_marks(case, marks, side=side, lungs=lungs, heart=heart, chain=chain)
            return msgspec.structs.replace(image, provenance=provenance)
        regions, size = find_regions(lungs, heart), (lungs.shape[1], lungs.shape[0])
    else:
        size = read_image_size(root / case.image)
    findings = tuple(Box(mark.box.label, corners_of(mark)) for mark in marks)
    image = as_grounded(case, size=size, findings=findings, regions=regions, facts=facts)
    return msgspec.structs.replace(image, provenance=provenance)


def _read_binary(path: Path) -> np.ndarray:
    """Return whether each pixel of a mask is above half of white, as MedCLM's code reads masks."""
    width, height = read_image_size(path)
    if max(width, height) > _LARGEST_MASK:
        raise BadInput(f"{path}: mask of {width} by {height} pixels; expected at most {_LARGEST_MASK} a side")
    try:
        with open_untrusted(path, accepted="a PNG mask") as file, Image.open(file, formats=("PNG",)) as mask:
            return np.asarray(mask.convert("L")) > 127
    except OSError as error:
        raise BadInput(f"{path}: cannot be decoded ({str(error)[:200]}); expected a PNG mask") from None
