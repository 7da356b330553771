"""Agreement of two annotators on reasoning records: items kept, answers, regions and texts.

Kept or set aside is compared by Cohen's kappa, as for chains; regions by mean IoU, texts by token F1.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from stepcot_jax.annotate.agreement import cohen_kappa, show_figure
from stepcot_jax.annotate.output import SET_ASIDE_NAME
from stepcot_jax.boxes import mean_iou
from stepcot_jax.chain import fold
from stepcot_jax.data.grounded.record_files import read_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, read_file, write_whole
from stepcot_jax.reasoning.markup import BOX, corners_of, write_answer
from stepcot_jax.reasoning.record import KINDS, STAGE_NAMES, VqaRecord
from stepcot_jax.rewards.answers import token_f1

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


def _compare(pairs: Sequence[tuple[VqaRecord, VqaRecord]], kind: str) -> RecordAgreement:
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


def _reasoning(record: VqaRecord) -> str:
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
