"""What a run leaves: records in the published layout, what was set aside with its reason, and the funnel between them.

Every report that was collected is either kept or set aside; a run of which that is not true is not written.
"""

import collections
import csv
import dataclasses
import filecmp
import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.annotate.annotation import REASONS, Annotation, Report
from stepcot_jax.annotate.reports import REPEATED, UNREADABLE, Refused
from stepcot_jax.annotate.run import Outcome, Provenance
from stepcot_jax.chain import Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.locks import LOCK_NAME

SET_ASIDE_NAME = "set_aside.jsonl"
FUNNEL_NAME = "funnel.csv"
LEDGER_FOLDER = "ledger"

_TAKEN = (data_json.FILE_NAME, SET_ASIDE_NAME, FUNNEL_NAME, "funnel.md", LEDGER_FOLDER, LOCK_NAME)
_ORDER = (UNREADABLE, REPEATED, *REASONS)


@dataclasses.dataclass(frozen=True)
class Aside:
    """A report that is not kept: its id, one of the named reasons, and what was found."""

    id: str
    reason: str
    detail: str


class Result:
    """Takes what became of each report, and writes it when all are there."""

    def __init__(self) -> None:
        self.num_collected = 0
        self.num_kept = 0
        self.cases: list[Case] = []
        self.set_aside: list[Aside] = []

    def take(self, item: Outcome | Refused) -> None:
        """One report, kept or set aside."""
        self.num_collected += 1
        if isinstance(item, Refused):
            self.set_aside.append(Aside(item.id, item.reason, item.detail))
        elif item.annotation is None:
            self.set_aside.append(Aside(item.report.id, item.reason, item.detail))
        else:
            self.num_kept += 1
            self.cases += make_cases(item.report, item.annotation, item.provenance)

    def funnel(self) -> list[tuple[str, str, int]]:
        """Stage, reason and number, as in the paper's Figure 5: collected, filtered by each reason, kept."""
        counts = collections.Counter(aside.reason for aside in self.set_aside)
        filtered = [("set aside", reason, counts[reason]) for reason in _ORDER if counts[reason]]
        ends = [("kept", "reports", self.num_kept), ("written", "records, one a frontal image", len(self.cases))]
        return [("collected", "reports", self.num_collected), *filtered, *ends]

    def write(self, folder: Path, chain: Chain) -> None:
        """Write all files, `data.json` last, so that it stands for a whole run.

        Raises:
          BadInput: no report was kept; the other files say why.
        """
        if self.num_collected != self.num_kept + len(self.set_aside) or {a.reason for a in self.set_aside} - {*_ORDER}:
            raise AssertionError(f"{self.num_collected} reports became {self.num_kept} and {len(self.set_aside)}")
        funnel = self.funnel()
        lines = msgspec.json.Encoder().encode_lines([dataclasses.asdict(aside) for aside in self.set_aside])
        write_whole(folder / SET_ASIDE_NAME, lines)
        write_whole(folder / FUNNEL_NAME, _as_csv(funnel).encode())
        write_whole((folder / FUNNEL_NAME).with_suffix(".md"), as_markdown(funnel).encode())
        if not self.cases:
            reasons = ", ".join(f"{reason}: {number}" for stage, reason, number in funnel if stage == "set aside")
            raise BadInput(
                f"{folder / SET_ASIDE_NAME}: found all {self.num_collected} reports set aside ({reasons}), "
                "accepted is a source of which a report can be kept"
            )
        write_records(folder, chain=chain, cases=self.cases)


def make_cases(report: Report, annotation: Annotation, provenance: Provenance) -> list[Case]:
    """One case for each frontal image of a report."""
    named = dict(provenance)
    if report.id not in (report.patient_id, *report.images):
        named["report"] = report.id
    return [
        Case(
            patient_id=report.patient_id,
            image_path=image,
            origin=report.origin,
            report=report.text,
            labels=annotation.labels,
            reasoning=annotation.reasoning,
            provenance=tuple(sorted(named.items())),
        )
        for image in report.images
    ]


def as_markdown(funnel: Sequence[tuple[str, str, int]]) -> str:
    """A funnel as a table to read.

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


def bring_images(cases: Sequence[Case], *, source: Path, folder: Path) -> int:
    """Make the images of cases findable below `folder`: by a hard link, or a copy where there can be none.

    Args:
      cases: with image paths relative to `source`.
      source: nothing outside of it is linked.
      folder: data root of the cases.

    Returns:
      The number of cases whose image was found.

    Raises:
      BadInput: another file is where an image is to go or will be written, or it cannot be written.
    """
    for case in cases:
        # A link would let the result write into the source; letter case makes no difference on some disks.
        if Path(case.image_path).parts[0].casefold() in _TAKEN:
            accepted = f"accepted is an image that is not named like the output: {', '.join(_TAKEN)}"
            raise BadInput(f"{folder}: found the image_path {case.image_path[:80]!r}, {accepted}")
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
            raise BadInput(f"{target}: cannot be written ({error.strerror}), accepted is a folder that can") from None
    return num_found


def _link(original: Path, target: Path) -> None:
    try:
        os.link(original, target)
    except FileExistsError:
        if not target.samefile(original) and not filecmp.cmp(original, target, shallow=False):
            raise BadInput(f"{target}: found another file, accepted is none, or the image {original}") from None
    except OSError:  # another file system, or one without links
        shutil.copyfile(original, target)


def _as_csv(funnel: Sequence[tuple[str, str, int]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("stage", "what", "number"))
    writer.writerows(funnel)
    return text.getvalue()
