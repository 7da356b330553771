"""Counts of records: origins, answers, reasoning, splits; kinds of questions, boxes, lengths, majorities, dialects.

`Statistics` has the counts of the paper's Figure 2 and Table 7; each count ends with the cases not annotated.
"""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from stepcot_jax.box import convert_rounded, pixels
from stepcot_jax.chain import Chain, fold
from stepcot_jax.data.record_table import RecordTable, as_table, find_first
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.answers import read_answer
from stepcot_jax.reasoning.dialects import WRITTEN, read_reply, write_reply
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.record import KINDS, STAGE_NAMES, Record

NOT_ANNOTATED_NAME = "(not annotated)"
NO_ORIGIN_NAME = "(none)"
LENGTH_ENDS = (5, 10, 15, 20, 25)
"""Largest number of words of each range of lengths but the last; the paper does not state those of its Figure 2B."""


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counts of a collection."""

    chain: Chain
    num_cases: int
    num_patients: int
    origins: tuple[str, ...]  # names, the most frequent first
    diagnoses: Int64[np.ndarray, "answer origin"]  # cases of each answer of the last step and each origin
    answers: tuple[Int64[np.ndarray, " answer"], ...]  # for each step, the cases of each answer
    uncertain: Int64[np.ndarray, " step"]  # for each step, the cases whose answer is uncertain
    flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]  # for each step but the last
    rest_flows: tuple[Int64[np.ndarray, "answer next_answer"], ...]
    words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]  # for each step and origin, no empty reasoning
    diagnosis_words: tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]
    splits: Int64[np.ndarray, "answer split"]  # cases of each answer of the last step in each split
    origin_splits: Int64[np.ndarray, "origin split"]  # cases of each origin in each split
    splits_source: str  # where the splits come from, in words

    def answer_names(self, step: int) -> tuple[str, ...]:
        """Return the names of a step's answers, "(not annotated)" last."""
        return (*self.chain.steps[step].options, NOT_ANNOTATED_NAME)


def compute_statistics(cases: Iterable[Record], chain: Chain, splits: Splits, *, splits_source: str) -> Statistics:
    """Count cases (at least one) and their splits; `splits_source` describes where the splits come from."""
    table = as_table(cases)
    labels = table.labels.astype(np.int64)
    sizes = [num_answers + 1 for num_answers in chain.answers_per_step]
    bins = np.where(labels < 0, np.array(sizes) - 1, labels)
    origins, origin_of = _rank_origins(table)
    split_of = np.full(len(table), -1)
    for number, indices in enumerate(splits.by_name().values()):
        split_of[list(indices)] = number
    in_split = split_of >= 0
    answers = tuple(np.bincount(bins[:, step], minlength=size) for step, size in enumerate(sizes))
    rest = bins[bins[:, 0] != np.argmax(answers[0])]
    words = np.array([[len(text.split()) for text in case.reasoning] for case in table], np.int64)
    return Statistics(
        chain=chain,
        num_cases=len(table),
        num_patients=table.count_patients(),
        origins=origins,
        diagnoses=_cross(bins[:, -1], origin_of, sizes[-1], len(origins)),
        answers=answers,
        uncertain=table.count_uncertain(np.ones(len(table), bool)),
        flows=_count_flows(bins, sizes),
        rest_flows=_count_flows(rest, sizes),
        words=_group_lengths(words, origin_of, len(origins)),
        diagnosis_words=_group_lengths(words, bins[:, -1], sizes[-1]),
        origin_splits=_cross(origin_of[in_split], split_of[in_split], len(origins), len(SPLIT_NAMES)),
        splits=_cross(bins[in_split, -1], split_of[in_split], sizes[-1], len(SPLIT_NAMES)),
        splits_source=splits_source,
    )


def _rank_origins(table: RecordTable) -> tuple[tuple[str, ...], Int64[np.ndarray, " case"]]:
    """Return the names of the origins, the most frequent first, and the number of each case's origin."""
    names = [case.origin or NO_ORIGIN_NAME for case in table]  # a file may write "(none)" itself
    counts = collections.Counter(names)
    order = sorted(counts, key=lambda name: (-counts[name], name))
    rank = {name: number for number, name in enumerate(order)}
    return tuple(order), np.array([rank[name] for name in names])


