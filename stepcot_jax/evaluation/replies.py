"""Score replies to visual questions, one by one and as figures of models with intervals by patient.

GEMeX-RMCoT, Section 5.1: the A-score is the share of right answers of a kind, the V-score the mean IoU.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.box import Box, UnequalCounts
from stepcot_jax.chain import fold
from stepcot_jax.evaluation.box_forms import BoxForm, place_boxes
from stepcot_jax.evaluation.stage_claims import label_stages, stage_figures
from stepcot_jax.evaluation.statistics import (
    LEVEL,
    McNemar,
    Weights,
    as_plain,
    bootstrap,
    compare_accuracy,
    divide,
    weighted_mean,
)
from stepcot_jax.evaluation.unread import MISSING, UnreadParts, count_replies, count_unread
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reasoning.answers import is_choice_alone
from stepcot_jax.reasoning.dialects import FREE, WRITTEN, interpret_answer, read_reply
from stepcot_jax.reasoning.endings import PART_ENDS, Unsaid, goes_on_behind, hear
from stepcot_jax.reasoning.free_replies import UNCLOSED
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.reasoning.replies import Judged, Missing, Reply, normalise, tidy
from stepcot_jax.record import KINDS, STAGE_NAMES, Record
from stepcot_jax.rewards.answers import answer_reward, format_reward, suit, why_unread
from stepcot_jax.rewards.boxes import LEAST_IOU, grounding_reward, localisation
from stepcot_jax.rewards.options import IllFormed, OpenAnswer

# Columns of one model's scored replies, which every figure is computed from.


A_SCORE, V_SCORE, GROUNDING, FORMAT = "a_score", "v_score", "grounding", "format"
SHARES = (V_SCORE, GROUNDING, FORMAT)
"""Figures that are means over replies; they are given for each kind, all replies, findings and regions."""

FINDINGS, REGIONS, BOTH = "findings", "regions", "both"

HEADED_FIGURES: tuple[tuple[str, tuple[str, str]], ...] = (
    ("mean A", (A_SCORE, "mean")),
    ("V", (V_SCORE, "all")),
    ("V on findings", (V_SCORE, FINDINGS)),
    ("V on regions", (V_SCORE, REGIONS)),
    ("passed", (GROUNDING, "all")),
    ("well formed", (FORMAT, "all")),
    *((f"{kind} {letter}", (key, kind)) for kind in KINDS for letter, key in (("A", A_SCORE), ("V", V_SCORE))),
)  # Heading in tables and key of each figure of `vqa_metrics`


@dataclasses.dataclass(frozen=True)
class ScoredReplies:
    """Columns [reply] of one model's scored replies; figures leave a reply out where its column is NaN."""

    kinds: npt.NDArray[np.str_]  # of the questions, of `record.KINDS`
    patients: npt.NDArray[np.str_]  # "" where unknown; such a reply counts as another patient
    references: npt.NDArray[np.str_]  # what the true boxes show: "findings", "regions", "both", or "" without boxes
    a_score: npt.NDArray[np.float64]  # 0 to 1; 0: could not be read; NaN: no usable score
    v_score: npt.NDArray[np.float64]  # mean IoU of the reply, 0 to 1
    grounding: npt.NDArray[np.float64]  # 1 if the boxes pass, else 0
    format: npt.NDArray[np.float64]  # 1 if the reply is well formed, else 0
    judged_reply: npt.NDArray[np.float64]  # the judge's score of the answer; NaN without one
    judged_reference: npt.NDArray[np.float64]  # its score of the true answer; NaN without one

    def groups(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the replies [reply] of each kind that occurs, of all, and of each kind of reference that occurs."""
        groups: dict[str, npt.NDArray[np.bool_]] = {kind: self.kinds == kind for kind in KINDS}
        groups["all"] = np.ones(len(self.kinds), bool)
        groups |= {name: self.references == name for name in (FINDINGS, REGIONS)}
        return {name: members for name, members in groups.items() if members.any()}


def find_scored_kinds(*models: ScoredReplies) -> tuple[str, ...]:
    """Return the kinds of which every model has a scored answer, in the order of `record.KINDS`."""

    def has_scores(scored: ScoredReplies, kind: str) -> bool:
        return not np.isnan(scored.a_score[scored.kinds == kind]).all()

    return tuple(kind for kind in KINDS if all(has_scores(scored, kind) for scored in models))


OpenScore = Literal["relative", "within_two", "exact", "token_f1"]
JUDGED: tuple[OpenScore, ...] = ("relative", "within_two")
"""Ways of scoring open answers that need the scores of a judge."""

Key: TypeAlias = tuple[str, str]  # Figure and group, such as ("a_score", "closed")

Figures: TypeAlias = dict[Key, npt.NDArray[np.float64]]  # [resample] by key

_CLOSE = 2.0  # scores of a judge that differ by less are as good as each other (GEMeX-RMCoT, Section 4.2)


def prepare_figures(
    scored: ScoredReplies, *, open_score: OpenScore = "exact", mean_kinds: Sequence[str] | None = None
) -> Callable[[Weights], Figures]:
    """Return a function from weights [resample, reply] to every figure; `mean_kinds` are those of the mean A-score.

    A group in which no reply is asked for boxes has no V-score and no grounding.
    """
    answers, groups = scored.a_score, scored.groups()
    kinds = [kind for kind in groups if kind in KINDS]
    averaged = find_scored_kinds(scored) if mean_kinds is None else mean_kinds
    judged = ~np.isnan(scored.judged_reply + scored.judged_reference) & ~np.isnan(answers)
    if open_score == "within_two":
        # Rounded as in `rewards.answers.answer_reward`: 4.1 and 2.1 differ by 2, not by less.
        near = np.abs(np.round(scored.judged_reply - scored.judged_reference, 9)) < _CLOSE
        answers = np.where((scored.kinds == "open") & judged, near, answers)
    of_kinds: list[tuple[Key, npt.NDArray, npt.NDArray[np.bool_]]] = [
        ((A_SCORE, kind), answers, groups[kind]) for kind in kinds
    ]
    of_groups = [
        ((name, group), getattr(scored, name), who)
        for name in SHARES
        for group, who in groups.items()
        if name == FORMAT or not np.isnan(getattr(scored, name)[who]).all()
    ]
    keys, columns, members = zip(*of_kinds, *of_groups, strict=True)
    values, counted = np.stack(columns, axis=1), np.stack(members, axis=1)
    counted = counted & ~np.isnan(values)

    def compute(weights: Weights) -> Figures:
        figures = dict(zip(keys, weighted_mean(weights, values=values, counted=counted).T, strict=True))
        if open_score == "relative" and "open" in kinds:
            figures[A_SCORE, "open"] = _relative(weights, scored, judged)
        mean = (
            np.mean([figures[A_SCORE, kind] for kind in averaged], axis=0)
            if averaged
            else np.full(len(weights), np.nan)
        )
        return {**{(A_SCORE, kind): figures[A_SCORE, kind] for kind in kinds}, (A_SCORE, "mean"): mean, **figures}

    return compute


def _relative(weights: Weights, scored: ScoredReplies, judged: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Return the ratio of the sums of scores, times the share of the replies that could be read."""
    judged = judged & (scored.kinds == "open")
    unread = (scored.kinds == "open") & ~judged & ~np.isnan(scored.a_score)
    sums = [weights @ np.where(judged, column, 0.0) for column in (scored.judged_reply, scored.judged_reference)]
    num_judged, num_unread = weights @ judged.astype(np.float64), weights @ unread.astype(np.float64)
    ratio = divide(sums[0], sums[1]) * divide(num_judged, num_judged + num_unread)
    return np.where((num_judged == 0) & (num_unread > 0), 0.0, ratio)


def score_models(
    models: Mapping[str, ScoredReplies],
    *,
    open_score: OpenScore = "exact",
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[Key, Interval]]:
    """Compute every figure with its interval by patient; mean A is over the kinds that every model is scored on."""
    how: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed}
    kinds = find_scored_kinds(*models.values())
    return {
        name: _bootstrap((scored,), open_score=open_score, mean_kinds=kinds, **how) for name, scored in models.items()
    }


