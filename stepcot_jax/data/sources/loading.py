"""Every layout through one intake: the cases of a chain, images with boxed findings, and questions."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.records.records import Collection, OnBadRecord, read_records
from stepcot_jax.data.sources.intake import Intake, compare_sizes, find_file
from stepcot_jax.data.sources.layouts import (
    AUTO,
    BOXED,
    CASES,
    LAYOUTS,
    QUESTIONS,
    check_layout,
    detect_boxed_layout,
    detect_layout,
    of_layout,
)
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.record import Record, SetAside

RELEASED = ("gemex", "medsage")
_LARGEST_OBJECT = 2**24
_LOG = logging.getLogger(__name__)


def list_cases(root: Path, layout: str, how: How) -> Source:
    """Return the images of a data root with the answers of a chain; `layout` is any but "published"."""
    expected = tuple(step.name for step in DEFAULT_CHAIN.steps)
    if not LAYOUTS[layout].own_chain and how.step_names != expected:
        raise BadInput(f"step_names {list(how.step_names)} do not match the layout {layout}: expected {list(expected)}")
    source: Source = of_layout(layout, "list")(root, how)
    return source


def read_source(root: Path, *, layout: str = AUTO, on_bad_record: OnBadRecord = "stop", **options: Any) -> Collection:
    """Read the cases of a data root in any layout; `options` are those of `How`."""
    root, how = Path(root), How(**options)
    layout = detect_layout(root) if layout == AUTO else check_layout(layout, CASES)
    if layout == "published":
        kept: dict[str, Any] = {"step_names": how.step_names, "require_images": how.require_images}
        return read_records(root, on_bad_record=on_bad_record, **kept)
    return Intake(list_cases(root, layout, how), on_bad_record=on_bad_record).read_cases(layout)


def read_detections(
    root: Path,
    *,
    layout: str = AUTO,
    on_bad_record: OnBadRecord = "stop",
    set_aside: list[SetAside] | None = None,
    **options: Any,
) -> list[Record]:
    """Read the images of a detection list with their boxed findings; `options` are those of `How`."""
    root, how = Path(root), How(for_cases=False, **options)
    layout = detect_boxed_layout(root) if layout == AUTO else check_layout(layout, BOXED)
    intake = Intake(of_layout(layout, "list")(root, how), on_bad_record=on_bad_record, set_aside=set_aside)
    return intake.read_images(with_normal=how.with_normal)


def read_vqa_source(
    root: Path,
    *,
    layout: str = AUTO,
    box_size: tuple[int, int] | None = None,
    seed: int = 0,
    on_bad_record: OnBadRecord = "stop",
    set_aside: list[SetAside] | None = None,
    **options: Any,
) -> Iterator[Record]:
    """Yield the reasoning records of a folder or file, one at a time; `options` are those of `How`."""
    root, options = Path(root), {"with_normal": True, **options}
    layout = detect_vqa_layout(root) if layout == AUTO else check_layout(layout, QUESTIONS)
    if layout not in RELEASED and box_size is not None:
        raise BadInput(
            f"--box-size: the layout {layout} states the size of its boxes; only {', '.join(RELEASED)} take one"
        )
    if layout in BOXED:
        images = read_detections(root, layout=layout, on_bad_record=on_bad_record, set_aside=set_aside, **options)
        return (record for image in images for record in ask_questions(image, seed=seed))
    how = How(for_cases=False, box_size=box_size, **options)
    if layout not in RELEASED:
        collection = read_vqa_records(root, on_bad_record=on_bad_record, require_images=how.require_images)
        if set_aside is not None:
            set_aside += collection.set_aside
        return compare_sizes(collection.records, collection.root, "image_size")
    sources = [of_layout(layout, "list")(path, how) for path in _list_files(root, layout=layout)]
    intakes = [Intake(source, on_bad_record=on_bad_record, set_aside=set_aside) for source in sources]
    records = (record for intake in intakes for record in intake.iterate_questions())
    return compare_sizes(records, root if root.is_dir() else root.parent, "--box-size")


def detect_vqa_layout(root: Path) -> str:
    """Return the layout of a source, recognised by file names and the fields of the first good record."""
    root = Path(root)
    if not root.exists():
        raise BadInput(f"{root}: is not a folder or a file; {_expect_questions()}")
    if root.is_dir() and find_file(root, *LAYOUTS["records"].questions):
        return "records"
    peeked = [layout for _, layout in _peek_all(root)]
    layouts = {layout for layout in peeked if layout and not isinstance(layout, BadInput)}
    if len(layouts) == 1:
        return str(layouts.pop())
    if layouts:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(sorted(map(str, layouts)))}; choose one")
    unreadable = next((f"; {layout}" for layout in peeked if isinstance(layout, BadInput)), "")
    if root.is_dir():
        try:
            return detect_boxed_layout(root)
        except BadInput as error:
            raise BadInput(f"{error}; {_list_questions()}{unreadable}") from None
    raise BadInput(f"{root}: has no known layout; {_expect_questions()}{unreadable}")


def _list_questions() -> str:
    names: dict[tuple[str, ...], list[str]] = {}
    for name in QUESTIONS:
        names.setdefault(LAYOUTS[name].questions, []).append(name)
    return "; ".join(f"{', '.join(named)} ({', '.join(files)})" for files, named in names.items() if files)


def _expect_questions() -> str:
    return f"expected {_list_questions()}, or a folder of a detection list"


def _list_files(root: Path, *, layout: str) -> list[Path]:
    """Return the files of a layout, and those without a readable record, whose reading raises the reason."""
    if root.is_file():
        return [root]
    peeked = list(_peek_all(root))
    if layout not in [detected for _, detected in peeked]:
        raise BadInput(f"{root}: has no files of layout {layout}; {_expect_questions()}")
    files = [path for path, detected in peeked if detected == layout or isinstance(detected, BadInput)]
    _LOG.info("%s: reading %s", root, ", ".join(path.name for path in files))
    return files


def _peek_all(root: Path) -> Iterator[tuple[Path, str | BadInput]]:
    """Yield each file that may hold records, and the layout of its first good record, "" if it is another."""
    from stepcot_jax.data.sources.gemex import is_gemex
    from stepcot_jax.data.sources.grounded import is_grounded
    from stepcot_jax.data.sources.medsage import is_medsage

    paths = [root]
    if root.is_dir():
        files = (path for path in root.iterdir() if path.exists() and not path.is_dir())  # no broken links
        paths = sorted(path for path in files if path.suffix.lower() in LAYOUTS["gemex"].questions)
    for path in paths:
        try:
            keys = _find_keys(path)
        except BadInput as error:
            yield path, error
            continue
        if {"image_size", "patient_id", "kind"} <= keys:
            yield path, "records" if path == root else ""
        else:
            kinds = {"gemex": is_gemex, "medsage": is_medsage, "grounded": is_grounded}
            yield path, next((name for name, is_kind in kinds.items() if is_kind(keys)), "")


def _find_keys(path: Path) -> set[str]:
    from stepcot_jax.data.sources.released import read_objects

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
