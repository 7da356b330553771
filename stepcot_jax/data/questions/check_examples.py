"""Wrong first attempts with the check that follows: what a policy is shown before it checks itself (MEDSAGE).

The paper prints neither markup nor wording of a self-check; both are ours. A wrong attempt is the reply to another
training question of the same topic with another answer. The check goes along visual grounding, visual analysis and
knowledge, as the paper's does, and says what the record states: its boxes, what is seen, and the rule that decides.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.record import Record

CHECK_OPENS, CHECK_CLOSES = "<CHECK>", "</CHECK>"

_STREAM = 6  # of random numbers, apart from those of views and stages
_DIALECTS_IN_PIXELS = ("gemex", "gemex_plain", "lvkc_released")
_GROUNDING = (
    "the boxes do not fit the picture: look at {places}.",
    "this is not the place to look at. The question concerns {places}.",
    "the named place is wrong, {places} must be named.",
)
_ANALYSIS = (
    "the description does not match the picture. {seen}",
    "I described what is not there. {seen}",
    "{seen} My description said something else.",
)
_KNOWLEDGE = (
    "{rule} The answer {wrong} does not agree with this.",
    "the answer {wrong} does not follow. {rule}",
    "{rule} So {wrong} is not the answer.",
)


@dataclasses.dataclass(frozen=True)
class CheckExample:
    """A wrong first attempt at a record, and the check of it.

    Attributes:
      wrong: place of the record whose reply is the attempt.
      shows_check: whether the check is to be learnt; else only the second attempt, which does not see the check.
    """

    wrong: int
    check: str
    shows_check: bool = True


def is_wrong(attempt: Record, record: Record) -> bool:
    """Return whether the answer of an attempt, the target of another record of the same kind, is wrong.

    >>> yes = Record(id="1", image="1.png", image_size=(8, 8), patient="1", kind="closed",
    ...     question="Is there a mass?", answer="Yes")
    >>> is_wrong(yes, yes)
    False
    """
    if record.kind != "open":
        return attempt.answer != record.answer
    return not {fold(text) for text in attempt.accepted_texts} & {fold(text) for text in record.accepted_texts}


def draw_check_examples(
    records: Sequence[Record],
    places: Sequence[int] | Int[np.ndarray, " place"],
    *,
    share: float,
    seed: int,
    dialect: str,
    hides_check: bool = False,
) -> dict[int, CheckExample]:
    """Return examples for about a share of some records, by their places; a function of the seed and each place.

    A record without another one of its kind and topic whose answer is wrong takes one of its kind; without that it has
    no example.

    Args:
      hides_check: whether the second attempt does not see the check: half of the examples then show each.
    """
    by_topic, by_kind = (
        collections.defaultdict[tuple[str, str], list[int]](list),
        collections.defaultdict[str, list[int]](list),
    )
    for place in map(int, places):
        by_topic[records[place].kind, records[place].topic].append(place)
        by_kind[records[place].kind].append(place)
    found = {}
    for place in map(int, places):
        rng, record = np.random.default_rng((_STREAM, seed, place)), records[place]
        if rng.random() >= share:
            continue
        candidates = (by_topic[record.kind, record.topic], by_kind[record.kind])
        wrong = next((other for each in candidates for other in _wrong_ones(each, records, record, rng)), None)
        if wrong is not None:
            shows_check = not hides_check or bool(rng.random() < 0.5)
            text = write_check(record, records[wrong], rng=rng, dialect=dialect)
            found[place] = CheckExample(wrong, text, shows_check)
    return found


def _wrong_ones(
    candidates: Sequence[int], records: Sequence[Record], record: Record, rng: np.random.Generator
) -> Sequence[int]:
    """Return the first wrong candidate after a drawn one, as a list of at most one."""
    start = int(rng.integers(len(candidates)))
    ordered = (candidates[(start + place) % len(candidates)] for place in range(len(candidates)))
    return [
        other
        for other in (next((each for each in ordered if is_wrong(records[each], record)), None),)
        if other is not None
    ]


def write_check(record: Record, wrong: Record, *, rng: np.random.Generator, dialect: str) -> str:
    """Return the text of a check: three sentences or more, each of which the record states."""
    grounding, analysis, knowledge = (
        options[int(rng.integers(len(options)))] for options in (_GROUNDING, _ANALYSIS, _KNOWLEDGE)
    )
    if {each.corners for each in record.references} == {each.corners for each in wrong.references}:
        grounding = "the place is right."
    elif not record.references:
        grounding = "no place is to be named."
    else:
        grounding = grounding.format(places=_list_places(record.references, dialect))
    seen, rule = ("", "") if record.stages is None else (record.stages.visual, record.stages.knowledge)
    if not seen or (wrong.stages is not None and wrong.stages.visual == seen):
        analysis = "what is seen does not decide for this answer." if not seen else "the description holds."
    else:
        analysis = analysis.format(seen=_plain(seen))
    answer = wrong.answer if isinstance(wrong.answer, str) else ", ".join(wrong.answer)
    knowledge = knowledge.format(rule=_plain(rule), wrong=_plain(answer)).strip()
    parts = (("Visual grounding", grounding), ("Visual analysis", analysis), ("Knowledge", knowledge))
    return _plain(" ".join(f"{name}: {text}" for name, text in parts))


def _list_places(references: Sequence[Box], dialect: str) -> str:
    if dialect not in _DIALECTS_IN_PIXELS:
        return " and ".join(each.label for each in references)
    boxes = [", ".join(str(math.floor(edge + 0.5)) for edge in each.corners) for each in references]
    return " and ".join(f"{each.label} ([{box}])" for each, box in zip(references, boxes, strict=True))


def _plain(text: str) -> str:
    """Return a text on one line, without the marks of a check."""
    return " ".join(re.sub(f"{CHECK_OPENS}|{CHECK_CLOSES}", " ", text).split())
