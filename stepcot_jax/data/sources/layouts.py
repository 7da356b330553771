"""Layouts of data: detect and read answers of a chain, detection lists, and released questions.

Boxes that leave the picture are refused, never clipped; none of the 984 released boxes of ChestX-ray8 does.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import FILE_NAME, read_vqa_records
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord, read_records
from stepcot_jax.data.sources import chestxray8 as nih
from stepcot_jax.data.sources.chestxray8 import IMAGE_FOLDERS, ORIGIN, ImageRecord, list_box_images
from stepcot_jax.data.sources.csv_table import TABLE_NAME, read_csv_table
from stepcot_jax.data.sources.gemex import is_gemex, read_gemex
from stepcot_jax.data.sources.intake import (
    TABLE_SUFFIXES,
    ImageFinder,
    Listing,
    Readers,
    Sorting,
    find_file,
    read_objects,
)
from stepcot_jax.data.sources.iu_xray import is_iu_xray, read_iu_xray
from stepcot_jax.data.sources.medsage import is_medsage, read_medsage
from stepcot_jax.data.sources.padchest_gr import list_padchest_gr, read_padchest_gr
from stepcot_jax.data.sources.phantom_folder import list_phantoms
from stepcot_jax.data.sources.rad_restruct import TEMPLATE, read_rad_restruct
from stepcot_jax.data.sources.vinbigdata import list_vinbigdata
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record, SetAside

AUTO = "auto"

LAYOUTS: dict[str, str] = {
    "published": "a folder with data.json",
    "chestxray8": "a folder with BBox_List_2017*.csv or Data_Entry_2017*.csv",
    "padchest_gr": "a folder with grounded_reports*.json",
    "iu_xray": "a folder or .tgz archive with the collection's XML reports",
    "rad_restruct": f"a folder with {TEMPLATE}",
    "csv": f"a folder with {TABLE_NAME}, or a .csv file",
}
"""Name of each layout and the files that it is recognised by."""

_PATTERNS = {
    "published": (data_json.FILE_NAME,),
    "chestxray8": ("BBox_List_2017*.csv", "Data_Entry_2017*.csv"),
    "padchest_gr": ("grounded_reports*.json",),
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
        return nih.read_chestxray8(root, single_label=single_label, labels_from=labels_from, **options)
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


DETECTION_LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "chestxray8": (nih.BOX_LIST,),
    "padchest_gr": ("grounded_reports*.json",),
    "vinbigdata": ("train.csv",),
    "phantom": ("boxes.csv",),
}
"""Name of each layout and the files that it is recognised by."""

_NIH_LICENCE = "NIH Clinical Center: use is unrestricted with attribution and a link to the NIH download site"
_LOG = logging.getLogger(__name__)


def read_detections(
    root: Path,
    *,
    layout: str = AUTO,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    with_normal: bool = False,
    readers: Readers = 2,
    set_aside: list[SetAside] | None = None,
) -> list[Record]:
    """Read the images of a detection list with their boxed findings."""
    root = Path(root)
    layout = detect_detection_layout(root) if layout == AUTO else layout
    if readers != "all" and (isinstance(readers, bool) or not isinstance(readers, int) or readers < 1):
        raise BadInput(f"readers: {readers!r} is not 'all' or a number from 1")
    if layout not in DETECTION_LAYOUTS:
        raise BadInput(f"layout: {layout[:80]!r} is not one of {', '.join((AUTO, *DETECTION_LAYOUTS))}")
    path = find_file(root, *DETECTION_LAYOUTS[layout])
    if path is None:
        raise BadInput(f"{root}: has no {DETECTION_LAYOUTS[layout][0]}")
    sorting = Sorting(path, on_bad_record=on_bad_record, set_aside=set_aside)
    images, num_boxless = [], 0
    listings: dict[str, Callable[[Path, bool, Readers], Listing]] = {
        "chestxray8": functools.partial(_list_chestxray8, with_normal=with_normal),
        "padchest_gr": list_padchest_gr,
        "vinbigdata": list_vinbigdata,
        "phantom": list_phantoms,
    }
    for location, image in listings[layout](path, require_images, readers):
        if isinstance(image, BadInput) or (problem := _find_problem(image)):
            sorting.refuse(f"{location}: {image if isinstance(image, BadInput) else problem}")
            continue
        if not sorting.keep(image.id, location=location):
            continue
        image = _drop_repeats(image)
        if image.boxes or (with_normal and image.absent):
            images.append(image)
        else:
            num_boxless += 1
    sorting.finish()
    boxless = "without a finding that counts (no box, or too few readers agree) left out"
    for message, number in ((boxless, num_boxless), ("set aside as bad", len(sorting.set_aside))):
        if number:
            _LOG.warning("%s: %d image%s %s", path, number, "" if number == 1 else "s", message)
    if not images:
        raise BadInput(f"{path}: no image has a box")
    return images


def detect_detection_layout(root: Path) -> str:
    """Return the layout of a detection list, recognised by its file names."""
    root = Path(root)
    if not root.is_dir():
        raise BadInput(f"{root}: is not a folder; {_expected_list()}")
    layouts = [name for name, patterns in DETECTION_LAYOUTS.items() if any(next(root.glob(p), None) for p in patterns)]
    if "vinbigdata" in layouts and not _names_readers(root / "train.csv"):
        layouts.remove("vinbigdata")  # a table of splits has the same name
    if len(layouts) != 1:
        problem = (
            f"has files of the layouts {' and '.join(layouts)}; choose one"
            if layouts
            else "has no known detection list"
        )
        raise BadInput(f"{root}: {problem}; {_expected_list()}")
    return layouts[0]


def _names_readers(path: Path) -> bool:
    with open_untrusted(path, accepted="a table") as file:
        return b"rad_id" in file.readline(4096)


def _list_chestxray8(path: Path, require_images: bool, readers: Readers, *, with_normal: bool) -> Listing:
    """List the images of the box list, then with `with_normal` the normal ones of the table of labels."""
    del readers  # the list has one box per finding
    finder = ImageFinder(path.parent, folders=IMAGE_FOLDERS, require_images=require_images)
    table = find_file(path.parent, nih.ENTRY_TABLE)
    entries = nih.read_entries(table) if table else []
    records = [*list_box_images(nih.read_box_list(path), entries)]
    for record in records:
        rows = ", ".join(str(box.number) for box in record.boxes)
        yield record.location, _ground(record, finder=finder, file=path.name, rows=rows)
    listed = {record.image for record in records}
    for entry in entries if with_normal else ():  # otherwise their files may be missing
        if table and entry.labels == (nih.NO_FINDING,) and entry.image not in listed:
            normal = ImageRecord(entry.image, f"row {entry.number}", entry.labels, (), entry, "")
            yield (
                f"{table.name}, {normal.location}",
                _ground(normal, finder=finder, file=table.name, rows=str(entry.number)),
            )


def _ground(record: ImageRecord, *, finder: ImageFinder, file: str, rows: str) -> Record | BadInput:
    if record.problem:
        return BadInput(record.problem.removeprefix(f"{record.location}: "))
    try:
        image_path, _ = finder.find(record.image)
    except BadInput as error:
        return error
    return Record(
        id=Path(record.image).stem,
        image=image_path,
        image_size=(nih.RELEASED_SIDE, nih.RELEASED_SIDE),
        patient=record.patient_id,
        origin=ORIGIN,
        boxes=tuple(Box(row.box.label, row.box.corners) for row in record.boxes),
        absent=nih.CLASSES if record.labels == (nih.NO_FINDING,) else (),
        provenance={"file": file, "row": rows, "licence": _NIH_LICENCE},
    )


def _drop_repeats(image: Record) -> Record:
    """Keep one of several equal findings, and note it in the provenance."""
    findings = tuple(dict.fromkeys(image.boxes))
    number = len(image.boxes) - len(findings)
    if not number:
        return image
    provenance = {**image.provenance, "repeated": f"{number} box{'' if number == 1 else 'es'} listed again, kept once"}
    return msgspec.structs.replace(image, boxes=findings, provenance=provenance)


def _find_problem(image: Record) -> str:
    width, height = image.image_size
    for finding in image.boxes:
        try:
            finding.check()
        except BadInput as error:
            return str(error)
        try:
            Box(finding.region or "unknown", finding.corners).check()
        except BadInput as error:
            return f"region: {str(error).removeprefix('label: ')}"
        if finding.corners[2] > width or finding.corners[3] > height:
            return f"box: {list(finding.corners)} of {finding.label!r} leaves the picture of {width} by {height}"
    return ""


def _expected_list() -> str:
    return "expected " + "; ".join(f"{' or '.join(patterns)} ({name})" for name, patterns in DETECTION_LAYOUTS.items())


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
        return iter(collection.records)
    if box_size is not None and min(box_size) < 1:
        raise BadInput(f"--box-size: {list(box_size)} is not a width and a height of at least 1 pixel")
    read = read_gemex if layout == GEMEX else read_medsage
    folder, files = root if root.is_dir() else root.parent, _list_files(root, layout=layout)
    return read(files, root=folder, box_size=box_size, set_aside=set_aside, **options)


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
