"""Questions about images from any source: released VQA files, reasoning records, and detection lists."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.detections import DETECTION_LAYOUTS, detect_detection_layout, read_detections
from stepcot_jax.data.sources.gemex import is_gemex, read_gemex
from stepcot_jax.data.sources.intake import TABLE_SUFFIXES as SUFFIXES
from stepcot_jax.data.sources.intake import Readers, read_objects
from stepcot_jax.data.sources.medsage import is_medsage, read_medsage
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.record import Record, SetAside

AUTO = "auto"
RECORDS, GEMEX, MEDSAGE = "records", "gemex", "medsage"

VQA_LAYOUTS: tuple[str, ...] = (RECORDS, GEMEX, MEDSAGE, *DETECTION_LAYOUTS)
"""Names of the layouts that `read_vqa_source` knows."""

_LARGEST_OBJECT = 2**24

_LOG = logging.getLogger(__name__)


def read_vqa_source(
    root: Path,
    *,
    layout: str = AUTO,
    box_size: tuple[int, int] | None = None,
    seed: int = 0,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    with_normal: bool = True,
    readers: Readers = 2,
    set_aside: list[SetAside] | None = None,
) -> Iterator[Record]:
    """Yield the reasoning records of a folder or file, one at a time; `stepcot data vqa` writes them.

    Image paths are relative to `root` (its folder, if it is a file). Faults of single records are raised or set aside
    while reading, so use up the iterator before `set_aside` is looked at. Detection lists are no questions yet:
    `grounded.questions.ask_questions` asks them.

    Args:
      box_size: width and height in pixels of the picture that boxes refer to: required for GEMeX; MEDSAGE takes each
        image's own size without it; the other layouts state theirs and refuse it.
    """
    root = Path(root)
    layout = detect_vqa_layout(root) if layout == AUTO else layout
    if layout not in VQA_LAYOUTS:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *VQA_LAYOUTS))}")
    if layout not in (GEMEX, MEDSAGE) and box_size is not None:
        raise BadInput(
            f"--box-size: the layout {layout} states the size of its boxes; only {GEMEX}, {MEDSAGE} take one"
        )
    options: dict[str, Any] = {"on_bad_record": on_bad_record, "require_images": require_images}
    if layout in DETECTION_LAYOUTS:
        options |= {"with_normal": with_normal, "readers": readers, "set_aside": set_aside}
        return _ask(read_detections(root, layout=layout, **options), seed)
    if layout == RECORDS:
        collection = read_vqa_records(root, **options)
        if set_aside is not None:
            set_aside += collection.set_aside
        return iter(collection.records)
    if box_size is not None and min(box_size) < 1:
        raise BadInput(f"--box-size: {list(box_size)} is not a width and a height of at least 1 pixel")
    read = read_gemex if layout == GEMEX else read_medsage
    folder, files = root if root.is_dir() else root.parent, _list_files(root, layout=layout)
    return read(files, root=folder, box_size=box_size, set_aside=set_aside, **options)


def _ask(images: Iterable[Record], seed: int) -> Iterator[Record]:
    from stepcot_jax.data.questions.questions import ask_questions

    return (record for image in images for record in ask_questions(image, seed=seed))


def detect_vqa_layout(root: Path) -> str:
    """Return the layout of a source, recognised by file names and the fields of the first record that can be decoded.

    Raises:
      BadInput: the source has none or several of the layouts.
    """
    root = Path(root)
    if not root.exists():
        raise BadInput(f"{root}: is not a folder or a file; {_expected()}")
    if root.is_dir() and (root / FILE_NAME).exists():
        return RECORDS
    peeked = [layout for _, layout in _peek_all(root)]
    found = {layout for layout in peeked if layout and not isinstance(layout, BadInput)}
    if len(found) == 1:
        return str(found.pop())
    if found:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(sorted(map(str, found)))}; choose one")
    unreadable = next((f"; {layout}" for layout in peeked if isinstance(layout, BadInput)), "")
    if root.is_dir():
        try:
            return detect_detection_layout(root)
        except BadInput as error:
            layouts = f"{error}; {RECORDS} ({FILE_NAME}); {GEMEX}, {MEDSAGE} ({', '.join(SUFFIXES)})"
            raise BadInput(layouts + unreadable) from None
    raise BadInput(f"{root}: has no known layout; {_expected()}{unreadable}")


def _list_files(root: Path, *, layout: str) -> list[Path]:
    """Return the files of a layout, and those of which nothing can be decoded: reading them says why."""
    if root.is_file():
        return [root]
    peeked = list(_peek_all(root))
    if layout not in [found for _, found in peeked]:
        raise BadInput(f"{root}: has no files of layout {layout}; {_expected()}")
    files = [path for path, found in peeked if found == layout or isinstance(found, BadInput)]
    _LOG.info("%s: reading %s", root, ", ".join(path.name for path in files))
    return files


def _peek_all(root: Path) -> Iterator[tuple[Path, str | BadInput]]:
    """Yield each file that may hold records, and the layout of its first good record, "" if it is another."""
    if root.is_dir():
        files = (path for path in root.iterdir() if path.exists() and not path.is_dir())  # no links to nothing
        paths = sorted(path for path in files if path.suffix.lower() in SUFFIXES)
    else:
        paths = [root]
    for path in paths:
        try:
            keys = _find_keys(path)
        except BadInput as error:
            yield path, error
            continue
        if {"image_size", "patient_id", "kind"} <= keys:
            yield path, RECORDS if path == root else ""
        else:
            yield path, GEMEX if is_gemex(keys) else MEDSAGE if is_medsage(keys) else ""


def _find_keys(path: Path) -> set[str]:
    """Return the fields of the first record that can be decoded; none of a file that is empty or one JSON object."""
    first = ""
    for place, fields in read_objects(path):
        if not isinstance(fields, BadInput):
            return set(fields)
        first = first or f"{place}, {fields}"
    if first and not _is_object(path):
        raise BadInput(f"{path}: no record can be decoded ({first})")
    return set()


def _is_object(path: Path) -> bool:
    """Return whether a .json file is one object over several lines, such as settings."""
    if path.suffix.lower() != ".json" or path.stat().st_size > _LARGEST_OBJECT:
        return False
    try:
        return isinstance(msgspec.json.decode(read_file(path, max_bytes=_LARGEST_OBJECT, accepted="a JSON file")), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _expected() -> str:
    return "expected reasoning records, GEMeX or MEDSAGE files (.jsonl, .json, .csv), or a folder of a detection list"
