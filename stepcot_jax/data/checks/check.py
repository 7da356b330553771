"""Check a data root: what it holds and whether a run can use it, as one object of plain facts.

A check reads with the code of a run: the same scan, decoder, split tables and split making. Unlike a run it continues
after the first fault, and it keeps no texts.
"""

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stepcot_jax.data.checks.check_facts import Findings, gather
from stepcot_jax.data.checks.check_records import Reasons, decode_pictures, scan_collection
from stepcot_jax.data.images.shards import find_missing, has_shards, read_index
from stepcot_jax.data.records.data_json import FILE_NAME, Scan, scan_records
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord
from stepcot_jax.data.sources.layouts import AUTO, detect_layout, read_source
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import resolve_tables
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment
from stepcot_jax.data.uncertain import Treatment, UncertainAnswers
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal

_SEVERAL_LABELS = ("chestxray8", "padchest_gr")
_RECORDS = "a folder with records.jsonl (reasoning records)"
_MEGABYTE = 1_000_000


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """How to check a data root; names shared with a run's settings mean the same.

    Attributes:
      layout: a key of `layouts.LAYOUTS`, or "auto".
      images: "decode" decodes every image, "exists" tests that its file exists, "none" skips images.
      step_names: name of each step, in order.
      on_bad_record: whether bad records would stop a run.
      max_pixels: largest accepted width times height of an image.
      num_threads: images decoded at a time.
      single_label: leave images with several findings out, in layouts with lists of findings.
      labels_from: table that ChestX-ray8's labels come from.
      uncertain: what training makes of uncertain answers.
    """

    layout: str = AUTO
    images: Literal["decode", "exists", "none"] = "decode"
    step_names: tuple[str, ...] = PUBLISHED_STEP_NAMES
    on_bad_record: OnBadRecord = "stop"
    max_pixels: int = 64_000_000
    split_seed: int = 0
    num_threads: int = 2
    single_label: bool = True
    labels_from: Literal["auto", "boxes", "entries"] = "auto"
    uncertain: Treatment = "ignore"


def check_root(root: Path, options: CheckOptions, *, terminal: Terminal) -> dict[str, Any]:
    """Return the facts of a folder or file in any layout, which `docs/data.md` explains."""
    root = Path(root)
    layout = detect_layout(root, further=_RECORDS) if options.layout == AUTO else options.layout
    sharded = options.images != "none" and has_shards(root)
    require_images = options.images != "none" and not sharded
    if layout == "published":
        reasons = Reasons()
        findings = Findings(_scan_published(root, reasons, options, require_images, terminal), reasons, layout)
    else:
        findings = _read_other(root, layout, options, require_images)
    findings.uncertain = UncertainAnswers(options.uncertain)
    scan, reasons = findings.scan, findings.reasons
    if sharded:
        for place, reason in find_missing(read_index(root), scan.table.image_paths).items():
            if scan.good[place]:
                scan.num_missing += 1
                scan.drop(place, reason)
        scan.num_found = int(scan.good.sum())
    if layout == "published":
        if not scan.good.any():
            findings.stops.append(f"{scan.file}: no record is valid")
        elif len(reasons) and options.on_bad_record == "stop":
            findings.stops.append(
                f"{scan.file}: {len(reasons)} of {int(scan.good.sum()) + len(reasons)} records are bad (set aside "
                "below); data.on_bad_record=skip continues without them"
            )
    if options.images == "decode":
        findings.num_unreadable, findings.original = decode_pictures(
            scan, root, max_pixels=options.max_pixels, num_threads=options.num_threads, progress=terminal.watch
        )
        if findings.num_unreadable and (options.on_bad_record == "stop" or not scan.good.any()):
            findings.stops.append(f"{scan.root}: {findings.num_unreadable} images cannot be decoded (set aside below)")
    if scan.good.any():
        findings.assignment = _find_splits(scan, reasons, options.split_seed)
    return gather(findings, images=options.images)


def _scan_published(
    root: Path, reasons: Reasons, options: CheckOptions, require_images: bool, terminal: Terminal
) -> Scan:
    path, shown = root / FILE_NAME, 0

    def show(num_bytes: int) -> None:
        nonlocal shown
        if (megabytes := math.ceil(num_bytes / _MEGABYTE)) > shown:
            shown = megabytes
            terminal.update(megabytes)

    num_bytes = path.stat().st_size if path.is_file() else 0
    with terminal.bar("reading the records (MB)", total=math.ceil(num_bytes / _MEGABYTE)):
        names = options.step_names
        return scan_records(
            root, reasons, step_names=names, require_images=require_images, with_texts=False, visit=show
        )


def _read_other(root: Path, layout: str, options: CheckOptions, require_images: bool) -> Findings:
    """Read a layout other than data.json; only its reader distinguishes bad records from those a rule leaves out."""

    def read(**changes: Any) -> Collection:
        kept = {name: getattr(options, name) for name in ("step_names", "single_label", "labels_from")}
        how = kept | {"on_bad_record": "skip", "require_images": False} | changes
        return read_source(root, layout=layout, **how)

    with _recorded_warnings() as warnings:
        collection = read()
    reasons = Reasons()
    findings = Findings(scan_collection(collection, reasons, require_images=require_images), reasons, layout)
    findings.notes += warnings
    with _recorded_warnings():  # the same ones again
        if layout in _SEVERAL_LABELS:
            findings.boxes_of = read(single_label=False).cases
        try:
            read(on_bad_record=options.on_bad_record, require_images=require_images)
        except BadInput as error:
            findings.stops.append(str(error))
    return findings


@contextlib.contextmanager
def _recorded_warnings() -> Iterator[list[str]]:
    """Collect the readers' warnings in a list instead of the log."""
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stepcot_jax.data")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield heard
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


def _find_splits(scan: Scan, reasons: Reasons, seed: int) -> Assignment:
    """Return the splits of the tables, else those that a run would make."""
    found = resolve_tables(
        scan.root,
        scan.table,
        good=scan.good,
        set_aside_paths=reasons.image_paths,
        set_aside_patients=reasons.patient_ids,
    )
    if found is not None:
        return found
    try:
        splits = make_splits(scan.table, seed=seed, chosen=scan.good)
    except BadInput as error:
        found = Assignment("made", np.zeros((len(SPLIT_NAMES), len(scan.table)), np.int32))
        found.add_problem("splits cannot be made", str(error))
        return found
    return Assignment.of(splits, len(scan.table))
