"""Every layout through one intake: the cases of a chain, images with boxed findings, and questions."""

import contextlib
import dataclasses
import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data import parquet
from stepcot_jax.data.delimited import fold_column
from stepcot_jax.data.questions.question_splits import name_patients, note_shared
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import VqaCollection, holds_records, read_vqa_records
from stepcot_jax.data.records.records import Collection, OnBadRecord, read_records
from stepcot_jax.data.sources.chain_questions import list_chain_questions
from stepcot_jax.data.sources.coco import is_coco
from stepcot_jax.data.sources.intake import Intake, compare_sizes, find_file
from stepcot_jax.data.sources.layout_table import (
    AUTO,
    BOXED,
    CASES,
    LAYOUTS,
    QUESTIONS,
    SeveralLayouts,
    check_layout,
    detect_boxed_layout,
    detect_layout,
    of_layout,
)
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.medclm_boxes import is_medclm_boxes
from stepcot_jax.data.sources.question_files import split_of_name
from stepcot_jax.data.sources.question_sheet import is_question_sheet
from stepcot_jax.data.sources.released import read_objects
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.record import Record, Records, SetAside

RELEASED = ("gemex", "medsage")
_LARGEST_OBJECT = 2**24
_TABLES = ("*.jsonl", "*.json", "*.csv", "*.tsv", "*.xlsx", "*.parquet", "*/*.parquet", "QA_information/*/*.json")
_LOG = logging.getLogger(__name__)


def load_records(
    root: str | os.PathLike[str], *, layout: str = AUTO, on_bad_record: OnBadRecord = "stop", **reading: Any
) -> Records:
    """Read the records of a folder: answers to the steps of a chain, or questions.

    Args:
      root: a folder or file in a layout that `stepcot data check` knows.
      layout: "auto" detects it.
      on_bad_record: "stop" raises at a bad record, "skip" sets it aside.
      **reading: `step_names`, `single_label` and others of `listed.How`.

    Raises:
      BadInput: the folder has no known layout, or a record is bad.
    """
    source = find_path(root, "root")
    if holds_questions(source, layout):
        questions = read_vqa_source(source, layout=layout, on_bad_record=on_bad_record, **reading)
        return Records(questions.records, root=questions.root, set_aside=questions.set_aside)
    cases = read_source(source, layout=layout, on_bad_record=on_bad_record, **reading)
    return Records(cases.cases, root=cases.root, chain=cases.chain, set_aside=cases.set_aside)


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
    try:
        layout = detect_layout(root) if layout == AUTO else check_layout(layout, CASES)
    except BadInput:
        with contextlib.suppress(OSError):  # of a name too long for a path
            if layout == AUTO and holds_questions(root):
                detect_vqa_layout(root)  # which refuses a file that merely cannot be decoded
                how_to = f"--config=vqa_quickstart --config.job=sft --config.vqa.source=folder --config.vqa.root={root}"
                found = "has questions or boxes, no answers to steps; a policy learns from them"
                raise BadInput(f"{root}: {found}: {how_to} (docs/policies.md)") from None
        raise
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
) -> VqaCollection:
    """Read the questions of a folder or file in any layout.

    Args:
      root: folder, or one file of it.
      layout: one of `layouts.QUESTIONS`; "auto" detects it.
      box_size: width and height of the picture that GEMeX's boxes refer to, which no release states.
      seed: of the questions that are asked about boxes.
      on_bad_record: "stop" raises at a bad record, "skip" sets it aside.
      set_aside: list that gets the records set aside too.
      **options: those of `How`.
    """
    root, options = Path(root), {"with_normal": True, **options}
    how = How(for_cases=False, box_size=box_size, **options)
    if layout == AUTO:
        layout = detect_layout(root) if how.levels else detect_vqa_layout(root)
    layout = check_layout(layout, CASES if how.levels else QUESTIONS)
    if layout not in RELEASED and box_size is not None:
        raise BadInput(
            f"--box-size: the layout {layout} states the size of its boxes; only {', '.join(RELEASED)} take one"
        )
    if layout == "records":
        collection = read_vqa_records(root, on_bad_record=on_bad_record, require_images=how.require_images)
    else:
        collection = _read_source(root, layout, how, seed=seed, on_bad_record=on_bad_record)
    if layout in RELEASED:
        compared = compare_sizes(collection.records, collection.root, "--box-size")
        collection = dataclasses.replace(collection, records=tuple(compared))
    if set_aside is not None:
        set_aside += collection.set_aside
    return dataclasses.replace(collection, records=note_shared(collection.records, collection.path))