def score_difference(
    *,
    first: ScoredReplies,
    second: ScoredReplies,
    open_score: OpenScore = "exact",
    mean_kinds: Sequence[str] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[Key, Interval]:
    """Compute one model's figures less another's in the same resamples, on the replies that both are scored on."""
    for column in ("kinds", "patients", "references"):
        if not np.array_equal(getattr(first, column), getattr(second, column)):
            raise ValueError(f"both models must have the same questions in the same order; their {column} differ")
    pair = _share_missing(first, second), _share_missing(second, first)
    kinds = find_scored_kinds(*pair) if mean_kinds is None else mean_kinds
    return _bootstrap(pair, open_score=open_score, mean_kinds=kinds, num_resamples=num_resamples, seed=seed)


def compare_answers(*, first: ScoredReplies, second: ScoredReplies) -> dict[str, McNemar]:
    """Run McNemar's test by kind and for all; it takes questions as independent, the intervals do not."""
    pair = _share_missing(first, second), _share_missing(second, first)
    kinds = {name: members for name, members in first.groups().items() if name in (*KINDS, "all")}
    tests = {}
    for name, members in kinds.items():
        answers = [one.a_score[members & ~np.isnan(one.a_score)] for one in pair]
        if all(np.isin(column, (0, 1)).all() for column in answers):
            tests[name] = compare_accuracy(
                labels=np.ones(len(answers[0]), int), first=answers[0] == 1, second=answers[1] == 1
            )
    return tests


def _share_missing(one: ScoredReplies, other: ScoredReplies) -> ScoredReplies:
    """Return the columns of one model, NaN wherever the other's are."""
    names = (A_SCORE, *SHARES)
    columns = {name: np.where(np.isnan(getattr(other, name)), np.nan, getattr(one, name)) for name in names}
    return dataclasses.replace(one, **columns)


def _bootstrap(
    models: Sequence[ScoredReplies],
    *,
    open_score: OpenScore,
    mean_kinds: Sequence[str],
    num_resamples: int,
    seed: int,
) -> dict[Key, Interval]:
    """Return intervals of a model's figures or, of two models, of their differences."""
    computes = [prepare_figures(scored, open_score=open_score, mean_kinds=mean_kinds) for scored in models]

    def compute(weights: Weights) -> Figures:
        first, *others = (compute(weights) for compute in computes)
        return {key: values - others[0][key] if others else values for key, values in first.items()}

    return bootstrap(compute, models[0].patients, num_resamples=num_resamples, seed=seed)


# Score replies one by one: answer, mean IoU, grounding, form and stages.


Reading = Literal["strict", "parts"]

CHECKED_STAGES = {"lvkc": STAGE_NAMES, "lvkc_released": ("visual", "knowledge")}
"""Stages in words, by dialect; the released code's localisation is boxes and its conclusion the answer."""
UNKNOWN = (math.nan,) * len(STAGE_NAMES)

_SIDE_AND_ZONE = r"(?:(?:right|left|bilateral|both) )?(?:(?:upper|middle|mid|lower) )?"
_PARTS = (  # of GEMeX and Chest ImaGenome, and of the phantom
    r"lungs?(?: zones?)?|zones?|apical zone|hilum|hilar structures|hemidiaphragms?|costophrenic angles?|"
    r"cardiophrenic angles?|pleura|cardiac region|cardiac silhouette|heart|atrium|cavoatrial junction|svc|carina|"
    r"trachea|upper mediastinum|mediastinum|aortic arch|descending aorta|abdomen|spine|clavicles?|chest wall|"
    r"whole (?:pictur|imag)e"
)
_REGION = re.compile(_SIDE_AND_ZONE + f"(?:{_PARTS})")


@dataclasses.dataclass(frozen=True)
class ScoringSettings:
    """How replies are read and scored."""

    dialect: str = "gemex"  # grammar of the replies, of `reasoning.dialects.DIALECTS`
    reading: Reading = "strict"  # strict: only well-formed replies earn
    open_score: OpenScore = "exact"  # A-score of open questions; "relative" and "within_two" need a judge
    unequal_counts: UnequalCounts = "penalise"  # V-score of a reply with another number of boxes than the truth
    with_thinking: bool = True  # whether a reply needs a thinking part
    missing: Missing = "wrong"  # wrong, left out, or refused
    boxes: BoxForm | None = None  # how boxes are written; None: the dialect's way, corners not sorted


@dataclasses.dataclass(frozen=True)
class ReplyScore:
    """One scored reply. NaN: not scored."""

    id: str
    text: str | None  # what the model wrote; None for a missing reply, and for the baseline, which writes none
    answer: str | tuple[str, ...] | None  # the answer that was read, in words for the page; None if none could be read
    boxes: tuple[Box, ...]  # of the reply, in pixels of the record's image
    a_score: float  # of the answer, 0 to 1
    v_score: float  # NaN also where no box is asked for, as of a record without boxes
    grounding: float  # 1 if the boxes pass
    format: float
    judged: Judged | None = None  # the judge's scores of an open answer
    stages: tuple[float, ...] = UNKNOWN  # value of each stage, NaN without; see `evaluation.stage_claims`
    rated_stages: tuple[float, ...] = UNKNOWN  # a judge's score of each stage from 1 to 5, NaN without
    problems: tuple[str, ...] = ()  # why the reply is not well formed
    unread_answer: str = ""  # why no answer could be read; "" if one could
    unread_boxes: str = ""  # why no box could be read; "" if one could, or none is asked for
    num_turned: int = 0  # boxes whose corners were swapped


@dataclasses.dataclass(frozen=True)
class Answered:
    """Questions with replies."""

    records: Sequence[Record]
    texts: Sequence[str]
    scores: Sequence[ReplyScore]


def score_text(
    text: str | None, record: Record, settings: ScoringSettings, *, judged: Judged | None = None, finish: str = ""
) -> ReplyScore:
    """Score one reply. None is a missing reply: wrong in every part or, with `missing` "skip", not scored."""
    if text is None:
        if settings.missing == "skip":
            return ReplyScore(record.id, None, None, (), *(4 * (math.nan,)), problems=(MISSING,))
        nothing = Reply(settings.dialect, problems=(MISSING,))
        worth = dataclasses.replace(score_reply(nothing, record, settings), a_score=0.0, format=0.0)
        return dataclasses.replace(worth, stages=_label({}, record, settings), unread_answer="", unread_boxes="")
    reply, num_turned = read_ended(text, record, settings, finish=finish), 0
    if settings.boxes is not None:
        reply, num_turned = place_boxes(reply, record, settings.boxes)
    score = score_reply(reply, record, settings, judged=judged)
    counted = reply.stages if reply.is_well_formed or settings.reading == "parts" else {}
    return dataclasses.replace(
        score,
        text=text,
        stages=_label(counted, record, settings),
        num_turned=num_turned,
    )


def _label(stages: Mapping[str, str], record: Record, settings: ScoringSettings) -> tuple[float, ...]:
    """Return the values of the stages; without stages 0 for each that the true stages can be checked by."""
    checked = CHECKED_STAGES.get(settings.dialect, ())
    if not record.facts or not checked:
        return UNKNOWN
    true_stages = dict.fromkeys(STAGE_NAMES, "") if record.stages is None else msgspec.structs.asdict(record.stages)
    values = label_stages(stages or true_stages, record.facts)
    worth = values if stages else [0.0 * value for value in values]
    return tuple(value if name in checked else math.nan for name, value in zip(STAGE_NAMES, worth, strict=True))


def read(text: str, settings: ScoringSettings, record: Record | None = None, *, in_any_space: bool = False) -> Reply:
    """Read a reply; where the settings or the record ask for no thinking, one without it is well formed too."""
    in_any_space = in_any_space or (settings.boxes is not None and settings.boxes.space != "")
    reply = read_reply(text, settings.dialect, in_any_space=in_any_space)
    if settings.with_thinking and record is None:
        return reply
    return suit(reply, record if settings.with_thinking else None)


def read_ended(text: str, record: Record, settings: ScoringSettings, *, finish: str = "") -> Reply:
    """Read a reply that ended for the reason `finish`; one that says nothing, or was cut, has no answer and no box."""
    unsaid = hear(normalise(text), finish)[1]
    reply = Reply(settings.dialect)
    if unsaid not in (Unsaid.REFUSED, Unsaid.FILTERED):
        reply = read(text, settings, record)
        is_open = unsaid is Unsaid.CUT or UNCLOSED in reply.problems
        says_nothing = reply.answer is None and not reply.references
        if finish == "length":
            unsaid = Unsaid.CUT if is_open else unsaid if unsaid and says_nothing else _find_cut(reply, record)
        elif is_open or not says_nothing:
            unsaid = None
    if unsaid is None:
        return reply
    return Reply(settings.dialect, thinking=reply.thinking, problems=(unsaid,), space=reply.space, text=text)


def _find_cut(reply: Reply, record: Record) -> Unsaid | None:
    """Return whether a reply at the limit of its length goes on behind its answer; an option alone is complete."""
    if not goes_on_behind(normalise(reply.text), "length", PART_ENDS):
        return None
    answer = tidy(normalise(reply.answer or ""))
    is_last = bool(answer) and tidy(normalise(reply.text)).endswith(answer)
    is_choice = record.kind == "single" and is_choice_alone(answer, record)
    is_choice |= record.kind == "closed" and fold(answer) in ("yes", "no")
    return None if is_last and is_choice else Unsaid.CUT_BEHIND


def choose_dialect(texts: Iterable[str], settings: ScoringSettings) -> str:
    """Return the first dialect of the papers in which at least half of the replies are well formed, else `FREE`.

    `PLAIN` is not tried: nearly every text is a plain reply, and `FREE` finds more in those of other models.
    """
    replies = list(texts)
    for dialect in (dialect for dialect in WRITTEN if dialect != PLAIN):
        of_dialect = dataclasses.replace(settings, dialect=dialect)
        if 2 * sum(read(text, of_dialect).is_well_formed for text in replies) >= len(replies):
            return dialect
    return FREE


def score_reply(reply: Reply, record: Record, settings: ScoringSettings, *, judged: Judged | None = None) -> ReplyScore:
    """Score a reply that was read, or made without a text."""
    open_answer: OpenAnswer = "judge" if settings.open_score in JUDGED else settings.open_score  # type: ignore[assignment]
    ill_formed: IllFormed = "nothing" if settings.reading == "strict" else "parts"
    unread_answer, unread_boxes = why_unread(reply, record, with_thinking=settings.with_thinking)
    overlap = localisation(reply, record, unequal_counts=settings.unequal_counts, ill_formed=ill_formed)
    passes = grounding_reward(reply, record, ill_formed=ill_formed)
    return ReplyScore(
        id=record.id,
        text=None,
        answer=interpret_answer(reply, record),
        boxes=tuple(
            Box(region.label, tuple(box))
            for region, box in zip(reply.references or (), reply.boxes(record.image_size).tolist(), strict=True)
        ),
        a_score=answer_reward(reply, record, open_answer=open_answer, ill_formed=ill_formed, judged=judged),
        v_score=math.nan if unread_boxes is None else overlap,
        grounding=math.nan if unread_boxes is None else passes,
        format=format_reward(reply, record),
        judged=judged,
        problems=reply.problems,
        unread_answer=unread_answer,
        unread_boxes=unread_boxes or "",
    )


def score_all(
    records: Sequence[Record],
    replies: Mapping[str, str],
    settings: ScoringSettings,
    *,
    judged: Mapping[str, Judged] | None = None,
    finishes: Mapping[str, str] | None = None,
) -> list[ReplyScore]:
    """Score a model's replies in the order of the records; `finishes` are their finish reasons, where known."""
    scores, ends = judged or {}, finishes or {}
    return [
        score_text(
            replies.get(record.id), record, settings, judged=scores.get(record.id), finish=ends.get(record.id, "")
        )
        for record in records
    ]


def as_columns(records: Sequence[Record], scores: Sequence[ReplyScore]) -> ScoredReplies:
    """Return the columns that figures are computed from."""

    def column(name: str) -> np.ndarray:
        return np.array([getattr(score, name) for score in scores], np.float64)

    judged = [score.judged or Judged(math.nan, math.nan) for score in scores]
    return ScoredReplies(
        kinds=np.array([record.kind for record in records]),
        patients=np.array([record.patient for record in records]),
        references=np.array([reference_kind(record) for record in records]),
        judged_reply=np.array([scores_of_judge.reply for scores_of_judge in judged], np.float64),
        judged_reference=np.array([scores_of_judge.reference for scores_of_judge in judged], np.float64),
        **{name: column(name) for name in ("a_score", "v_score", "grounding", "format")},
    )


def reference_kind(record: Record) -> str:
    """Return what a record's boxes show: "findings", "regions" (which hardly vary), "both", or "" without boxes."""
    if not record.references:
        return ""
    stated = record.provenance.get("references")
    if stated in (FINDINGS, REGIONS, BOTH):
        return stated
    return REGIONS if all(_REGION.fullmatch(fold(box.label)) for box in record.references) else FINDINGS


BASELINE = "majority answer + constant box"


@dataclasses.dataclass(frozen=True)
class Results:
    """Figures of every row, the baseline's first; differences and tests are against the first model."""

    settings: ScoringSettings
    num_resamples: int
    seed: int
    num_records: int
    num_patients: int
    num_boxed: int  # patients of the questions whose replies have a V
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]  # by model, kind and outcome
    figures: Mapping[str, Mapping[Key, Interval]]  # by model, with intervals; the baseline's first, where there is one
    stages: Mapping[str, Mapping[Key, Interval]]  # by model whose replies have stages
    num_stages: Mapping[str, Mapping[str, int]]  # by model and stage
    unread: Mapping[str, UnreadParts]  # by model
    differences: Mapping[str, Mapping[Key, Interval]]  # by model, its figures less those of the first model
    tests: Mapping[str, Mapping[str, McNemar]]  # by model, McNemar's test against the first model, by kind
    notes: tuple[str, ...]  # what a reader of the tables must know


