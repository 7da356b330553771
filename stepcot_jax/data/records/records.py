"""Records of the published layout as cases, and back; invalid records stop the run or are set aside.

Records are counted from 0.
"""

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.chain import PUBLISHED_STEPS, Chain
from stepcot_jax.data.identities import join_patients_of
from stepcot_jax.data.record_table import RecordTable, as_table
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import (
    NOTHING_ADDED,
    Addition,
    PublishedBox,
    PublishedRecord,
    PublishedStep,
    scan_records,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.record import Record, SetAside

OnBadRecord = Literal["stop", "skip"]
PUBLISHED_STEP_NAMES: tuple[str, ...] = tuple(name for name, _ in PUBLISHED_STEPS)
_LOG = logging.getLogger(__name__)
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Collection:
    """The cases of one data root in the order of its records, and the records set aside."""

    root: Path  # folder that the image paths start from
    chain: Chain  # questions and options of the labels
    cases: RecordTable  # the records that are not set aside, as a `RecordTable`; any sequence of cases is converted
    set_aside: tuple[SetAside, ...]
    layout: str = "published"
    file: str = data_json.FILE_NAME  # name of the file with the records, for messages

    def __post_init__(self) -> None:
        cases, sentence = join_patients_of(as_table(self.cases))
        object.__setattr__(self, "cases", cases)
        if sentence:
            _LOG.warning("%s: %s", self.path, sentence)

    @property
    def path(self) -> Path:
        """The file with the records."""
        return self.root / self.file

    @property
    def record_numbers(self) -> list[int]:
        """Position of each case among the records, those set aside included."""
        aside = {item.record for item in self.set_aside}
        return [number for number in range(len(self.cases) + len(aside)) if number not in aside]


def read_records(
    root: Path,
    *,
    step_names: Sequence[str] = PUBLISHED_STEP_NAMES,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
) -> Collection:
    """Read `root/data.json`."""
    set_aside: list[SetAside] = []
    scan = scan_records(root, set_aside.append, step_names=step_names, require_images=require_images, with_texts=True)
    set_aside.sort(key=lambda item: item.record)
    num_good = int(scan.good.sum())
    bad = [item for item in set_aside if not item.by_rule]
    if scan.chain is None or (bad and on_bad_record == "stop"):
        raise BadInput(describe_bad_records(scan.file, bad or set_aside, num_good=num_good))
    if num_other := scan.count_other_wordings():
        message = "%s: %d records word a question differently than record %d, whose wording is used"
        _LOG.warning(message, scan.file, num_other, scan.numbers[scan.reference])
    table = scan.table
    if num_good < len(table):
        table = RecordTable(itertools.compress(table, scan.good))
    return Collection(scan.root, scan.chain, table, tuple(set_aside))


def describe_bad_records(path: Path, set_aside: Sequence[SetAside], *, num_good: int) -> str:
    """Return the message for records that stop a run: the first in full, the number of the others, how to continue."""
    first, more = set_aside[0], len(set_aside) - 1
    if not num_good:
        others = "; no record is valid"
    else:
        others = f"; {more} more of the {more + 1 + num_good} records are bad" if more else ""
        others += "; data.on_bad_record=skip sets bad records aside and lists each with its reason"
    return f"{path}, record {first.record} (image_path {first.image_path[:_NUM_SHOWN]!r}), {first.reason}{others}"


def write_records(root: Path, *, chain: Chain, cases: Sequence[Record]) -> None:
    """Write `root/data.json` in the published layout; with the chain's `step_names`, `read_records` reads it back."""
    chain.refuse_tree("data.json")
    records = [
        PublishedRecord(
            patient_id=case.patient,
            split=case.split or None,
            image_path=case.image,
            origin=case.origin,
            report=case.report,
            stepcot_jax=_addition(case),
            vqa_chain=tuple(
                PublishedStep(
                    step=f"Step {number}",
                    question=step.question,
                    options=step.lettered_options,
                    answer=step.written(stated),
                    uncertain=msgspec.UNSET if stated == label else True,
                    reasoning=reasoning,
                )
                for number, (step, label, stated, reasoning) in enumerate(
                    zip(chain.steps, case.answers, case.stated, case.reasoning, strict=True), start=1
                )
            ),
        )
        for case in cases
    ]
    content = msgspec.json.format(msgspec.json.encode(records), indent=1) + b"\n"
    write_whole(Path(root) / data_json.FILE_NAME, content)


def _addition(case: Record) -> Addition | None:
    added = Addition(
        boxes=tuple(_published_box(box) for box in case.boxes),
        sex=case.sex,  # type: ignore[arg-type]
        age=case.age,
        view=case.view,
        provenance=case.provenance,
    )
    return None if added == NOTHING_ADDED else added


def _published_box(box: Box) -> PublishedBox:
    width, height = box.size
    return PublishedBox(label=box.label, x=box.x1, y=box.y1, width=width, height=height, sentence=box.sentence)
