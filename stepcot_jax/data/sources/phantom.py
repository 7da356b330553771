"""Folders of `stepcot data phantom`: the boxes of `boxes.csv`, regions from masks, answers as facts."""

import collections
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.data.delimited import Row, read_four_numbers, read_table
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import BOX_COLUMNS
from stepcot_jax.data.questions.making import as_grounded, corners_of, ground_marks, list_answers
from stepcot_jax.data.questions.vocabulary import NORMAL, find_regions
from stepcot_jax.data.records.records import Collection, read_records
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record

_FILE = "boxes.csv"
_KINDS = ("focus", "fluid", "air", "sign")
_LARGEST_MASK = 4096
_Listed = tuple[Mark, str]  # a mark and the side of its case


def is_phantom(root: Path) -> bool:
    """Return whether the boxes belong to drawn cases; any table of boxes may have this name."""
    return (root / "data.json").is_file()


def list_phantom(root: Path, how: How) -> Source:
    """List the cases of a phantom folder: patients and answers from `data.json`, boxes from `boxes.csv`."""
    if not (root / _FILE).is_file():
        raise BadInput(f"{root}: has no {_FILE}")
    collection = read_records(root, require_images=how.require_images)
    return Source(root, _FILE, _list_cases(root / _FILE, collection), collection.chain, size_from="masks/")


def _list_cases(path: Path, collection: Collection) -> Iterator[Listed]:
    header, rows = read_table(path, known_columns=set(BOX_COLUMNS))
    if header != BOX_COLUMNS:
        raise BadInput(f"{path}: header {[name[:40] for name in header[:20]]} is not {','.join(BOX_COLUMNS)}")
    known = {case.image for case in collection.cases}
    boxes: dict[str, list[tuple[int, _Listed | BadInput]]] = collections.defaultdict(list)
    for row in rows:
        image, listed_mark = _read_mark(row)
        boxes[image].append((row.number, listed_mark))
        if image not in known:
            problem = f"row {row.number}: image_path: {image[:80]!r} is no image of {collection.path.name}"
            yield refused(f"row {row.number}", problem)
    for case in collection.cases:
        listed = boxes.get(case.image, [])
        location = f"image {case.image!r}"
        bad = next((f"row {number}: {mark}" for number, mark in listed if isinstance(mark, BadInput)), "")
        if bad:
            yield refused(location, bad, image=case.image, patient=case.patient)
            continue
        try:
            marks = [mark for _, mark in listed if not isinstance(mark, BadInput)]
            rows_of_case = ", ".join(str(number) for number, _ in listed)
            yield Listed(location, _ground(case, marks, collection=collection, rows=rows_of_case))
        except BadInput as error:
            yield refused(location, f"{location}: {error}", image=case.image, patient=case.patient)


def _read_mark(row: Row) -> tuple[str, _Listed | BadInput]:
    image, label, *numbers, side, kind, case_side = (*row.cells, *[""] * len(BOX_COLUMNS))[: len(BOX_COLUMNS)]
    x, y, width, height = read_four_numbers(numbers)
    if len(row.cells) != len(BOX_COLUMNS) or not (0 <= x < x + width < math.inf and 0 <= y < y + height < math.inf):
        return image, BadInput(f"x, y, width, height: {[number[:40] for number in numbers]} is no box in pixels")
    if side not in ("-1", "0", "1") or kind not in _KINDS or case_side not in ("right", "left", "bilateral"):
        shown = [cell[:40] for cell in (side, kind, case_side)]
        return image, BadInput(f"side, kind, case_side: {shown}; expected -1, 0 or 1, one of {_KINDS}, and a side")
    return image, (Mark(Box.of_size(label, x, y, width, height), int(side), kind), case_side)


def _ground(case: Record, listed: Sequence[_Listed], *, collection: Collection, rows: str) -> Record:
    root, name, chain = collection.root, Path(case.image).name, collection.chain
    masks = [root / "masks" / organ / name for organ in ("lung", "heart")]
    marks, sides = [mark for mark, _ in listed], {side for _, side in listed}
    if len(sides) > 1:
        raise BadInput(f"case_side: {' and '.join(sorted(sides))} of one image; expected one")
    facts = list_answers(case, chain)
    regions: tuple[Box, ...] = ()
    provenance = {"file": _FILE, "row": rows, "licence": "drawn by this package"}
    if all(mask.is_file() for mask in masks):
        lungs, heart = map(_read_binary, masks)
        if marks or facts["diagnosis"] == NORMAL:
            image = ground_marks(case, marks, side="".join(sides), lungs=lungs, heart=heart, chain=chain)
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
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be decoded ({str(error)[:200]}); expected a PNG mask") from None