def summarise(
    records: Sequence[Record],
    models: Mapping[str, Sequence[ReplyScore]],
    settings: ScoringSettings,
    *,
    baseline: Sequence[ReplyScore] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Results:
    """Compute every figure with its interval by patient; the others are compared with the first model."""
    rows = {**({} if baseline is None else {BASELINE: baseline}), **models}
    replies = {name: as_columns(records, scores) for name, scores in rows.items()}
    how: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed}
    first, mean_kinds = next(iter(models)), find_scored_kinds(*replies.values())
    others = {name: columns for name, columns in replies.items() if name != first}
    differences = {
        name: score_difference(
            first=columns, second=replies[first], open_score=settings.open_score, mean_kinds=mean_kinds, **how
        )
        for name, columns in others.items()
    }
    tests = {name: compare_answers(first=columns, second=replies[first]) for name, columns in others.items()}
    patients = replies[first].patients
    counts = {name: count_replies(records, scores) for name, scores in rows.items()}
    judged = [_describe_judged(name, records, scores) for name, scores in models.items()]
    return Results(
        settings=settings,
        num_resamples=num_resamples,
        seed=seed,
        num_records=len(records),
        num_patients=len(set(patients.tolist())),
        num_boxed=len(set(patients[~np.isnan(replies[first].v_score)].tolist())),
        counts=counts,
        figures=score_models(replies, open_score=settings.open_score, **how),
        stages=_score_stages(models, patients, **how),
        num_stages={
            name: {
                stage: sum(not math.isnan(score.stages[place]) for score in scores)
                for place, stage in enumerate(STAGE_NAMES)
            }
            for name, scores in models.items()
        },
        unread={name: count_unread(scores) for name, scores in models.items()},
        differences=differences,
        tests=tests,
        notes=(
            *notes,
            *_describe_unscored(counts),
            *filter(None, judged),
            *_explain(settings, mean_kinds, replies),
        ),
    )


