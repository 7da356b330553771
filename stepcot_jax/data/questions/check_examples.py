"""Training examples of self-checks: a wrong first attempt and the check that follows it (MEDSAGE).

The paper prints no self-check: markup and wording are ours. A check states facts of the record alone.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.reasoning.replies import write_answer
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
    """A wrong first attempt at a record, and the check of it."""

    wrong: int  # index of the record whose reply is the attempt
    check: str
    shows_check: bool = True  # whether the check is learnt


def is_wrong(attempt: Record, record: Record) -> bool:
    """Return whether the answer of an attempt, the target of another record of the same kind, is wrong."""
    if not record.is_answered_in_words or not attempt.is_answered_in_words:
        return attempt.answer != record.answer
    return not {fold(text) for text in attempt.accepted_texts} & {fold(text) for text in record.accepted_texts}


def draw_check_examples(
    records: Sequence[Record],
    indices: Sequence[int] | Int[np.ndarray, " record"],
    *,
    share: float,
    seed: int,
    dialect: str,
    hides_check: bool = False,
) -> dict[int, CheckExample]:
    """Return examples for about a share of some records, by their indices; a function of the seed and each index."""
    by_topic, by_kind = (
        collections.defaultdict[tuple[str, str], list[int]](list),
        collections.defaultdict[str, list[int]](list),
    )
    for index in map(int, indices):
        by_topic[records[index].kind, records[index].topic].append(index)
        by_kind[records[index].kind].append(index)
    examples = {}
    for index in map(int, indices):
        rng, record = np.random.default_rng((_STREAM, seed, index)), records[index]
        if rng.random() >= share:
            continue
        pools = (by_topic[record.kind, record.topic], by_kind[record.kind])
        wrong = next((other for pool in pools for other in _find_wrong(pool, records, record, rng)), None)
        if wrong is not None:
            shows_check = not hides_check or bool(rng.random() < 0.5)
            text = write_check(record, records[wrong], rng=rng, dialect=dialect)
            examples[index] = CheckExample(wrong, text, shows_check)
    return examples


def _find_wrong(
    pool: Sequence[int], records: Sequence[Record], record: Record, rng: np.random.Generator
) -> Iterator[int]:
    """Yield the records of a pool whose answer is wrong, from a drawn one on."""
    start = int(rng.integers(len(pool)))
    for index in (*pool[start:], *pool[:start]):
        if is_wrong(records[index], record):
            yield index


def write_check(record: Record, wrong: Record, *, rng: np.random.Generator, dialect: str) -> str:
    """Return the text of a check: two sentences or more, each of which the record states."""
    grounding, analysis, knowledge = (
        options[int(rng.integers(len(options)))] for options in (_GROUNDING, _ANALYSIS, _KNOWLEDGE)
    )
    if {box.corners for box in record.references} == {box.corners for box in wrong.references}:
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
    knowledge = knowledge.format(rule=_plain(rule), wrong=_plain(write_answer(wrong))).strip()
    parts = [("Visual grounding", grounding), ("Visual analysis", analysis), ("Knowledge", knowledge)]
    return _plain(
        " ".join(f"{name}: {text}" for name, text in parts[dialect == PLAIN :])
    )  # plain replies have no place


def _list_places(references: Sequence[Box], dialect: str) -> str:
    if dialect not in _DIALECTS_IN_PIXELS:
        return " and ".join(box.label for box in references)
    corners = [", ".join(str(math.floor(edge + 0.5)) for edge in box.corners) for box in references]
    return " and ".join(f"{box.label} ([{edges}])" for box, edges in zip(references, corners, strict=True))


def _plain(text: str) -> str:
    """Return a text on one line, without the marks of a check."""
    return " ".join(re.sub(f"{CHECK_OPENS}|{CHECK_CLOSES}", " ", text).split())
