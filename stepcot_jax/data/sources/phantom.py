"""Folders of `stepcot data phantom`: the boxes of `boxes.csv`, regions from masks, answers as facts."""

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import BOX_COLUMNS
from stepcot_jax.data.questions.making import as_grounded, corners_of, ground_marks, list_answers
from stepcot_jax.data.questions.vocabulary import NORMAL, find_regions
from stepcot_jax.data.records.records import Collection, read_records
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.sources.released import convert_fields
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record

_FILE = "boxes.csv"
_LARGEST_MASK = 4096
_Listed = tuple[Mark, str]  # a mark and the side of its case


class _Row(msgspec.Struct, frozen=True):
    """A row of `boxes.csv`, which this package wrote."""

    label: str
    x: Annotated[float, msgspec.Meta(ge=0)]
    y: Annotated[float, msgspec.Meta(ge=0)]
    width: Annotated[float, msgspec.Meta(gt=0)]
    height: Annotated[float, msgspec.Meta(gt=0)]
    side: Literal[-1, 0, 1]
    kind: Literal["focus", "fluid", "air", "sign"]
    case_side: Literal["right", "left", "bilateral"]


def is_phantom(root: Path) -> bool:
    """Return whether the columns are those of drawn cases; any table of boxes may have this name."""
    with open_untrusted(root / _FILE, accepted="a table") as file:
        return file.readline(4096).decode("utf-8", "replace").strip() == ",".join(BOX_COLUMNS)


def list_phantom(root: Path, how: How) -> Source:
    """List the cases of a phantom folder: patients and answers from `data.json`, boxes from `boxes.csv`."""
    if not (root / _FILE).is_file():
        raise BadInput(f"{root}: has no {_FILE}")
    collection = read_records(root, require_images=how.require_images)
    return Source(root, _FILE, _list_cases(root / _FILE, collection), collection.chain, size_from="masks/")


def _list_cases(path: Path, collection: Collection) -> Iterator[Listed]:
    known = {case.image for case in collection.cases}
    boxes: dict[str, list[tuple[int, _Listed | BadInput]]] = collections.defaultdict(list)
    for row, (image, *cells), problem in read_columns(path, BOX_COLUMNS):
        boxes[image].append((row.number, BadInput(problem) if problem else _read_mark(cells)))
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


def _read_mark(cells: Sequence[str]) -> _Listed | BadInput:
    try:
        row = convert_fields(dict(zip(BOX_COLUMNS[1:], cells, strict=True)), _Row, strict=False)
    except BadInput as error:
        return error
    return Mark(Box.of_size(row.label, row.x, row.y, row.width, row.height), row.side, row.kind), row.case_side


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
