"""YOLO's folders: data.yaml, images/ and labels/ side by side, a line "class cx cy w h" in shares, or a polygon.

As Ultralytics documents it and Roboflow exports it. A picture without labels, or with an empty file of them, shows none
of the classes. A part is a folder, or a text file that names pictures.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import msgspec
import yaml

from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.coco import enclose
from stepcot_jax.data.sources.intake import SUFFIXES
from stepcot_jax.data.sources.listed import FRACTIONS, How, Source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import one_line
from stepcot_jax.record import Split

NAMES = ("data.yaml", "dataset.yaml", "*.yaml", "*.yml")
_PARTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "val"), ("valid", "val"), ("test", "test"))
_LARGEST = 2**20
_LOG = logging.getLogger(__name__)
_SLACK = 0.01  # as Ultralytics allows
_LONGEST_LABELS = 2**24


_Folders = str | list[str] | None


class _Content(msgspec.Struct):
    """What is read of data.yaml."""

    names: list[str | int | float | bool] | dict[str | int, str | int | float | bool]
    nc: int | None = None
    path: str | None = None
    train: _Folders = None
    val: _Folders = None
    valid: _Folders = None
    test: _Folders = None


def is_yolo(root: Path) -> bool:
    """Return whether a folder has a file with names of classes."""
    return _find(root) is not None


def _find(root: Path) -> Path | None:
    """Return the first file that names classes and parts."""
    for path in (path for name in NAMES for path in sorted(root.glob(name)) if path.is_file()):
        content = read_file(path, max_bytes=_LARGEST, accepted="a YAML file")
        if b"names" in content and (b"train" in content or b"val" in content):
            return path
    return None


def list_yolo(root: Path, how: How) -> Source:
    """List the pictures of the parts that data.yaml names, and of label files without a picture the refusals."""
    path = _find(root)
    if path is None:
        raise BadInput(f"{root}: has no {' or '.join(NAMES)}")
    try:
        content = yaml.safe_load(read_file(path, max_bytes=_LARGEST, accepted="a YAML file"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{path}: {one_line(error)[:200]}; expected a YAML file") from None
    try:
        msgspec.convert(content, _Content)  # before anything becomes text: aliases may nest without end
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadInput(f"{path}: {one_line(error)[:200]}; expected names, and folders of train, val and test") from None
    classes = _read_classes(content, path)
    pictures = _read(root, path, content, classes)
    return list_pictures(root, how, pictures, file=path.name, origin=root.name or "YOLO")


def _read_classes(content: dict[Any, Any], path: Path) -> dict[int, str]:
    names = content.get("names")
    pairs = names.items() if isinstance(names, dict) else enumerate(names) if isinstance(names, list) else ()
    named = ((int(key), str(name)) for key, name in pairs if str(key).isdecimal())
    classes = {key: name for key, name in named if name.strip()}
    number = content.get("nc", len(classes))
    if not classes or number != len(classes):
        raise BadInput(
            f"{path}: names: {len(classes)} classes, nc {number!r:.20}; expected a list or a mapping by number"
        )
    return classes


def _read(root: Path, path: Path, content: dict[Any, Any], classes: dict[int, str]) -> Iterator[Picture]:
    for key, split in _PARTS:
        written = content.get(key)
        for folder in written if isinstance(written, list) else [written]:
            if not folder:
                continue
            place = _locate(root, content, str(folder))
            if place is None and key != "train":  # Roboflow names parts that an export left empty
                _LOG.warning("%s: %s: no %r below the folder: read without this part", path, key, str(folder)[:80])
            elif place is None:
                raise BadInput(f"{path}: {key}: {str(folder)[:80]!r} is not a folder below {root}")
            elif place.is_dir():
                yield from _read_folder(root, place, split, classes)
            else:
                yield from _read_list(root, place, split, classes)


def _locate(root: Path, content: dict[Any, Any], folder: str) -> Path | None:
    """Return a part below the root; Roboflow's "../train/images" lies beside data.yaml, absolute paths elsewhere."""
    base = str(content.get("path") or "")
    path = PureWindowsPath(folder)  # its separators are "/" and "\\"
    parts = [part for part in path.parts if part not in (path.anchor, "..", ".")]
    starts = (start for start in range(len(parts)) if dict(_PARTS).keys().isdisjoint(parts[:start]))
    ends = (root.joinpath(*parts[start:]) for start in starts)  # never "images" alone of "test/images"
    for candidate in (root / base / folder, root / folder, *ends):
        if candidate.exists() and candidate.resolve().is_relative_to(root.resolve()):
            return candidate
    return None