def _group_lengths(
    words: Int64[np.ndarray, "case step"], group_of: Int64[np.ndarray, " case"], num_groups: int
) -> tuple[tuple[Int64[np.ndarray, " reasoning"], ...], ...]:
    """Return by step and group the numbers of words of the reasonings that are not empty."""
    return tuple(
        tuple(lengths[(group_of == group) & (lengths > 0)] for group in range(num_groups)) for lengths in words.T
    )


def _cross(
    rows: Int64[np.ndarray, " case"], columns: Int64[np.ndarray, " case"], num_rows: int, num_columns: int
) -> Int64[np.ndarray, "row column"]:
    """Count the cases with each pair of values."""
    return np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns).reshape(num_rows, num_columns)


def _count_flows(
    bins: Int64[np.ndarray, "case step"], sizes: Sequence[int]
) -> tuple[Int64[np.ndarray, "answer next_answer"], ...]:
    steps = itertools.pairwise(zip(bins.T, sizes, strict=True))
    return tuple(_cross(given, then, size, next_size) for (given, size), (then, next_size) in steps)


def count_lengths(words: Int64[np.ndarray, " reasoning"]) -> Int64[np.ndarray, " range"]:
    """Count reasonings by range of their numbers of words."""
    return np.bincount(np.searchsorted(LENGTH_ENDS, words), minlength=len(LENGTH_ENDS) + 1)


def list_ranges() -> list[str]:
    """Return the names of the ranges of numbers of words."""
    starts = [1, *(end + 1 for end in LENGTH_ENDS[:-1])]
    return [*(f"{start}-{end}" for start, end in zip(starts, LENGTH_ENDS, strict=True)), f"over {LENGTH_ENDS[-1]}"]


LENGTHS = ("question", "thinking", *STAGE_NAMES)  # the texts of a record whose words are counted


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
        kind: dict(sorted(collections.Counter(record.split for record in records if record.kind == kind).items()))
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


def spread_lengths(lengths: Sequence[int]) -> dict[str, float]:
    """Return the number of texts, the percentiles of their lengths, and the longest."""
    if not lengths:
        return {"texts": 0}
    names, spread = ("percentile_5", "median", "percentile_95"), np.percentile(lengths, (5, 50, 95)).tolist()
    return {"texts": len(lengths), **dict(zip(names, spread, strict=True)), "longest": max(lengths)}


def find_majorities(records: Sequence[Record]) -> list[Majority]:
    """Return the most frequent answer of each kind and topic; ties go to the first in alphabetical order."""
    answers: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        answers[record.kind, record.topic][answer_in_words(record)] += 1
    majorities: list[Majority] = []
    order: tuple[str, ...] = KINDS
    for kind, topic in sorted(answers, key=lambda key: (order.index(key[0]), key[1])):
        counts = answers[kind, topic]
        answer = min(counts, key=lambda text: (-counts[text], text))
        majorities.append(Majority(kind, topic, counts.total(), answer, counts[answer]))
    return majorities


def answer_in_words(record: Record) -> str:
    """Return the answer in words: for a choice the texts of the chosen options, in alphabetical order."""
    if not record.options:
        return str(record.answer)
    return " + ".join(sorted(record.options[record.letters.index(letter)] for letter in record.answer))


