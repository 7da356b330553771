"""Audits of a model: how its answers change when the picture, the thinking or the wording of a question is another.

A variant is a record whose provenance names the question that it is made of (`data.questions.variants`). Questions are
reworded here: a round negates closed questions and reorders the options of single-choice ones.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from stepcot_jax.box import mean_iou
from stepcot_jax.evaluation.replies import A_SCORE, ReplyScore, as_columns, score_models
from stepcot_jax.evaluation.statistics import bootstrap_means
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reasoning.thinking import in_words
from stepcot_jax.record import STAGE_NAMES, Record, Stages

LEAST_IOU = 0.5
"""Boxes have moved where their mean IoU with those of the own picture is lower."""

CASES, CHANGED, UNREAD, MOVED, A = "cases", "answers that change", "unread", "boxes that move", "A"
CLAIMED = "true findings claimed"
FOLLOWS, KEEPS, ELSE, AGREES = "follows the donor", "keeps", "says something else", "donor agrees anyway"

Row = dict[str, int | Interval]  # the number of cases, and shares with intervals by patient
Scored = Sequence[tuple[Record, ReplyScore]]


def made_of(record: Record) -> str:
    """Return the id of the question that a variant is made of."""
    return record.provenance.get("audit_of", record.id)


def audit_pictures(own: Mapping[str, ReplyScore], scored: Scored, **how: Any) -> Row:
    """Return how answers and boxes differ from those of the own picture, of which `own` has the scores by id.

    Questions whose own answer cannot be read take no part in shares of change.
    """
    rows = []
    for record, score in scored:
        first = own[made_of(record)]
        said, before = in_words(score.answer, record), in_words(first.answer, record)
        changes, unread = (bool(said) and said != before, not said) if before else (math.nan, math.nan)
        rows.append({CHANGED: changes, UNREAD: unread, MOVED: _moves(first, score)})
    replies = as_columns([record for record, _ in scored], [score for _, score in scored])
    return {**_take_means(rows, scored, **how), A: score_models({"": replies}, **how)[""][A_SCORE, "mean"]}


def audit_claims(own: Mapping[str, ReplyScore], scored: Scored, **how: Any) -> Row:
    """Return the row of `audit_pictures` of questions answered rightly, and how many were; without any, nothing."""
    rows = [{CLAIMED: float(own[made_of(record)].a_score == 1)} for record, _ in scored]
    claimed = [pair for pair, row in zip(scored, rows, strict=True) if row[CLAIMED]]
    shares = {CLAIMED: _take_means(rows, scored, **how)[CLAIMED]}
    return shares | audit_pictures(own, claimed, **how) if claimed else {}


def audit_abnormal(own: Mapping[str, ReplyScore], scored: Scored, becomes_normal: Collection[str], **how: Any) -> Row:
    """Return the row of `audit_claims` of a reader who says of each finding only whether anything is abnormal.

    It claims all that is true, and changes where the chest becomes normal: in the questions with these ids.
    """
    claimed = [record for record, _ in scored if own[made_of(record)].a_score == 1]
    says_no = [made_of(record) in becomes_normal for record in claimed]
    rows = [
        {CLAIMED: 1.0, CHANGED: float(no), UNREAD: 0.0, A: float(no == (record.answer == "No"))}
        for record, no in zip(claimed, says_no, strict=True)
    ]
    return _take_means(rows, [(record, own[made_of(record)]) for record in claimed], **how)


def _moves(first: ReplyScore, score: ReplyScore) -> float:
    before, after = ([box.corners for box in each.boxes] for each in (first, score))
    if not before or mean_iou(before, before) < LEAST_IOU:  # none, or without an area
        return math.nan
    return float(mean_iou(after, before) < LEAST_IOU)


def audit_thinking(own: Mapping[str, ReplyScore], scored: Scored, questions: Mapping[str, Record], **how: Any) -> Row:
    """Return how often an answer after another thinking follows the donor, keeps, is something else, or is unread.

    Args:
      own: scores of the replies to the own picture, by id.
      questions: records by id, donors among them.
    """
    rows = []
    for record, score in scored:
        said, kept = in_words(score.answer, record), in_words(own[made_of(record)].answer, record)
        donor = record.provenance.get("audit_donor", "")
        follows = said == in_words(own[donor].answer, questions[donor]) if donor else math.nan
        is_else = bool(said) and follows != 1 and said != kept
        agrees = float(record.provenance.get("audit_agree", "nan"))
        rows.append({FOLLOWS: follows, KEEPS: said == kept, ELSE: is_else, UNREAD: not said, AGREES: agrees})
    return _take_means(rows, scored, **how)


def _take_means(rows: Sequence[Mapping[str, float]], scored: Scored, **how: Any) -> Row:
    """Return the number of records and the mean of each share over those that count in it; NaN does not."""
    kept = [name for name in rows[0] if not all(math.isnan(row[name]) for row in rows)]
    columns = {name: [row[name] for row in rows] for name in kept}
    patients = np.array([record.patient for record, _ in scored])
    return {CASES: len(scored), **bootstrap_means(columns, patients, **how)}


# Perturbed questions, and how much answers vary under them (GEMeX-RMCoT, Section 5.3 and Table 5).
#
# Closed questions are negated, single-choice questions get their options in another order. A perturbed record depends
# on (seed, round, record id) alone, not on other records or on NumPy's generators.


NegatedAnswer = Literal["flip", "keep"]
PerturbationStd = Literal["population", "sample", "from_original"]

PERTURBED_KINDS = ("closed", "single")


def is_perturbed(record: Record) -> bool:
    """Return whether rounds reword a question: single choice, or closed with yes or no."""
    return record.kind in PERTURBED_KINDS and not record.is_answered_in_words


_IS = re.compile(r"(\s*is)(?=\s)", re.IGNORECASE)
_ABNORMAL = re.compile(r"\b(?:(an?)(\s+))?(a)bn(ormal)\b", re.IGNORECASE)
_ONE = r"\(?[A-Z]\)?(?![\w'])"
# "options A, (B) and C"; "the answer is C"; "(C)". "C: " with the option's own text is added for each record.
_NAMED = rf"\b(?i:(?:option|choice|answer)s?(?: is| are)?:? ){_ONE}(?:(?:, | and | or |, and |, or ){_ONE})*|\([A-Z]\)"
_ALONE = re.compile(r"(?<![\w'])[A-Z](?![\w'])")


def perturb(record: Record, *, seed: int, round_number: int, negated_answer: NegatedAnswer = "flip") -> Record:
    """Return the record of one round, of the same id; those that are not `is_perturbed` stay as they are."""
    draw = f"{seed}/{round_number}/{record.id}"
    if record.kind == "single":
        order = sorted(range(len(record.options)), key=lambda index: _hash(f"{draw}/option {index}"))
        changed = reorder(record, order)
    elif is_perturbed(record) and _uniform(f"{draw}/change") < 0.5:
        changed = negate(record, prefer_is=_uniform(f"{draw}/mode") < 0.5, negated_answer=negated_answer)
    else:
        return record
    if changed is record:
        return record
    made = {"perturbation_seed": str(seed), "perturbation_round": str(round_number)}
    return msgspec.structs.replace(changed, provenance={**changed.provenance, **made})


def perturb_records(
    records: Iterable[Record], *, seed: int, round_number: int, negated_answer: NegatedAnswer = "flip"
) -> list[Record]:
    """Return the records of one round that are `is_perturbed`, in their order."""
    return [
        perturb(record, seed=seed, round_number=round_number, negated_answer=negated_answer)
        for record in records
        if is_perturbed(record)
    ]


def negate(record: Record, *, prefer_is: bool, negated_answer: NegatedAnswer = "flip") -> Record:
    """Return a closed question with "isn't" or "normal"; reasoning that led to the other answer is left out."""
    if negated_answer not in get_args(NegatedAnswer):
        raise ValueError(f"negated_answer must be one of {', '.join(get_args(NegatedAnswer))}; got {negated_answer!r}")
    leading, abnormal = _IS.match(record.question), _ABNORMAL.search(record.question)
    if leading and (prefer_is or not abnormal):
        how, question = "isn't", f"{leading[1]}n't{record.question[leading.end() :]}"
    elif abnormal:
        # "an abnormal" becomes "a normal", "Abnormal" becomes "Normal".
        article, space, capital = (abnormal[1] or "")[:1], abnormal[2] or "", abnormal[3].isupper()
        before, after = record.question[: abnormal.start()], record.question[abnormal.end() :]
        how, question = "normal", f"{before}{article}{space}{'N' if capital else 'n'}{abnormal[4]}{after}"
    else:
        return record
    provenance = {**record.provenance, "perturbation": how}
    if how == "isn't" and negated_answer == "keep":
        return msgspec.structs.replace(record, question=question, provenance=provenance)
    answer = "No" if record.answer == "Yes" else "Yes"
    return msgspec.structs.replace(
        record, question=question, answer=answer, thinking="", stages=None, provenance=provenance
    )


def reorder(record: Record, order: Sequence[int]) -> Record:
    """Return a choice question with its options in another order, and every letter that names an option moved."""
    if sorted(order) != list(range(len(record.options))):
        raise ValueError(f"order must be an order of {len(record.options)} options; got {list(order)}")
    if list(order) == sorted(order):
        return record
    moved = {letter: record.letters[list(order).index(old)] for old, letter in enumerate(record.letters)}

    lettered = [rf"\b{letter}(?=[.:)]\s+{re.escape(text)})" for letter, text in zip(moved, record.options, strict=True)]
    named = re.compile("|".join([_NAMED, *lettered]))

    def rename(text: str) -> str:
        return named.sub(lambda match: _ALONE.sub(lambda letter: moved.get(letter[0], letter[0]), match[0]), text)

    stages = record.stages and Stages(**{name: rename(getattr(record.stages, name)) for name in STAGE_NAMES})
    return msgspec.structs.replace(
        record,
        options=tuple(record.options[old] for old in order),
        answer=moved[record.answer]
        if isinstance(record.answer, str)
        else tuple(sorted(moved[letter] for letter in record.answer)),
        question=rename(record.question),
        thinking=rename(record.thinking),
        preamble=rename(record.preamble),
        stages=stages,
        provenance={**record.provenance, "perturbation": "options"},
    )


def spread(rounds: Sequence[float], *, original: float, std: PerturbationStd = "population") -> float:
    """Return the standard deviation of a figure over the rounds; "population" is the one that Table 5 prints."""
    if std not in get_args(PerturbationStd) or not rounds:
        raise ValueError(f"std must be one of {', '.join(get_args(PerturbationStd))}, with a round; got {std!r}")
    centre = original if std == "from_original" else math.fsum(rounds) / len(rounds)
    divisor = len(rounds) - (std == "sample")
    squares = math.fsum((figure - centre) ** 2 for figure in rounds)
    return math.sqrt(squares / divisor) if divisor else math.nan


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _uniform(text: str) -> float:
    return int.from_bytes(_hash(text)[:6]) / 2**48