def _read_list(root: Path, table: Path, split: Split, classes: dict[int, str]) -> Iterator[Picture]:
    """Yield the pictures that a text file names, one a line."""
    text = read_file(table, max_bytes=_LONGEST_LABELS, accepted="a list of pictures").decode("utf-8", "replace")
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        file = _locate(root, {"path": table.parent.relative_to(root)}, line) if line else None
        if file is not None and file.is_file():
            yield _read_picture(root, file, root, split, classes)
        elif line:
            yield Picture("", line, f"{table.name}, line {number}", problem=f"no picture {line[:80]!r} below {root}")


def _read_folder(root: Path, folder: Path, split: Split, classes: dict[int, str]) -> Iterator[Picture]:
    labels = _labels_of(folder, root)
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.name[:2] != "._")
    yield from (_read_picture(root, file, folder, split, classes) for file in files)
    seen = {labels / file.relative_to(folder).with_suffix(".txt") for file in files}
    for table in sorted(set(labels.rglob("*.txt")) - seen):
        if table.name != "classes.txt":
            where = table.relative_to(root).as_posix()
            yield Picture("", "", where, problem=f"no picture {table.stem!r} in {folder.relative_to(root)}")


def _read_picture(root: Path, file: Path, folder: Path, split: Split, classes: dict[int, str]) -> Picture:
    name = f"{split}/{file.relative_to(folder).with_suffix('').as_posix()}"
    picture = Picture(name, file.relative_to(root).as_posix(), name, size=FRACTIONS, split=split)
    table = _labels_of(file.parent, root) / f"{file.stem}.txt"
    try:
        marks = _read_labels(table, root, classes) if table.is_file() else []
    except BadInput as error:
        return picture._replace(problem=str(error))
    return picture._replace(marks=marks, absent=() if marks else tuple(classes.values()))


def _labels_of(folder: Path, root: Path) -> Path:
    """Return the folder of the labels: "labels" in place of the last "images", else the pictures' own."""
    parts = list(folder.relative_to(root).parts)
    if "images" not in parts:
        return folder
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return root.joinpath(*parts)


def _read_labels(table: Path, root: Path, classes: dict[int, str]) -> list[Mark]:
    try:
        text = read_file(table, max_bytes=_LONGEST_LABELS, accepted="a text file").decode()
    except UnicodeDecodeError:
        raise BadInput(f"{table.relative_to(root)}: not UTF-8 text") from None
    marks = dict[str, Mark]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            where = f"{table.relative_to(root).as_posix()}, line {number}"
            marks.setdefault(line.strip(), _read_line(line.split(), where, classes))  # Ultralytics drops repeated lines
    return list(marks.values())


def _read_line(cells: Sequence[str], where: str, classes: dict[int, str]) -> Mark:
    number, *numbers = map(read_number, cells)
    label = classes.get(int(number), "") if number == number // 1 else ""
    if not label:
        return Mark(where, "", (0, 0, 0, 0), f"class {cells[0][:20]!r} is none of {len(classes)}")
    if not all(-_SLACK <= share <= 1 + _SLACK for share in numbers):
        return Mark(where, "", (0, 0, 0, 0), f"{' '.join(cells[1:])[:80]} are no shares from 0 to 1 (pixels?)")
    try:
        if len(numbers) == 4:
            x, y, width, height = numbers
            return Mark(where, label, (x - width / 2, y - height / 2, x + width / 2, y + height / 2))
        return Mark(where, label, enclose(numbers))
    except BadInput:
        return Mark(where, "", (0, 0, 0, 0), f"{len(numbers)} numbers; expected cx cy w h, or a polygon")
