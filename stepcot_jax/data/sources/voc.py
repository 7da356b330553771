"""Pascal VOC: Annotations/*.xml, JPEGImages/, ImageSets/Main/{train,val,test}.txt.

Boxes count from 1 in the collection itself and from 0 in many exports: a coordinate 0 anywhere in the folder says so.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from stepcot_jax.data.sources.box_files import Mark, Picture, list_pictures, read_number
from stepcot_jax.data.sources.intake import SUFFIXES
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Split

_PATTERNS = ("Annotations/*.xml", "*/*.xml")  # Roboflow's lie beside the pictures of each part
_FOLDERS = ("JPEGImages", "images", "Images", ".")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_LARGEST = 2**24
_SPLITS: tuple[Split, ...] = ("train", "val", "test")


class _Object(NamedTuple):
    label: str
    corners: tuple[float, ...]


class _Page(NamedTuple):
    file: str
    width: int
    height: int
    objects: list[_Object]
    problem: str = ""


def is_voc(root: Path) -> bool:
    """Return whether a folder has such annotations, and no other XML."""
    for path in _find_files(root)[:1]:
        with open_untrusted(path, accepted="an XML file") as file:
            return b"<annotation" in file.read(2048)
    return False


def _find_files(root: Path) -> list[Path]:
    found = (sorted(path for path in root.glob(pattern) if path.name[:2] != "._") for pattern in _PATTERNS)
    return next(filter(None, found), [])


def list_voc(root: Path, how: How) -> Source:
    """List the pictures of the annotations; difficult objects are kept, parts of objects are not read."""
    files = _find_files(root)
    if not files:
        raise BadInput(f"{root}: has no {' or '.join(_PATTERNS)}")
    pages = {path: _read_page(path) for path in files}
    from_zero = any(0 in found.corners for page in pages.values() for found in page.objects)
    pictures = _read(root, pages, _read_splits(root), first=0.0 if from_zero else 1.0)
    return list_pictures(root, how, pictures, file="Annotations", origin=root.name or "VOC", folders=_FOLDERS)


def _read(root: Path, pages: dict[Path, _Page], splits: dict[str, Split], *, first: float) -> Iterator[Picture]:
    for path, page in pages.items():
        where = path.relative_to(root).as_posix()
        marks = []
        for number, found in enumerate(page.objects):
            label, (x1, y1, x2, y2) = found.label, found.corners
            x1, x2, y1, y2 = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
            problem = "" if label.strip() else "name: blank; the class of the object is required"
            marks.append(Mark(f"{where}, object {number}", label, (x1 - first, y1 - first, x2, y2), problem))
        part = split_of_name(path.parent.name)
        yield Picture(
            f"{part}/{path.stem}" if part else path.stem,
            _find_picture(root, path, page.file),
            where,
            marks,
            size=(page.width, page.height) if min(page.width, page.height) > 0 else (0, 0),
            split=splits.get(path.stem, part),
            problem=page.problem,
        )


def _find_picture(root: Path, path: Path, named: str) -> str:
    """Return the picture that an annotation names, else the one of the annotation's own name."""
    names = [named, *(path.stem + suffix for suffix in (Path(named).suffix, *SUFFIXES))]
    folders = (path.parent.relative_to(root).as_posix(), *_FOLDERS)
    names = [name for name in names if name and "/" not in name and "\\" not in name]
    there = (f"{folder}/{name}" for name in names for folder in folders if (root / folder / name).is_file())
    return next(there, named or f"{path.stem}.jpg")


def _read_splits(root: Path) -> dict[str, Split]:
    splits: dict[str, Split] = {}
    for split in _SPLITS:
        path = root / f"ImageSets/Main/{split}.txt"
        if path.is_file():
            text = read_file(path, max_bytes=_LARGEST, accepted="a text file").decode("utf-8", "replace")
            splits |= {line.split()[0]: split for line in text.splitlines() if line.strip()}
    return splits


def _read_page(path: Path) -> _Page:
    """Read an annotation; only elements at their own places count, so that boxes of parts are passed over."""
    texts: dict[tuple[str, ...], str] = {}
    objects: list[_Object] = []
    stack: list[str] = []

    def start(name: str, _: object) -> None:
        stack.append(name)
        if stack == ["annotation", "object"]:
            for key in [key for key in texts if key[:2] == ("annotation", "object")]:
                del texts[key]

    def read(text: str) -> None:
        texts[tuple(stack)] = texts.get(tuple(stack), "") + text

    def end(_: str) -> None:
        if stack == ["annotation", "object"]:
            get = lambda *keys: texts.get(("annotation", "object", *keys), "").strip()  # noqa: E731
            corners = tuple(read_number(get("bndbox", corner)) for corner in _CORNERS)
            objects.append(_Object(get("name"), corners))
        stack.pop()

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, read
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(read_file(path, max_bytes=_LARGEST, accepted="an XML file"), True)
    except (expat.ExpatError, ValueError, LookupError, BadInput) as error:
        return _Page("", 0, 0, [], f"cannot be read as XML ({one_line(error)[:120]})")
    sides = (read_number(texts.get(("annotation", "size", side), "").strip()) for side in ("width", "height"))
    width, height = (int(side) if 0 < side < 2**20 else 0 for side in sides)
    return _Page(texts.get(("annotation", "filename"), "").strip(), width, height, objects)


def _refuse(*_: object) -> None:
    raise BadInput("has a document type declaration")
