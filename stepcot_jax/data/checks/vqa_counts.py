"""Counts of reasoning records: kinds, splits, boxes, stages, lengths, and the majority answer of each topic."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

from stepcot_jax.record import KINDS, STAGE_NAMES, Record

LENGTHS = ("question", "thinking", *STAGE_NAMES)
"""The texts of a record whose words are counted."""


class Majority(NamedTuple):
    """The most frequent answer of a topic, by the options' texts for questions with choices."""

    kind: str
    topic: str
    records: int
    answer: str
    number: int

    @property
    def share(self) -> float:
        """Share of the topic's records that have the answer."""
        return self.number / self.records


def count_records(records: Sequence[Record]) -> dict[str, Any]:
    """Return counts of records as plain facts, in a fixed order."""
    kinds = {
        kind: dict(sorted(collections.Counter(each.split for each in records if each.kind == kind).items()))
        for kind in KINDS
    }
    boxes = collections.Counter(len(record.references) for record in records)
    return {
        "patients": len({record.patient for record in records}),
        "pictures": len({record.image for record in records}),
        "boxes": sum(len(record.references) for record in records),
        "with_thinking": sum(bool(record.thinking.strip()) for record in records),
        "with_stages": sum(record.stages is not None for record in records),
        "kinds": {kind: counts for kind, counts in kinds.items() if counts},
        "splits": dict(sorted(collections.Counter(record.split for record in records).items())),
        "boxes_of_records": {str(number): boxes[number] for number in sorted(boxes)},
        "origins": dict(collections.Counter(record.origin for record in records).most_common()),
    }


def count_lengths_of(records: Sequence[Record], name: str) -> list[int]:
    """Return the number of words of a text, one of `LENGTHS`, for each record that has it."""
    texts = (getattr(record.stages if name in STAGE_NAMES else record, name, "") for record in records)
    return [len(text.split()) for text in texts if text.strip()]


def find_majorities(records: Sequence[Record]) -> list[Majority]:
    """Return the most frequent answer of each kind and topic; ties go to the first in alphabetical order."""
    answers: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        answers[record.kind, record.topic][answer_in_words(record)] += 1
    found: list[Majority] = []
    order: tuple[str, ...] = KINDS
    for kind, topic in sorted(answers, key=lambda key: (order.index(key[0]), key[1])):
        counts = answers[kind, topic]
        answer = min(counts, key=lambda each: (-counts[each], each))
        found.append(Majority(kind, topic, counts.total(), answer, counts[answer]))
    return found


def answer_in_words(record: Record) -> str:
    """Return the answer with the texts of chosen options, in alphabetical order, in place of their letters."""
    if not record.options:
        return str(record.answer)
    return " + ".join(sorted(record.options[record.letters.index(letter)] for letter in record.answer))
