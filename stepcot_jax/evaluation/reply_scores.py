"""Score replies one by one: answer, mean IoU, grounding, form and stages."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from stepcot_jax.boxes import Corners, UnequalCounts
from stepcot_jax.chain import fold
from stepcot_jax.evaluation.scored_replies import BOTH, FINDINGS, REGIONS, ScoredReplies
from stepcot_jax.evaluation.stage_quality import label_stages
from stepcot_jax.evaluation.vqa_metrics import JUDGED, OpenScore
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.record import STAGE_NAMES, VqaRecord
from stepcot_jax.reasoning.reply import Missing, Region, Reply
from stepcot_jax.reasoning.written_answers import read_answer
from stepcot_jax.rewards.answer_rewards import IllFormed, Judged, OpenAnswer, answer_reward
from stepcot_jax.rewards.formats import format_reward
from stepcot_jax.rewards.grounding import grounding_reward, localisation

Reading = Literal["strict", "parts"]

MISSING = "no reply"
CHECKED_STAGES = {"lvkc": STAGE_NAMES, "lvkc_released": ("visual", "knowledge")}
"""Stages in words, by dialect; the released code's localisation is boxes and its conclusion the answer."""
UNKNOWN = (math.nan,) * len(STAGE_NAMES)

_PLACES = r"(?:(?:right|left|bilateral|both) )?(?:(?:upper|middle|mid|lower) )?"
_PARTS = (  # of GEMeX and Chest ImaGenome, and of the phantom
    r"lungs?(?: zones?)?|zones?|apical zone|hilum|hilar structures|hemidiaphragms?|costophrenic angles?|"
    r"cardiophrenic angles?|pleura|cardiac region|cardiac silhouette|heart|atrium|cavoatrial junction|svc|carina|"
    r"trachea|upper mediastinum|mediastinum|aortic arch|descending aorta|abdomen|spine|clavicles?|chest wall|"
    r"whole (?:pictur|imag)e"
)
_REGION = re.compile(_PLACES + f"(?:{_PARTS})")


@dataclasses.dataclass(frozen=True)
class ScoringSettings:
    """How replies are read and scored.

    Attributes:
      dialect: grammar of the replies, of `reasoning.dialects.DIALECTS`.
      reading: "strict": a reply that is not well formed earns nothing. "parts": its answer and its boxes count where
        that part alone can be read.
      open_score: A-score of open questions; "relative" and "within_two" need a judge.
      unequal_counts: V-score of a reply with another number of boxes than the truth.
      with_thinking: whether a reply needs a thinking part where the dialect has one; models that were trained without
        it write the answer alone (GEMeX-200K).
      missing: what a missing reply is: "wrong", "skip" leaves the record out, "stop" refuses the file.
    """

    dialect: str = "gemex"
    reading: Reading = "strict"
    open_score: OpenScore = "exact"
    unequal_counts: UnequalCounts = "penalise"
    with_thinking: bool = True
    missing: Missing = "wrong"


@dataclasses.dataclass(frozen=True)
class ReplyScore:
    """One scored reply. NaN: not scored.

    Attributes:
      text: what the model wrote; None for a missing reply, and for the baseline, which writes none.
      answer: as it was read, in words for the page; None if no answer could be read.
      boxes: of the reply, in pixels of the record's image.
      a_score: of the answer, 0 to 1.
      grounding: 1 if the boxes pass.
      judged: the judge's scores of an open answer.
      stages: value of each stage, NaN without; see `evaluation.stage_quality`.
      rated_stages: a judge's score of each stage from 1 to 5, NaN without.
      problems: why the reply is not well formed.
    """

    id: str
    text: str | None
    answer: str | tuple[str, ...] | None
    boxes: tuple[Region, ...]
    a_score: float
    v_score: float
    grounding: float
    format: float
    judged: Judged | None = None
    stages: tuple[float, ...] = UNKNOWN
    rated_stages: tuple[float, ...] = UNKNOWN
    problems: tuple[str, ...] = ()


def score_text(
    text: str | None, record: VqaRecord, settings: ScoringSettings, *, judged: Judged | None = None
) -> ReplyScore:
    """Score one reply; None is a missing one, wrong in every part or, with `missing` "skip", not scored."""
    if text is None:
        if settings.missing == "skip":
            return ReplyScore(record.id, None, None, (), *(4 * (math.nan,)), problems=(MISSING,))
        stages = _label({}, record, settings)
        return ReplyScore(record.id, None, None, (), *(4 * (0.0,)), stages=stages, problems=(MISSING,))
    reply = read(text, settings)
    score = score_reply(reply, record, settings, judged=judged)
    return dataclasses.replace(score, text=text, stages=_label(_stages_that_count(reply, settings), record, settings))


