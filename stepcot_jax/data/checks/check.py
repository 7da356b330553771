"""What a data root holds and whether a run can use it, as one object of plain facts.

A check reads with the code that a run reads with: the same splitter, record reader, agreement, decoder, tables and
split making. Where it differs is that it goes on after the first fault and keeps no texts.
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
from stepcot_jax.data.checks.check_images import look_at_pictures
from stepcot_jax.data.checks.check_records import Scan, count_bytes, scan_collection, scan_published
from stepcot_jax.data.checks.check_splits import check_tables, make_for
from stepcot_jax.data.images.image_shards import INDEX_NAME, has_shards, read_index
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord
from stepcot_jax.data.sources.layouts import AUTO, detect_layout, read_source
from stepcot_jax.data.splits.splits import PUBLISHED_FRACTIONS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal

_SEVERAL_LABELS = ("chestxray8", "padchest_gr")
_MEGABYTE = 1_000_000


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """How a data root is checked; what has a name of a run's setting means the same.

    Attributes:
      layout: a key of `layouts.LAYOUTS`, or "auto".
      images: "decode" decodes every image, "exists" sees that it is there, "none" does without.
      step_names: name of each step, in order.
      on_bad_record: whether bad records would stop a run.
      max_pixels: largest accepted width times height of an image.
      split_seed: of splits that are made.
      split_fractions: of splits that are made.
      num_threads: images decoded at a time.
      single_label: whether images with several findings are left out, in layouts with lists of findings.
      labels_from: table that ChestX-ray8's labels are from.
    """

    layout: str = AUTO
    images: Literal["decode", "exists", "none"] = "decode"
    step_names: tuple[str, ...] = PUBLISHED_STEP_NAMES
    on_bad_record: OnBadRecord = "stop"
    max_pixels: int = 64_000_000
    split_seed: int = 0
    split_fractions: tuple[float, ...] = PUBLISHED_FRACTIONS
    num_threads: int = 2
    single_label: bool = True
    labels_from: Literal["auto", "boxes", "entries"] = "auto"


def check_root(root: Path, options: CheckOptions, *, terminal: Terminal) -> dict[str, Any]:
    """The facts of a data root; `docs/data.md` says what each means.

    Args:
      root: folder or file in any layout.
      options: how to check.
      terminal: shows how far it is.

    Raises:
      BadInput: it cannot be read at all.
    """
    root = Path(root)
    layout = detect_layout(root) if options.layout == AUTO else options.layout
    require_images = options.images != "none" and not has_shards(root)
    if layout == "published":
        findings = Findings(_scan_published(root, options, require_images, terminal), layout, options.images)
    else:
        findings = _read_other(root, layout, options, require_images)
    if options.images != "none" and has_shards(root):
        _hold_against_shards(findings, root)
    if layout == "published":
        _stop_at_bad_records(findings, options)
    _look_at_pictures(findings, root, options, terminal)
    if findings.scan.good.any():
        splits = check_tables(findings.scan, findings.scan.root)
        findings.splits = splits or make_for(findings.scan, seed=options.split_seed, fractions=options.split_fractions)
    return gather(findings)


def _scan_published(root: Path, options: CheckOptions, require_images: bool, terminal: Terminal) -> Scan:
    shown = 0

    def show(num_bytes: int) -> None:
        nonlocal shown
        if (megabytes := math.ceil(num_bytes / _MEGABYTE)) > shown:
            shown = megabytes
            terminal.update(megabytes)

    with terminal.bar("reading the records (MB)", total=math.ceil(count_bytes(root) / _MEGABYTE)):
        return scan_published(root, step_names=options.step_names, require_images=require_images, visit=show)


def _stop_at_bad_records(findings: Findings, options: CheckOptions) -> None:
    scan = findings.scan
    if not scan.good.any():
        findings.stops.append(f"{scan.file}: no record can be used")
    elif scan.reasons.count and options.on_bad_record == "stop":
        findings.stops.append(
            f"{scan.file}: {scan.reasons.count} of {scan.num_records} records are bad (set aside below); "
            "data.on_bad_record=skip does without them"
        )


def _read_other(root: Path, layout: str, options: CheckOptions, require_images: bool) -> Findings:
    """Reads a layout that is no data.json, where only its reader tells bad records from those that a rule leaves out.

    Raises:
      BadInput: it cannot be read at all.
    """

    def read(*, single_label: bool = options.single_label, **how: Any) -> Collection:
        return read_source(
            root,
            layout=layout,
            step_names=options.step_names,
            single_label=single_label,
            labels_from=options.labels_from,
            **how,
        )

    with _hearing() as warnings:
        collection = read(on_bad_record="skip", require_images=False)
    findings = Findings(scan_collection(collection, require_images=require_images), layout, options.images)
    findings.notes += warnings
    with _hearing():  # what is said again is no news
        if layout in _SEVERAL_LABELS:
            every = read(on_bad_record="skip", require_images=False, single_label=False)
            findings.boxes_of = scan_collection(every, require_images=False)
        try:
            read(on_bad_record=options.on_bad_record, require_images=require_images)
        except BadInput as error:
            findings.stops.append(str(error))
    return findings


@contextlib.contextmanager
def _hearing() -> Iterator[list[str]]:
    """The warnings of the readers, in a list instead of a log."""
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


def _hold_against_shards(findings: Findings, root: Path) -> None:
    """Sets the records aside whose images are not in the shards that are there instead of files.

    Raises:
      BadInput: the index of the shards cannot be used.
    """
    scan, index = findings.scan, read_index(root)
    sharded = {path for entry in index.shards for path in entry.paths}
    reasons = dict(index.set_aside)
    for place in np.flatnonzero(scan.good).tolist():
        path = scan.tally.image_paths[place]
        if path not in sharded:
            scan.num_missing += 1
            scan.set_aside(place, reasons.get(path, f"the image is not in the shards ({INDEX_NAME})"))
    scan.num_found = int(scan.good.sum())


def _look_at_pictures(findings: Findings, root: Path, options: CheckOptions, terminal: Terminal) -> None:
    if options.images != "decode":
        return
    findings.pictures = look_at_pictures(
        findings.scan,
        root,
        max_pixels=options.max_pixels,
        num_threads=options.num_threads,
        progress=terminal.watch,
    )
    num_unreadable = findings.pictures.num_unreadable
    if num_unreadable and (options.on_bad_record == "stop" or not findings.scan.good.any()):
        findings.stops.append(f"{findings.scan.root}: {num_unreadable} images cannot be decoded (set aside below)")