def _read_source(root: Path, layout: str, how: How, *, seed: int, on_bad_record: OnBadRecord) -> VqaCollection:
    set_aside: list[SetAside] = []
    if layout in BOXED:
        source = of_layout(layout, "list")(root, how)
        boxed = Intake(source, on_bad_record=on_bad_record, set_aside=set_aside)
        images = boxed.read_images(with_normal=how.with_normal)
        records: Iterator[Record] = (record for image in images for record in ask_questions(image, seed=seed))
    else:
        if layout in CASES:
            options: Any = {"require_images": how.require_images, "step_names": how.step_names}
            cases = read_source(root, layout=layout, on_bad_record=on_bad_record, **options)
            source, set_aside = list_chain_questions(cases, how.levels), list(cases.set_aside)
        elif LAYOUTS[layout].questions:
            source = of_layout(layout, "list")(root, how, find_tables(root, layout))
        intake = Intake(source, on_bad_record=on_bad_record, set_aside=set_aside)
        records = intake.iterate_questions()
    named, num_named = name_patients(records, source.root)
    if num_named:
        what = "%s: %d of %d records name no patient: each picture counts as one, by the digest of its file"
        _LOG.warning(what, source.path, num_named, len(named))
    aside = {item.record for item in set_aside}
    numbers = itertools.islice((number for number in itertools.count() if number not in aside), len(named))
    return VqaCollection(
        source.path,
        tuple(named),
        tuple(set_aside),
        tuple(numbers),
        num_unnamed=len(set_aside),
        folder=source.root,
        unit="record",
        layout=layout,
    )


def holds_questions(root: Path, layout: str = AUTO) -> bool:
    """Return whether a folder or file holds questions, or boxes to ask about, rather than cases of a chain."""
    root = Path(root)
    if layout != AUTO:
        return layout not in CASES
    if holds_records(root) or (root.is_file() and any(found for _, found in _peek_all(root))):
        return True
    table = root / "data.json"  # the name of the published cases, which others use for their questions too
    if table.is_file():
        found = (layouts for _, layouts in _peek_all(table) if isinstance(layouts, list))
        if any(found) or is_medclm_boxes(table) or is_coco(root):
            return True
    try:
        detect_layout(root)
    except BadInput:
        try:
            return detect_vqa_layout(root) not in CASES
        except (parquet.UnreadableTable, SeveralLayouts):
            raise  # a folder of Parquet tables alone is one of questions; one of two layouts is told
        except BadInput:
            return False
    return False


def detect_vqa_layout(root: Path) -> str:
    """Return the layout of questions, recognised by file names and the columns of tables.

    Of a folder without tables of questions it is the layout of its boxes, about which questions are asked, or of its
    cases, whose steps are questions.
    """
    root = Path(root)
    if not root.exists():
        raise BadInput(f"{root}: is not a folder or a file; expected questions or boxes (docs/sources.md)")
    if root.is_dir() and find_file(root, *LAYOUTS["records"].questions):
        return "records"
    peeked = list(_peek_all(root))
    layouts = {layout for _, found in peeked if not isinstance(found, BadInput) for layout in found}
    if len(layouts) > 1:  # the same questions as a workbook, or a table derived from a release's
        layouts.discard("question_sheet")
    if layouts == {"vqa_rad", "path_vqa"}:  # PathVQA alone has a validation split
        has_validation = any(split_of_name(path.name) == "val" for path, _ in peeked)
        return "path_vqa" if has_validation else "vqa_rad"
    if len(layouts) == 1:
        return layouts.pop()
    if layouts:
        raise BadInput(f"{root}: has files of the layouts {' and '.join(sorted(layouts))}; choose one")
    for detect in (detect_boxed_layout, detect_layout):
        try:
            return detect(root)
        except SeveralLayouts:
            raise
        except BadInput as error:
            problem = str(error)
    unreadable = next(((path, found) for path, found in peeked if isinstance(found, BadInput)), None)
    if unreadable and unreadable[0].suffix.lower() == parquet.SUFFIX:  # it can be nothing else than questions
        raise unreadable[1]
    raise BadInput(f"{problem}; {_list_questions()}{f'; {unreadable[1]}' if unreadable else _hint_folder(root)}")