def _stages_that_count(reply: Reply, settings: ScoringSettings) -> Mapping[str, str]:
    """Return the stages of a reply; none in strict reading if it is not well formed."""
    return reply.stages if reply.is_well_formed or settings.reading == "parts" else {}


def _label(stages: Mapping[str, str], record: VqaRecord, settings: ScoringSettings) -> tuple[float, ...]:
    """Values of the stages; without any, each is worth 0 that could be checked in the record's own, NaN otherwise."""
    checked = CHECKED_STAGES.get(settings.dialect, ())
    if not record.facts or not checked:
        return UNKNOWN
    own = dict.fromkeys(STAGE_NAMES, "") if record.stages is None else msgspec.structs.asdict(record.stages)
    values = label_stages(stages or own, record.facts)
    worth = values if stages else [0.0 * value for value in values]
    return tuple(value if name in checked else math.nan for name, value in zip(STAGE_NAMES, worth, strict=True))


def read(text: str, settings: ScoringSettings) -> Reply:
    """Read a reply; where no thinking is needed, one without it is well formed too.

    >>> read("<response><answer>Yes</answer></response>", ScoringSettings()).problems[0]
    '<think> is missing'
    """
    if not settings.with_thinking:
        alone = read_reply(text, settings.dialect, with_thinking=False)
        if alone.is_well_formed:
            return alone
    return read_reply(text, settings.dialect)


def score_reply(
    reply: Reply, record: VqaRecord, settings: ScoringSettings, *, judged: Judged | None = None
) -> ReplyScore:
    """Score a reply that was read, or made without a text."""
    open_answer: OpenAnswer = "judge" if settings.open_score in JUDGED else settings.open_score  # type: ignore[assignment]
    ill_formed: IllFormed = "nothing" if settings.reading == "strict" else "parts"
    answer = None if reply.answer is None else read_answer(reply.answer, record)
    return ReplyScore(
        id=record.id,
        text=None,
        answer=answer,
        boxes=tuple(
            Region(region.name, _corners(box))
            for region, box in zip(reply.references or (), reply.boxes(record.image_size), strict=True)
        ),
        a_score=answer_reward(reply, record, open_answer=open_answer, ill_formed=ill_formed, judged=judged),
        v_score=localisation(reply, record, unequal_counts=settings.unequal_counts, ill_formed=ill_formed),
        grounding=grounding_reward(reply, record, ill_formed=ill_formed),
        format=format_reward(reply),
        judged=judged,
        problems=reply.problems,
    )


def score_all(
    records: Sequence[VqaRecord],
    replies: Mapping[str, str],
    settings: ScoringSettings,
    *,
    judged: Mapping[str, Judged] | None = None,
) -> list[ReplyScore]:
    """Score a model's replies in the order of the records."""
    scores = judged or {}
    return [score_text(replies.get(each.id), each, settings, judged=scores.get(each.id)) for each in records]


def as_columns(records: Sequence[VqaRecord], scores: Sequence[ReplyScore]) -> ScoredReplies:
    """Return the columns that figures are computed from."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(score, name) for score in scores], np.float64)

    judged = [score.judged or Judged(math.nan, math.nan) for score in scores]
    return ScoredReplies(
        kinds=np.array([record.kind for record in records]),
        patients=np.array([record.patient_id for record in records]),
        references=np.array([reference_kind(record) for record in records]),
        judged_reply=np.array([each.reply for each in judged], np.float64),
        judged_reference=np.array([each.reference for each in judged], np.float64),
        **{name: column(name) for name in ("a_score", "v_score", "grounding", "format")},
    )


def reference_kind(record: VqaRecord) -> str:
    """Return what a record's boxes show: "findings", "regions", "both", or "" without boxes.

    The record's provenance says so under "references"; else the boxes show regions if each label is the name of an
    anatomical region. Questions that are answered with no, and those of normal pictures, refer to regions, whose boxes
    hardly vary: a model that ignores the picture gets them nearly right.

    >>> from stepcot_jax.reasoning.record import VqaBox
    >>> reference_kind(VqaRecord(
    ...     id="1", image_path="a.png", image_size=(64, 64), patient_id="7", kind="closed", question="Is there a mass?",
    ...     answer="No", references=(VqaBox("right lower lung zone", (0, 40, 20, 60)),)))
    'regions'
    """
    if not record.references:
        return ""
    stated = record.provenance.get("references")
    if stated in (FINDINGS, REGIONS, BOTH):
        return stated
    return REGIONS if all(_REGION.fullmatch(fold(box.label)) for box in record.references) else FINDINGS


def _corners(box: np.ndarray) -> Corners:
    x1, y1, x2, y2 = map(float, box)
    return x1, y1, x2, y2
