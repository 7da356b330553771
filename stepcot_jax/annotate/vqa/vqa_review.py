"""Review forms of reasoning records: a sample of n records of each kind, and the records without the rejected ones.

GEMeX-RMCoT, Section 3: radiologists read 200 records of each type for clinical consistency. A form has one row per
record. The reviewer writes "ok" or "reject" under `review`, and the reason for a rejection under `comment`.
"""

import collections
import dataclasses
import datetime
import hashlib
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepcot_jax.annotate.agreement import cohen_kappa, show_figure
from stepcot_jax.annotate.annotation import Aside, Reason
from stepcot_jax.annotate.output import SET_ASIDE_NAME, bring_images
from stepcot_jax.annotate.review import CONFIRMED
from stepcot_jax.annotate.spreadsheets import encode_rows, is_same_cell, read_rows
from stepcot_jax.box import mean_iou
from stepcot_jax.chain import fold
from stepcot_jax.data.questions.record_files import FILE_NAME, VqaCollection, read_vqa_records, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, read_file, write_whole
from stepcot_jax.reasoning.replies import BOX, corners_of, write_answer
from stepcot_jax.record import KINDS, STAGE_NAMES, Record
from stepcot_jax.rewards.answers import token_f1

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


def draw_sample(records: Sequence[Record], *, sample: int, seed: int) -> list[Record]:
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
) -> tuple[list[Record], list[Aside]]:
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


def _fixed_row(number: int, record: Record) -> list[str]:
    stages = [getattr(record.stages, name) for name in STAGE_NAMES] if record.stages is not None else []
    choices = "; ".join(f"{letter}. {choice}" for letter, choice in zip(record.letters, record.options, strict=True))
    boxes = "; ".join(f"{each.label} {list(each.corners)}" for each in record.references)
    reasoning = "\n".join(filter(None, [record.thinking, *stages]))
    return [
        str(number), record.id, record.image, record.kind, record.question, choices, write_answer(record), boxes,
        reasoning,
    ]  # fmt: skip


def _read_form(path: Path, chosen: Sequence[Record]) -> dict[str, tuple[bool, str]]:
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


# Agreement of two annotators on reasoning records: items kept, answers, regions and texts.
#
# Kept or set aside is compared by Cohen's kappa, as for chains; regions by mean IoU, texts by token F1.


_MOST_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class RecordAgreement:
    """Two annotators on the records of one kind that both kept.

    Attributes:
      kind: of question; "all" for every kind.
      answers: share with the same answer, 0 to 1; NaN without records.
      regions: mean over records of the mean IoU of the boxes in the reasoning, unequal numbers penalised.
      texts: mean token F1 of the reasoning.
    """

    kind: str
    num_records: int
    answers: float
    regions: float
    texts: float


def compare_records(first: Path, second: Path) -> tuple[list[RecordAgreement], int, float]:
    """Compare two folders of records of the same source, matched by id.

    Returns:
      A row per kind and one for all, the number of items that both have, kept or set aside, and Cohen's kappa of
    """
    kept = [{record.id: record for record in read_vqa_records(path).records} for path in (first, second)]
    pairs = [(record, kept[1][name]) for name, record in kept[0].items() if name in kept[1]]
    if not pairs:
        raise BadInput(f"{first}, {second} have no record id in common")
    rows = [_compare([pair for pair in pairs if pair[0].kind == kind], kind) for kind in KINDS]
    items = [own.keys() | _read_aside(path) for own, path in zip(kept, (first, second), strict=True)]
    confusion = np.zeros((2, 2), np.int64)
    for name in items[0] & items[1]:
        confusion[int(name in kept[0]), int(name in kept[1])] += 1
    found = [*(row for row in rows if row.num_records), _compare(pairs, "all")]
    return found, int(confusion.sum()), float(cohen_kappa(confusion))


def write_record_agreement(folder: Path, names: Sequence[str], rows: Sequence[RecordAgreement], kappa: float) -> None:
    """Write `agreement.json` and `agreement.md`."""
    make_workdir(folder)
    figures = {"annotators": list(names), "kept_kappa": kappa, "kinds": rows}
    found = json.loads(msgspec.json.encode(figures))  # NaN becomes null
    write_whole(folder / "agreement.json", json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n")
    write_whole(folder / "agreement.md", show_agreement(rows).encode())


def show_agreement(rows: Sequence[RecordAgreement]) -> str:
    """Write a comparison as a Markdown table."""
    lines = ["| Kind | Records | Same answer | Regions, mIoU | Texts, F1 |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        figures = " | ".join(map(show_figure, (row.answers, row.regions, row.texts)))
        lines.append(f"| {row.kind} | {row.num_records} | {figures} |")
    return "\n".join(lines) + "\n"


def _compare(pairs: Sequence[tuple[Record, Record]], kind: str) -> RecordAgreement:
    if not pairs:
        return RecordAgreement(kind, 0, math.nan, math.nan, math.nan)
    texts = [(_reasoning(one), _reasoning(two)) for one, two in pairs]
    boxes = [[[corners_of(found) for found in BOX.finditer(text)] for text in both] for both in texts]
    return RecordAgreement(
        kind,
        len(pairs),
        float(np.mean([fold(write_answer(one)) == fold(write_answer(two)) for one, two in pairs])),
        float(np.mean([mean_iou(*both) for both in boxes])),
        float(np.mean([token_f1(*both) for both in texts])),
    )


def _reasoning(record: Record) -> str:
    stages = [getattr(record.stages, name) for name in STAGE_NAMES] if record.stages is not None else []
    return "\n".join(filter(None, [record.thinking, *stages]))


def _read_aside(path: Path) -> set[str]:
    file = (path if path.is_dir() else path.parent) / SET_ASIDE_NAME
    if not file.exists():
        return set()
    try:
        return {
            line["id"]
            for line in msgspec.json.Decoder(dict[str, str]).decode_lines(read_file(file, max_bytes=_MOST_BYTES))
        }
    except (msgspec.MsgspecError, KeyError, OSError, RecursionError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read ({str(error)[:80]}); expected items set aside, as JSON lines") from None
