"""Layouts of data: detect and read answers of a chain, and questions of every source."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord, read_records
from stepcot_jax.data.sources.chestxray8 import BOX_LIST, ENTRY_TABLE, read_chestxray8
from stepcot_jax.data.sources.csv_table import TABLE_NAME, read_csv_table
from stepcot_jax.data.sources.detections import AUTO, DETECTION_LAYOUTS, detect_detection_layout, read_detections
from stepcot_jax.data.sources.intake import Readers, compare_sizes
from stepcot_jax.data.sources.iu_xray import is_iu_xray, read_iu_xray
from stepcot_jax.data.sources.padchest_gr import REPORTS, read_padchest_gr
from stepcot_jax.data.sources.rad_restruct import TEMPLATE, read_rad_restruct
from stepcot_jax.data.sources.released_questions import (
    TABLE_SUFFIXES,
    is_gemex,
    is_medsage,
    iterate_records,
    read_gemex,
    read_medsage,
    read_objects,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.record import Record, SetAside

LAYOUTS: dict[str, str] = {
    "published": "a folder with data.json",
    "chestxray8": f"a folder with {BOX_LIST} or {ENTRY_TABLE}",
    "padchest_gr": f"a folder with {REPORTS}",
    "iu_xray": "a folder or .tgz archive with the collection's XML reports",
    "rad_restruct": f"a folder with {TEMPLATE}",
    "csv": f"a folder with {TABLE_NAME}, or a .csv file",
}
"""Name of each layout and the files that it is recognised by."""

_LOG = logging.getLogger(__name__)
_PATTERNS = {
    "published": (data_json.FILE_NAME,),
    "chestxray8": (BOX_LIST, ENTRY_TABLE),
    "padchest_gr": (REPORTS,),
    "rad_restruct": (TEMPLATE,),
    "csv": (TABLE_NAME,),
}


def detect_layout(root: Path, *, further: str = "") -> str:
    """Return the layout of a data root (a key of `LAYOUTS`), recognised by its file names."""
    root = Path(root)
    try:
        exists = root.exists()
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(root)[:200]!r}: is not a path ({error}); {_expected(further)}") from None
    if not exists:
        where = "" if root.is_absolute() else f" in {Path.cwd()} (another folder than the run's?)"
        raise BadInput(f"{root}: does not exist{where}; {_expected(further)}")
    layouts = [layout for layout in LAYOUTS if _has_layout(root, layout)]
    if not layouts:
        raise BadInput(f"{root}: has no known layout; {_expected(further)}")
    if len(layouts) > 1:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(layouts)}; choose one as the layout")
    return layouts[0]


def read_source(
    root: Path,
    *,
    layout: str = AUTO,
    step_names: Sequence[str] = PUBLISHED_STEP_NAMES,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    single_label: bool = True,
    labels_from: Literal["auto", "boxes", "entries"] = "auto",
) -> Collection:
    """Read a data root in any layout."""
    root = Path(root)
    if layout == AUTO:
        layout = detect_layout(root)
    elif layout not in LAYOUTS:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *LAYOUTS))}")
    options: dict[str, Any] = {"on_bad_record": on_bad_record, "require_images": require_images}
    if layout in ("published", "csv"):
        read = read_records if layout == "published" else read_csv_table
        return read(root, step_names=step_names, **options)
    if layout == "rad_restruct":  # whose template names the steps
        return read_rad_restruct(root, **options)
    expected = [step.name for step in DEFAULT_CHAIN.steps]
    if list(step_names) != expected:
        raise BadInput(f"step_names {list(step_names)} do not match the layout {layout}: expected {expected}")
    if layout == "iu_xray":
        return read_iu_xray(root, **options)
    if layout == "chestxray8":
        return read_chestxray8(root, single_label=single_label, labels_from=labels_from, **options)
    return read_padchest_gr(root, single_label=single_label, **options)


def _expected(further: str) -> str:
    accepted = [f"{description} ({name})" for name, description in LAYOUTS.items()]
    return f"expected {'; '.join([*accepted, further] if further else accepted)}"


def _has_layout(root: Path, layout: str) -> bool:
    if layout == "iu_xray":
        return is_iu_xray(root)
    if not root.is_dir():
        return layout == "csv" and root.suffix.lower() == ".csv"
    return any(next(root.glob(pattern), None) for pattern in _PATTERNS[layout])


RECORDS, GEMEX, MEDSAGE = "records", "gemex", "medsage"
VQA_LAYOUTS: tuple[str, ...] = (RECORDS, GEMEX, MEDSAGE, *DETECTION_LAYOUTS)
"""Names of the layouts that `read_vqa_source` knows."""

_LARGEST_OBJECT = 2**24


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
    """Yield the reasoning records of a folder or file, one at a time; `stepcot data vqa` writes them."""
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
        images = read_detections(root, layout=layout, **options)
        return (record for image in images for record in ask_questions(image, seed=seed))
    if layout == RECORDS:
        collection = read_vqa_records(root, **options)
        if set_aside is not None:
            set_aside += collection.set_aside
        return compare_sizes(collection.records, collection.root, "image_size")
    if box_size is not None and min(box_size) < 1:
        raise BadInput(f"--box-size: {list(box_size)} is not a width and a height of at least 1 pixel")
    read = read_gemex if layout == GEMEX else read_medsage
    folder, files = root if root.is_dir() else root.parent, _list_files(root, layout=layout)
    if layout == GEMEX and box_size is None:
        raise BadInput("--box-size is required: width and height in pixels of the picture that GEMeX's boxes refer to")
    records = iterate_records(files, read, root=folder, box_size=box_size, set_aside=set_aside, **options)
    return compare_sizes(records, folder, "--box-size")


def detect_vqa_layout(root: Path) -> str:
    """Return the layout of a source, recognised by file names and the fields of the first good record."""
    root = Path(root)
    if not root.exists():
        raise BadInput(f"{root}: is not a folder or a file; {_expected_questions()}")
    if root.is_dir() and (root / FILE_NAME).exists():
        return RECORDS
    peeked = [layout for _, layout in _peek_all(root)]
    layouts = {layout for layout in peeked if layout and not isinstance(layout, BadInput)}
    if len(layouts) == 1:
        return str(layouts.pop())
    if layouts:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(sorted(map(str, layouts)))}; choose one")
    unreadable = next((f"; {layout}" for layout in peeked if isinstance(layout, BadInput)), "")
    if root.is_dir():
        try:
            return detect_detection_layout(root)
        except BadInput as error:
            message = f"{error}; {RECORDS} ({FILE_NAME}); {GEMEX}, {MEDSAGE} ({', '.join(TABLE_SUFFIXES)})"
            raise BadInput(message + unreadable) from None
    raise BadInput(f"{root}: has no known layout; {_expected_questions()}{unreadable}")


def _list_files(root: Path, *, layout: str) -> list[Path]:
    """Return the files of a layout, and those without a readable record, whose reading raises the reason."""
    if root.is_file():
        return [root]
    peeked = list(_peek_all(root))
    if layout not in [detected for _, detected in peeked]:
        raise BadInput(f"{root}: has no files of layout {layout}; {_expected_questions()}")
    files = [path for path, detected in peeked if detected == layout or isinstance(detected, BadInput)]
    _LOG.info("%s: reading %s", root, ", ".join(path.name for path in files))
    return files


def _peek_all(root: Path) -> Iterator[tuple[Path, str | BadInput]]:
    """Yield each file that may hold records, and the layout of its first good record, "" if it is another."""
    if root.is_dir():
        files = (path for path in root.iterdir() if path.exists() and not path.is_dir())  # no broken links
        paths = sorted(path for path in files if path.suffix.lower() in TABLE_SUFFIXES)
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
    first = ""
    for location, fields in read_objects(path):
        if not isinstance(fields, BadInput):
            return set(fields)
        first = first or f"{location}, {fields}"
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


def _expected_questions() -> str:
    return "expected reasoning records, GEMeX or MEDSAGE files (.jsonl, .json, .csv), or a folder of a detection list"
