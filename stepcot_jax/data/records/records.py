"""Records of the published layout as cases with labels, and back; what cannot be used is said or set aside.

Records are counted from 0, as in the JSON paths of the messages.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stepcot_jax.chain import PUBLISHED_STEPS, Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.data_json import NOTHING_ADDED, Addition, PublishedBox, PublishedRecord, PublishedStep
from stepcot_jax.data.records.record_agreement import Agreement, describe_disagreement, describe_repetition
from stepcot_jax.data.records.record_reader import ReadRecord, RecordReader
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole

OnBadRecord = Literal["stop", "skip"]

PUBLISHED_STEP_NAMES: tuple[str, ...] = tuple(name for name, _ in PUBLISHED_STEPS)

_LOG = logging.getLogger(__name__)
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class SetAside:
    """A record that takes no part.

    Attributes:
      record: its position in `data.json`, from 0.
      image_path: its image as in the file; "" where that cannot be read.
      reason: what was found and what is accepted.
      patient_id: its patient, so that a split which names the patient is not at a loss; "" where unreadable.
    """

    record: int
    image_path: str
    reason: str
    patient_id: str = ""


@dataclasses.dataclass(frozen=True)
class Collection:
    """Cases of one data root in the order of its records, and the records that take no part.

    Attributes:
      root: folder that the image paths start from.
      chain: questions and options of the labels.
      cases: what takes part.
      set_aside: what does not; with the cases, each record once.
      layout: how the root is laid out, a key of `sources.layouts.LAYOUTS`.
      file: name of the file with the records, for messages.
    """

    root: Path
    chain: Chain
    cases: tuple[Case, ...]
    set_aside: tuple[SetAside, ...]
    layout: str = "published"
    file: str = data_json.FILE_NAME


def read_records(
    root: Path,
    *,
    step_names: Sequence[str] = PUBLISHED_STEP_NAMES,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
) -> Collection:
    """Reads `root/data.json`.

    The chain's options are those that most records have (the first record's, if as many have others);
    letter prefixes, letter case and spacing make no difference between options. Its questions are those of
    the first record with these options; other wordings are counted in one warning.

    Args:
      root: folder with `data.json` and the images.
      step_names: name of each step, in order; a record must have exactly these many steps.
      on_bad_record: "stop" raises if any record is bad, "skip" sets bad records aside.
      require_images: whether a record without its image file is bad.

    Raises:
      BadInput: the file as a whole cannot be used, no record is good, or a record is bad and
        `on_bad_record` is "stop"; names file, record and field.
    """
    path = Path(root) / data_json.FILE_NAME
    reader = RecordReader(Path(root), step_names=step_names, require_images=require_images)
    agreement = Agreement(path)
    readable: list[ReadRecord] = []
    set_aside: list[SetAside] = []
    for index, raw in enumerate(data_json.read_raw_records(path)):
        try:
            readable.append(reader.read(data_json.decode_record(raw, index=index), index=index))
        except BadInput as error:
            patient_id, image_path = data_json.identify(raw)
            set_aside.append(SetAside(index, image_path, str(error), patient_id))
            continue
        agreement.add(readable[-1])
    good = _part(readable, agreement, set_aside) if readable else []
    set_aside.sort(key=lambda aside: aside.record)
    if set_aside and (on_bad_record == "stop" or not good):
        raise BadInput(describe_bad_records(path, set_aside, num_good=len(good)))
    _warn_of_wordings(path, good)
    return Collection(Path(root), Chain(good[0].steps), tuple(item.case for item in good), tuple(set_aside))


def describe_bad_records(path: Path, set_aside: Sequence[SetAside], *, num_good: int) -> str:
    """The message for records that stop a run: the first in full, the number of the others, the way on."""
    first, more = set_aside[0], len(set_aside) - 1
    if not num_good:
        others = "; no record can be used"
    else:
        others = f"; {more} more of the {more + 1 + num_good} records are bad" if more else ""
        others += "; data.on_bad_record=skip sets bad records aside and lists each with its reason"
    return f"{path}: record {first.record} (image_path {first.image_path[:_NUM_SHOWN]!r}): {first.reason}{others}"


def write_records(root: Path, *, chain: Chain, cases: Sequence[Case]) -> None:
    """Writes `root/data.json` in the published layout; `read_records` gives the same cases back.

    Step names are not part of the layout: reading needs them as `step_names`.
    """
    records = [
        PublishedRecord(
            patient_id=case.patient_id,
            image_path=case.image_path,
            origin=case.origin,
            report=case.report,
            stepcot_jax=_addition(case),
            vqa_chain=tuple(
                PublishedStep(
                    step=f"Step {number}",
                    question=step.question,
                    options=step.lettered_options,
                    answer=step.written(label),
                    reasoning=reasoning,
                )
                for number, (step, label, reasoning) in enumerate(
                    zip(chain.steps, case.labels, case.reasoning, strict=True), start=1
                )
            ),
        )
        for case in cases
    ]
    write_whole(Path(root) / data_json.FILE_NAME, data_json.encode_records(records))


def _addition(case: Case) -> Addition | None:
    added = Addition(
        boxes=tuple(PublishedBox(**dataclasses.asdict(box)) for box in case.boxes),
        sex=case.sex,  # type: ignore[arg-type]
        age=case.age,
        view=case.view,
        provenance=dict(case.provenance),
    )
    return None if added == NOTHING_ADDED else added


def write_quarantine(path: Path, set_aside: Sequence[SetAside]) -> None:
    """Writes the records that take no part, one JSON object a line: record, image_path, reason."""
    lines = [{"record": item.record, "image_path": item.image_path, "reason": item.reason} for item in set_aside]
    write_whole(Path(path), msgspec.json.Encoder().encode_lines(lines))


def _part(readable: Sequence[ReadRecord], agreement: Agreement, set_aside: list[SetAside]) -> list[ReadRecord]:
    """The records that take part; the others are added to those set aside."""
    verdicts = agreement.judge()
    reference = readable[verdicts.reference]
    good = []
    for place, (item, agrees, original) in enumerate(
        zip(readable, verdicts.agrees.tolist(), verdicts.original.tolist(), strict=True)
    ):
        if agrees and original == place:
            good.append(item)
            continue
        known = readable[original]
        if agrees:
            reason = describe_repetition(
                record=item.record, known_record=known.record, known_image_path=known.case.image_path
            )
        else:
            reason = describe_disagreement(
                item.steps, reference.steps, record=reference.record, image_path=reference.case.image_path
            )
        set_aside.append(SetAside(item.record, item.case.image_path, reason, item.case.patient_id))
    return good


def _warn_of_wordings(path: Path, readable: Sequence[ReadRecord]) -> None:
    questions = [step.question for step in readable[0].steps]
    others = [[step.question for step in item.steps] for item in readable[1:]]
    num_other = sum(found != questions for found in others)
    if num_other:
        message = "%s: %d records word a question differently than record %d, whose wording is used"
        _LOG.warning(message, path, num_other, readable[0].record)
