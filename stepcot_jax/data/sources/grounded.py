"""Grounded reports as JSON lines of `{image, sentence, region, boxes}`, one a sentence (GEMeX-RMCoT, Section 3.2.1).

A line may also have `label` (the finding), `absent` (true where the label is denied), `patient`, `split` and
`image_size` (width and height of the picture that boxes refer to; else the file's).
"""

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.sources.intake import ImagePaths, find_file, read_image_size
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.sources.released import UNNAMED, convert_fields, read_objects
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record, Split

FILE = "grounded.jsonl"
T = TypeVar("T")
_MIMIC_PATIENT = re.compile(r"(?:^|/)(p[0-9]{8})(?=/)")


class Line(msgspec.Struct, frozen=True):
    """A sentence with its region and the boxes of it, in pixels."""

    image: str
    sentence: str
    boxes: tuple[Corners, ...]
    region: str = ""
    label: str = ""
    absent: bool = False
    patient: str | int = ""
    split: Split = ""
    image_size: tuple[int, int] | None = None


def list_grounded(root: Path, how: How) -> Source:
    """List the images of a file, or of the one such file in a folder: labels as findings, other lines as regions."""
    path = find_file(root, FILE) if root.is_dir() else root
    if path is None:
        raise BadInput(f"{root}: has no {FILE}; a file of another name is named itself")
    return Source(path.parent, path.name, _list_images(path, how), size_from="image_size")


def _list_images(path: Path, how: How) -> Iterator[Listed]:
    paths = ImagePaths(path.parent, require_images=how.require_images)
    of_image: dict[str, list[tuple[str, Line | BadInput]]] = collections.defaultdict(list)
    for location, fields in read_objects(path):
        if isinstance(fields, BadInput):
            yield refused(location, f"{location}, {fields}")
            continue
        try:
            line: Line | BadInput = convert_fields(fields, Line)
        except BadInput as error:  # of whose image the report is not whole
            line = error
        of_image[str(fields.get("image", ""))].append((location, line))
    for image, lines in of_image.items():
        location = lines[0][0]
        try:
            found = paths.locate(image)
            record = _ground(found.path, Path(found.real_path), lines)
        except BadInput as error:
            is_placed = str(error).startswith(location.split()[0])
            yield refused(location, str(error) if is_placed else f"{location}, {error}", image=image)
        else:
            record = msgspec.structs.replace(record, provenance={"file": path.name, "row": location})
            missing = found.missing and f"{location}, {found.missing}"
            yield Listed(location, record, missing=missing, real_path=found.real_path)


def _ground(image: str, real_path: Path, lines: Sequence[tuple[str, Line | BadInput]]) -> Record:
    """Return an image with its findings, its other sentences by region, and what is denied."""
    told: list[Line] = []
    for location, line in lines:
        if isinstance(line, BadInput):
            raise BadInput(f"{location}, {line}")
        if line.absent and not line.label:
            raise BadInput(f"{location}, absent: true without a label; expected the finding that the sentence denies")
        told.append(line)
    size = _agree("image_size", (line.image_size for line in told), location=lines[0][0])
    if not size and not real_path.is_file():
        raise BadInput(f"{lines[0][0]}, image_size: neither stated nor a file {image[:80]!r} to read it from")
    size = size or read_image_size(real_path)
    boxes: dict[bool, list[Box]] = {True: [], False: []}
    for (location, _), line in zip(lines, told, strict=True):
        is_finding = bool(line.label) and not line.absent
        for corners in line.boxes:
            name = line.label if is_finding else line.region or UNNAMED
            box = Box(name, corners, line.sentence.strip(), line.region)
            try:
                box.check()
            except BadInput as error:
                raise BadInput(f"{location}, boxes: {error}") from None
            if box.x2 > size[0] or box.y2 > size[1]:
                raise BadInput(f"{location}, box: {list(corners)} leaves the picture of {size[0]} by {size[1]}")
            boxes[is_finding].append(box)
    patient = _agree("patient", (line.patient for line in told), location=lines[0][0])
    of_mimic = _MIMIC_PATIENT.search(image)
    found = {box.label for box in boxes[True]}
    return Record(
        id=Path(image).with_suffix("").as_posix().replace("/", "_"),
        image=image,
        image_size=size,
        patient=str(patient or (of_mimic[1] if of_mimic else image)),
        origin="grounded reports",
        split=_agree("split", (line.split for line in told), location=lines[0][0]) or "",
        report=" ".join(dict.fromkeys(line.sentence.strip() for line in told if line.sentence.strip())),
        boxes=tuple(boxes[True]),
        regions=tuple(boxes[False]),
        absent=tuple(dict.fromkeys(line.label for line in told if line.absent and line.label not in found)),
    )


def _agree(name: str, values: Iterable[T], *, location: str) -> T | None:
    """Return what the lines of an image state; None if none does."""
    stated = {value for value in values if value}
    if len(stated) > 1:
        raise BadInput(f"{location}, {name}: {len(stated)} of one image; expected one")
    return stated.pop() if stated else None
