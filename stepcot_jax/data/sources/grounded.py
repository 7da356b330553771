"""Grounded reports as JSON lines of `{image, sentence, region, boxes}`, one a sentence (GEMeX-RMCoT, Section 3.2.1).

A line may also have `label` (the finding), `absent` (true where the label is denied), `patient`, `split` and
`image_size` (width and height of the picture that boxes refer to; else the file's).
"""

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.sources.intake import ImagePaths, find_file, read_image_size
from stepcot_jax.data.sources.listed import How, Listed, Source, refused
from stepcot_jax.data.sources.released import UNNAMED, convert_fields, read_objects
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record, Split

FILE = "grounded.jsonl"
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


def is_grounded(keys: set[str]) -> bool:
    """Return whether a record with these fields is such a line."""
    return {"image", "sentence", "boxes"} <= keys


def list_grounded(root: Path, how: How) -> Source:
    """List the images of a file, or of the one such file in a folder: labels as findings, other lines as regions."""
    path = find_file(root, FILE) if root.is_dir() else root
    if path is None:
        raise BadInput(f"{root}: has no {FILE}")
    return Source(path.parent, path.name, _list_images(path, how), size_from="image_size")


def _list_images(path: Path, how: How) -> Iterator[Listed]:
    paths = ImagePaths(path.parent, require_images=how.require_images)
    of_image: dict[str, list[tuple[str, Line]]] = collections.defaultdict(list)
    bad: dict[str, str] = {}
    for location, fields in read_objects(path):
        image = str(fields.get("image", "")) if isinstance(fields, dict) else ""
        try:
            of_image[image].append((location, _read_line(fields)))
        except BadInput as error:
            if image:  # whose report is not whole without this line
                bad.setdefault(image, f"{location}, {error}")
            else:
                yield refused(location, f"{location}, {error}")
    for image in dict.fromkeys([*of_image, *bad]):
        lines = of_image.get(image, [])
        location = lines[0][0] if lines else ""
        try:
            if image in bad:
                raise BadInput(bad[image])
            found = paths.locate(image)
            record = _ground(found.path, Path(found.real_path), [line for _, line in lines])
            record = msgspec.structs.replace(record, provenance={"file": path.name, "row": location})
        except BadInput as error:
            yield refused(location, str(error) if image in bad else f"{location}, {error}", image=image)
        else:
            missing = found.missing and f"{location}, {found.missing}"
            yield Listed(location, record, missing=missing, real_path=found.real_path)


def _read_line(fields: dict[str, Any] | BadInput) -> Line:
    if isinstance(fields, BadInput):
        raise fields
    line = convert_fields(fields, Line)
    if line.absent and not line.label:
        raise BadInput("absent: true without a label; expected the finding that the sentence denies")
    for number, corners in enumerate(line.boxes):
        try:
            Box(line.label or line.region or UNNAMED, corners).check()
        except BadInput as error:
            raise BadInput(f"boxes[{number}]: {error}") from None
    return line


def _ground(image: str, real_path: Path, lines: list[Line]) -> Record:
    """Return an image with its findings, its other sentences by region, and what is denied."""
    sizes = {line.image_size for line in lines if line.image_size}
    if len(sizes) > 1:
        raise BadInput(f"image_size: {sorted(sizes)[:3]} of one image; expected one size")
    if not sizes and not real_path.is_file():
        raise BadInput(f"image_size: neither stated nor a file {image[:80]!r} to read it from")
    size = sizes.pop() if sizes else read_image_size(real_path)
    named = {str(line.patient) for line in lines if line.patient != ""}
    if len(named) > 1:
        raise BadInput("patient: several of one image; expected one")
    splits = {line.split for line in lines if line.split}
    if len(splits) > 1:
        raise BadInput(f"split: {sorted(splits)} of one image; expected one")
    of_mimic = _MIMIC_PATIENT.search(image)
    boxed = [(line, corners) for line in lines for corners in line.boxes]
    for line, corners in boxed:
        if corners[2] > size[0] or corners[3] > size[1]:
            shown = f"boxes: {list(corners)} of {(line.region or line.label)[:80]!r}"
            raise BadInput(f"{shown} leaves the picture of {size[0]} by {size[1]}")
    findings = [Box(line.label, c, line.sentence.strip(), line.region) for line, c in boxed if _is_finding(line)]
    regions = [
        Box(line.region or UNNAMED, corners, line.sentence.strip(), line.region)
        for line, corners in boxed
        if not _is_finding(line)
    ]
    denied = dict.fromkeys(line.label for line in lines if line.absent)
    return Record(
        id=Path(image).with_suffix("").as_posix().replace("/", "_"),
        image=image,
        image_size=size,
        patient=named.pop() if named else of_mimic[1] if of_mimic else image,
        origin="grounded reports",
        split=splits.pop() if splits else "",
        report=" ".join(dict.fromkeys(line.sentence.strip() for line in lines if line.sentence.strip())),
        boxes=tuple(findings),
        regions=tuple(regions),
        absent=tuple(label for label in denied if label not in {box.label for box in findings}),
    )


def _is_finding(line: Line) -> bool:
    return bool(line.label) and not line.absent
