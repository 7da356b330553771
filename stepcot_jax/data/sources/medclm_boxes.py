"""The input of MedCLM's public code: a JSON list of image_path, anatomy_path and annotations with bbox and class."""

from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import as_text, split_of_name
from stepcot_jax.data.sources.released import read_objects
from stepcot_jax.host.errors import BadInput

_FIELDS = {"image_path", "annotations"}


def is_medclm_boxes(root: Path) -> bool:
    """Return whether a folder has such a list."""
    return bool(_find_files(root))


def _find_files(root: Path) -> list[Path]:
    files = []
    for path in [root] if root.is_file() else sorted((*root.glob("*.json"), *root.glob("*.jsonl"))):
        try:
            first = next((fields for _, fields in read_objects(path) if isinstance(fields, dict)), {})
        except BadInput:
            continue
        files += [path] if first.keys() >= _FIELDS else []
    return files


def list_medclm_boxes(root: Path, how: How) -> Source:
    """List the pictures; `anatomy_path`, the folder of a picture's organ masks, is kept as a fact."""
    files, folder = _find_files(root), root if root.is_dir() else root.parent
    if not files:
        raise BadInput(f"{root}: has no JSON list of image_path and annotations")
    pictures = (picture for path in files for picture in _read(path, several=len(files) > 1))
    file = files[0].name if len(files) == 1 else ""
    return list_pictures(folder, how, pictures, file=file, origin=folder.name or "MedCLM", folders=(".", "images"))


def _read(path: Path, *, several: bool) -> Iterator[Picture]:
    for location, fields in read_objects(path):
        where, image = f"{path.name}, {location}" if several else location, ""
        try:
            if isinstance(fields, BadInput):
                raise fields
            image = as_text(fields.get("image_path"), "image_path").strip()
            anatomy = as_text(fields.get("anatomy_path"), "anatomy_path").strip()
            listed = fields.get("annotations")
            if not isinstance(listed, list):
                raise BadInput("annotations: missing; a list is expected")
        except BadInput as error:
            yield Picture("", image, where, problem=str(error))
            continue
        name, facts = f"{path.stem}:{location.rpartition(' ')[2]}", (("anatomy_path", anatomy),) if anatomy else ()
        marks = [_read_mark(item, f"{where}, annotation {k}") for k, item in enumerate(listed)]
        yield Picture(name, image, where, marks, split=split_of_name(path.name), facts=facts)


def _read_mark(item: object, where: str) -> Mark:
    fields = item if isinstance(item, dict) else {}
    box, label = fields.get("bbox"), fields.get("class")
    numbers = [read_number(number) for number in box] if isinstance(box, list) else []
    if len(numbers) != 4 or not isinstance(label, str) or not label.strip():
        return Mark(where, "", (0, 0, 0, 0), f"{str(item)[:80]!r} has no bbox of four numbers and class")
    x1, y1, x2, y2 = numbers
    return Mark(where, label, (x1, y1, x2, y2))
