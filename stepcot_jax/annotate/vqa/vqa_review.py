"""Review forms of reasoning records: a sample of n records of each kind, and the records without the rejected ones.

GEMeX-RMCoT, Section 3: radiologists read 200 records of each type for clinical consistency. A form has one row per
record. The reviewer writes "ok" or "reject" under `review`, and the reason for a rejection under `comment`.
"""

import collections
import datetime
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.annotate.annotation import Aside, Reason
from stepcot_jax.annotate.output import SET_ASIDE_NAME, bring_images
from stepcot_jax.annotate.review import CONFIRMED
from stepcot_jax.annotate.spreadsheets import encode_rows, is_same_cell, read_rows
from stepcot_jax.data.grounded.record_files import FILE_NAME, VqaCollection, read_vqa_records, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.reasoning.markup import write_answer
from stepcot_jax.reasoning.record import STAGE_NAMES, VqaRecord

REJECTED = "reject"

_COLUMNS = ["number", "id", "image", "kind", "question", "choices", "answer", "boxes", "reasoning", "review", "comment"]
_REVIEW = re.compile(r"review (\d{1,6}) by")
_NUM_SHOWN = 60


def write_record_review(path: Path, source: Path, *, sample: int, seed: int) -> int:
    """Write a form for a sample of each kind of question; return the number of records."""
    if path.exists():
        raise BadInput(f"{path} exists; a filled form must not be overwritten")
    chosen = draw_sample(read_vqa_records(source).records, sample=sample, seed=seed)
    make_workdir(path.parent)
    rows = [[*row, "", ""] for row in map(_fixed_row, range(1, len(chosen) + 1), chosen)]
    write_whole(path, encode_rows([_COLUMNS, *rows]))
    return len(chosen)


def draw_sample(records: Sequence[VqaRecord], *, sample: int, seed: int) -> list[VqaRecord]:
    """Return at most `sample` records of each kind, chosen by a hash of seed and id, in the order of the file."""
    if sample < 1:
        raise BadInput(f"--sample: {sample} must be at least 1")
    by_kind = collections.defaultdict(list)
    for record in records:
        by_kind[record.kind].append((hashlib.sha256(f"{seed} {record.id}".encode()).digest(), record.id))
    chosen = {name for drawn in by_kind.values() for _, name in sorted(drawn)[:sample]}
    return [record for record in records if record.id in chosen]


def apply_record_review(
    form: Path, source: Path, *, sample: int, seed: int, reviewer: str, folder: Path
) -> tuple[int, int, int]:
    """Write the records without the rejected ones, which are set aside with the comment, into a folder without records.

    Returns:
      The numbers of records reviewed, rejected, and written.

    Raises:
      BadInput: the form is incomplete or altered (names row and column), all records are rejected, or the folder has
        records.
    """
    if not reviewer.strip() or not reviewer.isprintable() or len(reviewer) > 200:
        raise BadInput(f"--reviewer: {reviewer[:_NUM_SHOWN]!r} is not a name on one line")
    if (folder / FILE_NAME).exists():
        raise BadInput(f"{folder / FILE_NAME} exists; choose another folder")
    collection = read_vqa_records(source)
    chosen = draw_sample(collection.records, sample=sample, seed=seed)
    verdicts = _read_form(form, chosen)
    kept, rejected = _apply(collection, verdicts, reviewer)
    if not kept:
        raise BadInput(f"{form}: all {len(collection.records)} records are rejected")
    make_workdir(folder)
    bring_images(kept, source=collection.root, folder=folder)
    write_whole(folder / SET_ASIDE_NAME, msgspec.json.Encoder().encode_lines(rejected))
    write_vqa_records(folder / FILE_NAME, kept)
    return len(chosen), len(rejected), len(kept)


def _apply(
    collection: VqaCollection, verdicts: dict[str, tuple[bool, str]], reviewer: str
) -> tuple[list[VqaRecord], list[Aside]]:
    today, kept, rejected = datetime.datetime.now(datetime.UTC).date().isoformat(), [], []
    for record in collection.records:
        is_right, comment = verdicts.get(record.id, (True, ""))
        if not is_right:
            rejected.append(Aside(record.id, Reason.REJECTED, f"{reviewer}: {comment}"))
            continue
        if record.id in verdicts:
            numbers = [int(match[1]) for name in record.provenance if (match := _REVIEW.fullmatch(name))]
            review = f"review {max(numbers, default=0) + 1}"
            added = {
                f"{review} by": reviewer,
                f"{review} date": today,
                **({f"{review} comment": comment} if comment else {}),
            }
            record = msgspec.structs.replace(record, provenance={**record.provenance, **added})
        kept.append(record)
    return kept, rejected


def _fixed_row(number: int, record: VqaRecord) -> list[str]:
    stages = [getattr(record.stages, name) for name in STAGE_NAMES] if record.stages is not None else []
    choices = "; ".join(f"{letter}. {choice}" for letter, choice in zip(record.letters, record.choices, strict=True))
    boxes = "; ".join(f"{each.label} {list(each.box)}" for each in record.references)
    reasoning = "\n".join(filter(None, [record.thinking, *stages]))
    return [
        str(number), record.id, record.image_path, record.kind, record.question, choices, write_answer(record), boxes,
        reasoning,
    ]  # fmt: skip


def _read_form(path: Path, chosen: Sequence[VqaRecord]) -> dict[str, tuple[bool, str]]:
    rows = read_rows(path)
    header = next(rows, [])
    if len(header) != len(_COLUMNS) or not all(map(is_same_cell, header, _COLUMNS)):
        shown = [name[:_NUM_SHOWN] for name in header][:20]
        raise BadInput(f"{path}, line 1: the columns {shown} are not those of the form: {_COLUMNS}")
    verdicts = {}
    for number, record in enumerate(chosen, start=1):
        row, where = next(rows, None), f"{path}, record {number} ({record.id[:_NUM_SHOWN]})"
        if row is None:
            raise BadInput(f"{where}: the row is missing; expected all rows of the form in order")
        if len(row) != len(_COLUMNS):
            raise BadInput(f"{where}: {len(row)} cells; expected {len(_COLUMNS)}")
        if not is_same_cell(row[1], record.id):
            other = f"row {row[0].strip()[:_NUM_SHOWN]!r} with the id {row[1].strip()[:_NUM_SHOWN]!r}"
            raise BadInput(
                f"{where}: the row is missing, moved or has another id; found {other}; restore all rows in order"
            )
        for name, found, cell in zip(_COLUMNS, row, _fixed_row(number, record), strict=False):
            if not is_same_cell(found, cell):
                raise BadInput(f"{where}, column {name!r} was altered; restore it")
        review, comment = row[-2].strip().casefold(), " ".join(row[-1].split())
        if review not in (CONFIRMED, REJECTED):
            accepted = f"one of {CONFIRMED!r}, {REJECTED!r}"
            found = f" {row[-2].strip()[:_NUM_SHOWN]!r} is not" if review else " is required,"
            raise BadInput(f"{where}, column 'review':{found} {accepted}")
        if review == REJECTED and not comment:
            raise BadInput(f"{where}, column 'comment' is required (why the record is rejected)")
        verdicts[record.id] = (review == CONFIRMED, comment)
    if next(rows, None) is not None:
        raise BadInput(f"{path} has rows after the last record; remove them")
    return verdicts