def _describe_unscored(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[str]:
    return [
        f"{name}: {by_kind[kind]['unscored']} {kind} unscored."
        for name, by_kind in counts.items()
        for kind in KINDS
        if kind in by_kind and by_kind[kind]["unscored"]
    ]


def _describe_judged(name: str, records: Sequence[Record], scores: Sequence[ReplyScore]) -> str:
    """Describe how many open answers a judge's figure rests on; "" if the judge scored all that could be read."""
    opened = [score for record, score in zip(records, scores, strict=True) if record.kind == "open"]
    num_unscored = sum(math.isnan(score.a_score) and MISSING not in score.problems for score in opened)
    num_judged = sum(score.judged is not None for score in opened)
    num_worthless = sum(score.judged is None and score.a_score == 0 for score in opened)
    if not num_unscored:
        return ""
    counted = f" and {num_worthless} that could not be read or are missing, as 0" if num_worthless else ""
    return f"{name}: open A rests on the {num_judged} of {len(opened)} answers that the judge scored{counted}."


def _score_stages(
    models: Mapping[str, Sequence[ReplyScore]], patients: np.ndarray, **how: int
) -> dict[str, dict[Key, Interval]]:
    """Return the quality of each model's stages, if it has any, with the judge's scores ("rated") if there are any."""
    stages = {}
    for name, scores in models.items():
        labels = np.array([score.stages for score in scores], np.float64)
        rated = np.array([score.rated_stages for score in scores], np.float64)

        def compute(weights: Weights, labels: np.ndarray = labels, rated: np.ndarray = rated) -> Figures:
            of_judge = weighted_mean(weights, values=rated, counted=~np.isnan(rated)).T
            keys = [("rated", stage) for stage in STAGE_NAMES]
            return {**stage_figures(weights, labels=labels), **dict(zip(keys, of_judge, strict=True))}

        figures = bootstrap(compute, patients, **how)
        stages[name] = {key: interval for key, interval in figures.items() if not math.isnan(interval.value)}
    return {name: figures for name, figures in stages.items() if figures}


def _explain(settings: ScoringSettings, mean_kinds: Sequence[str], models: Mapping[str, ScoredReplies]) -> list[str]:
    missing = {"wrong": "counts as wrong", "skip": "takes no part", "stop": "is refused"}[settings.missing]
    reading = {
        "strict": "A reply that is not well formed earns nothing.",
        "parts": "The answer and the boxes of a reply that is not well formed count where that part can be read.",
    }[settings.reading]
    references = next(iter(models.values())).references
    num_neither = int((~np.isin(references, (FINDINGS, REGIONS))).sum())
    has_v = any(not np.isnan(columns.v_score).all() for columns in models.values())
    boxes = "V: mean IoU. Passed: replies whose boxes earn the grounding reward. " * has_v
    regions = (
        "V on findings and V on regions: by what the true boxes show. Boxes of regions hardly vary between pictures. "
        f"{num_neither} of {len(references)} records have boxes of both, or none, and are in neither. A record without "
        "boxes has no V."
    )
    return [
        f"A: right answers. Mean A: unweighted over the kinds that every row is scored on "
        f"({', '.join(mean_kinds) or 'none'}). {boxes}Well formed: replies that follow the dialect.",
        f"{reading} A missing reply {missing}. Answers and boxes that cannot be read count as wrong. "
        f"Open questions: {settings.open_score}.",
        regions if has_v else "No reply is asked for boxes: there is no V.",
        "Intervals are 95 %, from resampling patients.",
    ]


def to_json(results: Results) -> dict[str, Any]:
    """Return every figure, shares of 1, for `encode`."""

    def figures(row: Mapping[Key, Interval]) -> dict[str, dict[str, Any]]:
        nested: dict[str, dict[str, Any]] = {}
        for (figure, group), interval in row.items():
            nested.setdefault(figure, {})[group] = as_plain(interval)
        return nested

    models: dict[str, dict[str, Any]] = {}
    for name, row in results.figures.items():
        models[name] = {"counts": results.counts[name], "figures": figures(row)}
        if name in results.stages:
            models[name]["stages"] = figures(results.stages[name])
            models[name]["num_stages"] = dict(results.num_stages[name])
        models[name]["unread"] = dict(results.unread.get(name, {}))
        if name in results.differences:
            models[name]["less_first"] = figures(results.differences[name])
            models[name]["mcnemar"] = dict(results.tests[name])
    return {
        "settings": {
            **dataclasses.asdict(results.settings),
            "least_iou": LEAST_IOU,
            "num_resamples": results.num_resamples,
            "seed": results.seed,
            "level": LEVEL,
        },
        "num_records": results.num_records,
        "num_patients": results.num_patients,
        "models": models,
        "notes": list(results.notes),
    }


def encode(value: Any) -> bytes:
    """Return a value as one line of JSON; null for a number that is not finite."""
    return _ENCODER.encode(value) + b"\n"


_ENCODER = msgspec.json.Encoder(enc_hook=float)  # NumPy's numbers
