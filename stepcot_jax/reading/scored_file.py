"""Scores of a file of replies: of the split that was asked, with boxes in pixels of the record's picture."""

import dataclasses
from collections.abc import Mapping, Sequence

from stepcot_jax.box import Box, convert, pixels
from stepcot_jax.data.questions.reply_files import ReplyFile
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.evaluation.replies import ReplyScore, ScoringSettings, score_all
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Judged
from stepcot_jax.record import Record


def choose_split(records: Sequence[Record], split: str, *, where: str) -> list[Record]:
    """Return the records of a split, or of "all"."""
    chosen = [record for record in records if split in ("all", record.split)]
    if not chosen:
        splits = ", ".join(sorted({record.split or '""' for record in records}))
        raise BadInput(f"{where}: no record of split {split!r}, found {splits}; --split=all scores every record")
    return chosen


def score_file(
    records: Sequence[Record], file: ReplyFile, settings: ScoringSettings, *, judged: Mapping[str, Judged] | None = None
) -> list[ReplyScore]:
    """Score the replies of a file; boxes refer to the picture whose size a reply states, else to the record's."""
    seen = as_seen(records, file)
    scores = score_all(seen, file.replies, settings, judged=judged, finishes=file.finishes)
    return [
        score if shown is record else dataclasses.replace(score, boxes=_scale(score.boxes, shown, record))
        for record, shown, score in zip(records, seen, scores, strict=True)
    ]


def as_seen(records: Sequence[Record], file: ReplyFile) -> list[Record]:
    """Return the records as of the pictures whose sizes the replies state."""
    sizes = {record.id: file.image_sizes.get(record.id, record.image_size) for record in records}
    return [scale_record(record, sizes[record.id]) if all(record.image_size) else record for record in records]


def _scale(boxes: Sequence[Box], shown: Record, record: Record) -> tuple[Box, ...]:
    corners = [box.corners for box in boxes]
    scaled = convert(corners, source=pixels(shown.image_size), target=pixels(record.image_size)).tolist()
    return tuple(Box(box.label, tuple(own)) for box, own in zip(boxes, scaled, strict=True))
