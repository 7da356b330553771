"""Write a run's results: items set aside with reasons, the funnel, and the images of the records."""

import collections
import csv
import filecmp
import io
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from stepcot_jax.annotate.annotation import Aside, Outcome, Reason
from stepcot_jax.data.grounded import record_files
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.locks import LOCK_NAME

SET_ASIDE_NAME = "set_aside.jsonl"
FUNNEL_NAME = "funnel.csv"
LEDGER_FOLDER = "ledger"
PAID_FOLDERS = (f"{LEDGER_FOLDER}/", "batch/")
"""Of an output's folder those whose files only grow: answers of models, and batches of requests."""


REPORTS = "reports"
WRITTEN = "records, one a frontal image"
"""Units of a run over reports, in its funnel."""

_TAKEN = (
    data_json.FILE_NAME,
    record_files.FILE_NAME,
    SET_ASIDE_NAME,
    FUNNEL_NAME,
    "funnel.md",
    "shard.json",
    "batch",
    "blocks",
    LEDGER_FOLDER,
    LOCK_NAME,
)


class WithImage(Protocol):
    """A record of an image."""

    @property
    def image_path(self) -> str:
        """Image, relative to the data root."""


Record = TypeVar("Record")


class Result(Generic[Record]):
    """Collects the outcomes of all items and writes them.

    Attributes:
      failed: those of them with a request given up.
      counts: number of records of each item taken, in order.
      num_waiting: items whose requests are in batch files; they are not collected.
    """

    def __init__(self, make: Callable[[Outcome[Any, Any]], list[Record]], *, units: str, written: str) -> None:
        self._make, self.units, self._written = make, units, written
        self.num_kept = 0
        self.records: list[Record] = []
        self.set_aside: list[Aside] = []
        self.failed: list[Aside] = []
        self.counts: list[int] = []
        self.num_waiting = 0

    @property
    def num_collected(self) -> int:
        """Number of items so far."""
        return self.num_kept + len(self.set_aside)

    def take(self, outcome: Outcome[Any, Any]) -> None:
        """Add one item."""
        if outcome.is_waiting:
            self.num_waiting += 1
            return
        made = self._make(outcome) if outcome.made is not None else []
        self.num_kept += outcome.made is not None
        self.records += made
        self.counts.append(len(made))
        if outcome.aside is not None:
            self.set_aside.append(outcome.aside)
            self.failed += [outcome.aside] if outcome.has_failed else []

    def funnel(self) -> list[tuple[str, str, int]]:
        """Return stage, reason and count, as in the paper's Figure 5: collected, set aside by reason, kept."""
        counts = collections.Counter(aside.reason for aside in self.set_aside)
        filtered = [("set aside", reason, counts[reason]) for reason in Reason if counts[reason]]
        ends = [("kept", self.units, self.num_kept), ("written", self._written, len(self.records))]
        return [("collected", self.units, self.num_collected), *filtered, *ends]

    def write(self, folder: Path, *, is_part: bool = False) -> None:
        """Write funnel and items set aside; a part of a run may have kept nothing."""
        funnel = self.funnel()
        lines = msgspec.json.Encoder().encode_lines(self.set_aside)
        write_whole(folder / SET_ASIDE_NAME, lines)
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([("stage", "what", "number"), *funnel])
        write_whole(folder / FUNNEL_NAME, table.getvalue().encode())
        write_whole((folder / FUNNEL_NAME).with_suffix(".md"), as_markdown(funnel).encode())
        if not self.records and not is_part:
            reasons = ", ".join(f"{reason}: {number}" for stage, reason, number in funnel if stage == "set aside")
            where, number = folder / SET_ASIDE_NAME, self.num_collected
            raise BadInput(f"{where}: all {number} {self.units} were set aside ({reasons})")


def as_markdown(funnel: Sequence[tuple[str, str, int]]) -> str:
    """Write a funnel as a Markdown table.

    >>> print(as_markdown([("collected", "reports", 12)]), end="")
    | Stage     | What    | Number |
    | --------- | ------- | -----: |
    | collected | reports |     12 |
    """
    rows = [("Stage", "What", "Number"), *((stage, what, f"{number:,}") for stage, what, number in funnel)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"| {a:<{widths[0]}} | {b:<{widths[1]}} | {c:>{widths[2]}} |" for a, b, c in rows]
    ruler = f"| {'-' * widths[0]} | {'-' * widths[1]} | {'-' * (widths[2] - 1)}: |"
    return "\n".join([lines[0], ruler, *lines[1:]]) + "\n"


def bring_images(cases: Sequence[WithImage], *, source: Path, folder: Path) -> int:
    """Link images from `source`, never from outside of it, into `folder`, or copy them where links are not possible."""
    for case in cases:
        # A link named like an output would let the run write into the source; some disks ignore letter case.
        if Path(case.image_path).parts[0].casefold() in _TAKEN:
            raise BadInput(f"{folder}: image_path {case.image_path[:80]!r} is the name of an output of this command")
    locator, num_found = ImageLocator(source, require_images=False), 0
    for case in cases:
        original, target = Path(locator.locate(case.image_path)), folder / case.image_path
        if not original.is_file():
            continue
        num_found += 1
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(original, target)
        except OSError as error:
            raise BadInput(f"{target} cannot be written ({error.strerror})") from None
    return num_found


def _link(original: Path, target: Path) -> None:
    try:
        os.link(original, target)
    except FileExistsError:
        if not target.samefile(original) and not filecmp.cmp(original, target, shallow=False):
            raise BadInput(f"{target} exists and differs from the image {original}") from None
    except OSError:  # another file system, or one without links
        shutil.copyfile(original, target)