def find_contradictions(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return the ids of the first records that ask one question with the same choices of a picture and differ."""
    answers: dict[Any, dict[str, set[str]]] = collections.defaultdict(dict)
    for record in records:
        in_words = record.accepted_texts if record.is_answered_in_words else (answer_in_words(record),)
        texts = set(map(fold, in_words))
        asked = answers[record.image, record.kind, fold(record.question), frozenset(map(fold, record.options))]
        if not any(texts & known for known in asked.values()):
            asked[record.id] = texts
    return [(first, second) for first, second, *_ in (list(asked) for asked in answers.values() if len(asked) > 1)]


_EXAMPLES_OF_DIALECT = 5
_CONTROL_TOKEN = re.compile(
    r"<[|\uff5c][^|\uff5c<>\s]{1,40}[|\uff5c]>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_(?:turn|image)>|</?(?:"
    r"image|img|video|audio|im_\w{1,10}|think(?:ing)?|response|answer|s|bos|eos|pad|unk|mask|box|ref|quad|tool_\w{1,10})>",
    re.IGNORECASE,
)


def count_formats(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Write records in every dialect and read them back; return counts, refusals and the first differences."""
    formats: dict[str, dict[str, Any]] = {
        dialect: {"dialect": dialect, "written": 0, "read_back": 0, "refused": collections.Counter(), "differ": []}
        for dialect in WRITTEN
    }
    for record in records:
        for dialect, outcome in formats.items():
            try:
                text = write_reply(record, dialect)
            except BadInput as error:
                outcome["refused"][str(error)[:200]] += 1
                continue
            outcome["written"] += 1
            if problem := find_difference(record, text, dialect):
                outcome["differ"] = [*outcome["differ"], {"id": record.id, "problem": problem}][:_EXAMPLES_OF_DIALECT]
            else:
                outcome["read_back"] += 1
    for outcome in formats.values():
        outcome["refused"] = dict(outcome["refused"].most_common(_EXAMPLES_OF_DIALECT))
    return list(formats.values())


def find_difference(record: Record, text: str, dialect: str) -> str:
    """Return how a written reply differs from its record when it is read; "" if it does not."""
    reply = read_reply(text, dialect, with_thinking=bool(record.thinking.strip()))
    if reply.problems:
        return f"form: {reply.problems[0]}"
    answer = read_answer(record.answer, record) if isinstance(record.answer, str) else record.answer
    if reply.answer is None or read_answer(reply.answer, record) != answer:
        return f"answer: {reply.answer!r:.80}"
    is_bare = dialect == "medclm" and not record.thinking.strip()  # MedCLM's hard stage
    if is_bare or dialect == PLAIN or not record.references:
        return "boxes: some, although none is written" if reply.references else ""
    source = pixels(record.image_size)
    boxes = [reference.corners for reference in record.references]
    expected = convert_rounded(boxes, source=source, target=reply.space or source)
    actual = np.array([region.corners for region in reply.references or ()]).reshape(-1, 4)
    if actual.shape != expected.shape or not np.allclose(actual, expected, rtol=0, atol=1e-9):
        return f"boxes: {actual.tolist()!r:.80}"
    return ""


def count_control_tokens(records: Iterable[Record]) -> dict[str, int]:
    """Return the number of records whose question or options have each control token, the most frequent first."""
    texts = ("\n".join((record.question, *record.options)) for record in records)
    counts = collections.Counter(token for text in texts for token in set(_CONTROL_TOKEN.findall(text)))
    return dict(counts.most_common(_EXAMPLES_OF_DIALECT))


@dataclasses.dataclass(frozen=True)
class FormPart:
    """Counts of a part of a tree of questions; a patient counts once in a split, with the first image there."""

    name: str  # "all", or a part of the form
    questions: int
    several_right: int  # questions that may have several right answers
    asked: dict[str, int]  # questions that patients were asked, by split
    only_no: dict[str, int]  # patients whose questions of this part were all answered with no, by split
    patients: dict[str, int]  # by split


def count_form(table: RecordTable, chain: Chain, members: Mapping[str, Bool[np.ndarray, " case"]]) -> list[FormPart]:
    """Count the questions and answers of a tree by part; `members` are the cases of each split."""
    labels = table.labels
    of_split = {}
    for name, chosen in members.items():
        rows = np.flatnonzero(chosen)
        first_row = find_first(table.patient_ids[row] for row in rows)
        of_split[name] = labels[rows[first_row == np.arange(len(rows))]]
    first = np.array([question[0] for question in chain.questions])
    is_no = np.array([-1 if step.choice or step.negative is None else step.negative for step in chain.steps])
    parts = [step.part for step in chain.steps]
    rows_of_parts = []
    for part in ("all", *sorted(set(parts))):
        within = np.array([part in ("all", name) for name in parts])
        starts = first[within[first]]
        denied = {name: int(((of == is_no) | (of < 0))[:, within].all(axis=1).sum()) for name, of in of_split.items()}
        rows_of_parts.append(
            FormPart(
                name=part,
                questions=len(starts),
                several_right=sum(len(question) > 1 and bool(within[question[0]]) for question in chain.questions),
                asked={name: int((of[:, starts] >= 0).sum()) for name, of in of_split.items()},
                only_no=denied,
                patients={name: len(of) for name, of in of_split.items()},
            )
        )
    return rows_of_parts