def _hint_folder(root: Path) -> str:
    """Return the end of a message that names the one folder below which has a layout, as archives unpack."""
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(folders) == 1 and folders[0].name[:1] != ".":
        with contextlib.suppress(BadInput):
            return f"; {folders[0]} has the layout {detect_vqa_layout(folders[0])}: is it meant?"
    return ""


def _list_questions() -> str:
    listed = ((name, LAYOUTS[name].questions) for name in QUESTIONS)
    return "; ".join(f"{' or '.join(tables)} ({name})" for name, tables in listed if tables)


def _expect_questions() -> str:
    return f"expected {_list_questions()}, or a folder of a detection list"


def find_tables(root: Path, layout: str) -> list[Path]:
    """Return the tables of a layout, and those without a readable record, whose reading raises the reason."""
    if root.is_file():
        return [root]
    peeked = list(_peek_all(root))
    if not any(layout in found for _, found in peeked if not isinstance(found, BadInput)):
        raise BadInput(f"{root}: has no files of layout {layout}; {_expect_questions()}")
    files = [path for path, found in peeked if isinstance(found, BadInput) or layout in found]
    if others := [path.name for path, found in peeked if path not in files and found]:
        _LOG.warning("%s: read as %s; not read, as of other layouts: %s", root, layout, ", ".join(others)[:200])
    _LOG.info("%s: reading %s", root, ", ".join(path.name for path in files))
    return files


def _peek_all(root: Path) -> Iterator[tuple[Path, list[str] | BadInput]]:
    """Yield each file that may hold questions, and the layouts whose columns its first good record has."""
    paths = [root]
    if root.is_dir():
        files = {path for pattern in _TABLES for path in root.glob(pattern)}
        paths = sorted(path for path in files if path.exists() and not path.is_dir())  # no broken links
        paths = [path for path in paths if not path.name.startswith((".", "~$"))]  # of macOS, and Excel's locks
    for path in paths:
        try:
            columns = set(map(fold_column, _find_columns(path)))
        except BadInput as error:
            yield path, error
            continue
        if {"question", "patient id", "kind", "image path"} <= columns and path.name.lower().endswith(
            (".jsonl", ".jsonl.gz")
        ):
            yield path, ["records"] if path == root else []
        else:
            yield path, _match_layouts(path, columns, is_root=path == root)


def _match_layouts(path: Path, columns: set[str], *, is_root: bool) -> list[str]:
    """Return the layouts of which a table has most columns; of a sheet of one's own only if it is no other."""
    sizes = dict[str, int]()
    for name in QUESTIONS:
        for described in LAYOUTS[name].questions:
            pattern, _, needed = described.partition(": ")
            wanted = set(map(fold_column, needed.split(", ")))
            fits = path.match(pattern) or (is_root and Path(pattern).suffix == path.suffix.lower())
            if needed and wanted <= columns and fits:
                sizes[name] = max(sizes.get(name, 0), len(wanted))
    own = sizes.pop("question_sheet", 0) or is_question_sheet(columns)
    if sizes.keys() == {"vqa_rad", "path_vqa"} and columns - {"image", "question", "answer", "index level 0"}:
        return ["question_sheet"]  # of another set, whose further columns count
    if sizes:
        return [name for name, size in sizes.items() if size == max(sizes.values())]
    return ["question_sheet"] if own and path.suffix.lower() != parquet.SUFFIX else []


def _find_columns(path: Path) -> Iterable[str]:
    if path.suffix.lower() == parquet.SUFFIX:
        return parquet.read_fields(path)
    first = ""
    for location, fields in read_objects(path):
        if not isinstance(fields, BadInput):
            return fields
        first = first or f"{location}, {fields}"
    if first and not _is_object(path):
        raise BadInput(f"{path}: no record can be decoded ({first})")
    return ()


def _is_object(path: Path) -> bool:
    """Return whether a .json file is one object over several lines, such as settings."""
    if path.suffix.lower() != ".json" or path.stat().st_size > _LARGEST_OBJECT:
        return False
    try:
        return isinstance(msgspec.json.decode(read_file(path, max_bytes=_LARGEST_OBJECT, accepted="a JSON file")), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
