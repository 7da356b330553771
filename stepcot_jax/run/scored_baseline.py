"""The baseline row of every result: the majority answer with the constant box, scored."""

import dataclasses
import math
from collections.abc import Sequence

from stepcot_jax.box import Box
from stepcot_jax.data.questions.baselines import fit_baseline
from stepcot_jax.evaluation.replies import BASELINE, ReplyScore, ScoringSettings, score_reply
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record


def score_baseline(
    records: Sequence[Record], chosen: Sequence[Record], settings: ScoringSettings
) -> tuple[list[ReplyScore] | None, str]:
    """Return the scores of the majority answer with the constant box, and a remark; None without training records."""
    train = [record for record in records if record.split == "train"]
    if not train:
        return None, f"No row of {BASELINE}: the file has no record of split train to take them from."
    fitted, known = fit_baseline(train), {record.kind for record in train}
    scores = []
    for record in chosen:
        if record.kind not in known:
            scores.append(ReplyScore(record.id, None, None, (), *(4 * (math.nan,))))
            continue
        answered = fitted.answer(record)
        reply = Reply(
            dialect=settings.dialect,
            answer=answered.answer if isinstance(answered.answer, str) else ", ".join(answered.answer),
            references=tuple(Box(reference.label, reference.corners) for reference in answered.references),
        )
        scores.append(dataclasses.replace(score_reply(reply, record, settings), format=math.nan))
    note = " Training records are among those scored." if any(record.split == "train" for record in chosen) else ""
    return scores, f"{BASELINE}: of {len(train)} training records, ignoring the picture.{note}"
