"""The answer reward (semantics reward of GEMeX-RMCoT, Section 4.2.2; accuracy of MEDSAGE).

And what a record asks of a reply: thinking and boxes where it has some; and why a part of a reply cannot be read.
"""

import dataclasses
import math
import re

from stepcot_jax.chain import fold
from stepcot_jax.reasoning.answers import open_text
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.reasoning.endings import Unsaid, declines
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.reasoning.replies import Judged, Reply, token_f1
from stepcot_jax.record import Record
from stepcot_jax.rewards.options import ChoiceReading, IllFormed, MultiChoice, OpenAnswer

JUDGE_MARGIN = 2.0
"""A judged reply is right if its score is less than this far from the reference's."""

LEAST_TOKEN_F1 = 0.5

_HEDGED = re.compile(
    r"\b(?:actually|although|but|can(?:no|')t|correction|could|either|equivocal|however|indeterminate|instead|likely|"
    r"may|maybe|might|mistaken?|not (?:sure|certain|clear)|perhaps|possibl[ey]|probabl[ey]|rather|retract|scratch|"
    r"seems?|sorry|suspect(?:ed)?|uncertain|unclear|unlikely|unsure|wait)\b|\?"
)

_WITHOUT_THINKING = ("gemex", "medclm")  # dialects with a reply that has no thinking
_OF_BOXES = re.compile(r"loc|box|number", re.IGNORECASE)
_UNNAMED = {"closed": "neither yes nor no", "open": "the answer is empty"}


def suit(reply: Reply, record: Record | None) -> Reply:
    """Return the reply as a record without thinking (None: any record) asks for it: well formed without thinking."""
    needs_thinking = record is not None and record.thinking.strip()
    is_unsaid = any(isinstance(problem, Unsaid) for problem in reply.problems)  # refused, or cut
    if needs_thinking or is_unsaid or not reply.problems or reply.dialect not in _WITHOUT_THINKING:
        return reply
    bare = read_reply(reply.text, reply.dialect, with_thinking=False)
    return dataclasses.replace(bare, space=reply.space) if bare.is_well_formed else reply


def why_unread(reply: Reply, record: Record, *, with_thinking: bool = True) -> tuple[str, str | None]:
    """Return why the answer cannot be read and why no box can, "" where one can; None where no box is asked for.

    A record without boxes asks for none, nor do dialect "plain" and MedCLM's answer alone where record or prompt have
    no thinking.
    """
    answer = ""
    if interpret_answer(reply, record) is None:
        kind = "open" if record.is_answered_in_words else record.kind
        unnamed = _UNNAMED.get(kind, "not one reading as options")
        unnamed = Unsaid.REFUSED if declines(reply.answer or "") else unnamed
        answer = unnamed if reply.answer is not None else next(iter(reply.problems), "no answer is found")
    is_bare = reply.dialect == "medclm" and not (with_thinking and record.thinking.strip())
    if (
        not record.references
        or reply.dialect == PLAIN
        or (is_bare and not reply.references and "Reasoning:" not in reply.text)
    ):
        return answer, None
    if reply.references is not None:
        return answer, "" if reply.references else "no box is written"
    of_boxes = filter(_OF_BOXES.search, reply.problems)
    return answer, next(of_boxes, next(iter(reply.problems), "no box in a known form"))


def answer_reward(
    reply: Reply,
    record: Record,
    *,
    multi_choice: MultiChoice = "exact",
    open_answer: OpenAnswer = "exact",
    choice_reading: ChoiceReading = "plain",
    ill_formed: IllFormed = "nothing",
    judged: Judged | None = None,
) -> float:
    """Return 1 for a right answer and 0 for a wrong one; NaN for an open answer without usable scores of its judge.

    Args:
      reply: the reply.
      record: its question and answer.
      multi_choice: "exact" for equal sets of letters, "jaccard" for their intersection over union.
      open_answer: "judge": right if the scores of `judged` are less than 2 apart; "exact": the folded text of the
        answer or of a synonym; "equal": of the answer alone; "token_f1": token F1 of at least 0.5 with one of them. A
        closed answer in words, such as "Left", always goes by "exact".
      choice_reading: "strict" also refuses closed and choice answers that are hedged or retracted.
      ill_formed: reward of a reply that violates its dialect's grammar: "nothing", or that of its readable "parts".
      judged: scores of this reply.
    """
    reply = suit(reply, record)
    if reply.answer is None or (ill_formed == "nothing" and not reply.counts):
        return 0.0
    if record.is_answered_in_words:
        how: OpenAnswer = open_answer if record.kind == "open" else "exact"
        return _open_reward(reply.answer, record, how, judged)
    if choice_reading == "strict" and is_hedged(reply.answer, record):
        return 0.0
    answer = interpret_answer(reply, record)
    if record.kind == "multi" and multi_choice == "jaccard":
        chosen, right = set(answer or ()), set(record.answer)
        return len(chosen & right) / len(chosen | right)
    return float(answer == record.answer)


def _open_reward(answer: str, record: Record, open_answer: OpenAnswer, judged: Judged | None) -> float:
    if open_answer == "judge":
        if judged is None or not (1 <= judged.reference <= 10 and 1 <= judged.reply <= 10):
            return math.nan
        return float(abs(round(judged.reply - judged.reference, 9)) < JUDGE_MARGIN)  # 4.1 - 2.1 is 2, not less
    accepted = record.accepted_texts[:1] if open_answer == "equal" else record.accepted_texts
    if open_answer == "token_f1":
        return float(max(token_f1(open_text(answer), text) for text in accepted) >= LEAST_TOKEN_F1)
    texts = {fold(form) for text in accepted for form in (text, open_text(text))}
    return float(fold(answer) in texts or fold(open_text(answer)) in texts)


def is_hedged(answer: str, record: Record) -> bool:
    """Return whether a closed or choice answer is hedged or retracted, disregarding the words of its options.

    Our reading of MEDSAGE's "strict readers that refuse hedged or retracted replies"; the list of words is ours.
    """
    text = fold(answer)
    for option in sorted(map(fold, record.options), key=len, reverse=True):
        text = text.replace(option, " ") if len(option) > 1 else text
    return _HEDGED.search(text) is not None


def format_reward(reply: Reply, record: Record | None = None) -> float:
    """Return 1 if the reply follows its dialect's grammar, else 0 (MEDSAGE, Table 4; none in GEMeX-RMCoT).

    A reply to a record without thinking needs none.
    """
    return float((reply if record is None else suit(reply, record)).is_well_formed)
