"""The baseline row of every result: the majority answer and constant boxes, fitted and scored.

The baseline has neither picture nor true answer: only the kind and topic of a question and its options' texts.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.evaluation.replies import BASELINE, ReplyScore, ScoringSettings, score_reply
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record, Stages

_THINKING = "The usual answer to this question, with the usual boxes."
_STAGES = Stages("The usual place.", "The picture is not looked at.", "No rule is applied.", "The usual answer.")
_WORDS = "closed, in words"
Topic = tuple[str, str]  # kind, `_WORDS` for closed answers in words, and topic; "" stands for all of a kind


@dataclasses.dataclass(frozen=True)
class Baseline:
    """Majority answers and constant boxes of training records; `fit_baseline` makes one."""

    answers: Mapping[Topic, str]  # most frequent answer of the closed and open questions of each topic
    options: Mapping[Topic, Mapping[str, float]]  # share of times that an offered option was right, by folded text
    boxes: Mapping[Topic, tuple[Box, ...]]

    def answer(self, record: Record) -> Record:
        """Return the record with the baseline's answer and references, in a form that every dialect can write."""
        kind = kind_of(record)
        topic = (kind, record.topic)
        if (kind, "") not in self.boxes:
            raise BadInput(f"baseline: no training record of kind {record.kind!r} (record {record.id[:80]!r})")
        answer: str | tuple[str, ...]
        if record.kind in ("single", "multi"):
            shares = self.options.get(topic) or self.options[record.kind, ""]
            offered = [shares.get(fold(choice), 0.0) for choice in record.options]
            if not any(offered):  # texts that were never right: the most frequent letter
                offered = [self.options[record.kind, ""].get(text, 0.0) for text in _name_letters(record)]
            best = max(range(len(offered)), key=lambda index: offered[index])
            answer = record.letters[best]
            if record.kind == "multi":
                chosen = [index for index, share in enumerate(offered) if share > 0.5 or index == best]
                answer = tuple(record.letters[index] for index in chosen)
        else:
            answer = self.answers.get(topic) or self.answers[kind, ""]
        width, height = record.image_size
        references = tuple(
            Box(unit.label, (x1 * width, y1 * height, min(x2, 1) * width, min(y2, 1) * height))
            for unit in self.boxes.get(topic, self.boxes[kind, ""]) * (width > 0)  # 0: the size is unknown
            for x1, y1, x2, y2 in [unit.corners]
        )
        return msgspec.structs.replace(
            record, answer=answer, synonyms=(), references=references, thinking=_THINKING, preamble="", stages=_STAGES
        )


def _name_letters(record: Record) -> tuple[str, ...]:
    """Return a folded name for the letter of each option, by which it is counted beside its text."""
    return tuple(f"option {letter.lower()}" for letter in record.letters)


def kind_of(record: Record) -> str:
    """Return the kind of a question, with closed ones that are answered in words apart from yes and no."""
    return _WORDS if record.kind == "closed" and record.is_answered_in_words else record.kind


def fit_baseline(records: Iterable[Record]) -> Baseline:
    """Return the baseline of training records."""
    groups: dict[Topic, list[Record]] = collections.defaultdict(list)
    for record in records:
        for topic in dict.fromkeys(((kind_of(record), record.topic), (kind_of(record), ""))):
            groups[topic].append(record)
    if not groups:
        raise BadInput("baseline: no training records; at least one is required")
    chosen = {topic: _most_common([_answer_text(record) for record in group]) for topic, group in groups.items()}
    return Baseline(
        answers={topic: answer for topic, answer in chosen.items() if topic[0] not in ("single", "multi")},
        options={topic: _count_options(group) for topic, group in groups.items() if topic[0] in ("single", "multi")},
        boxes={topic: _median_boxes(group) for topic, group in groups.items()},
    )


def _answer_text(record: Record) -> str:
    return record.answer if isinstance(record.answer, str) else ", ".join(record.answer)


def _most_common(values: Sequence[str]) -> str:
    counts = collections.Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _count_options(records: Sequence[Record]) -> dict[str, float]:
    offered, right = collections.Counter[str](), collections.Counter[str]()
    for record in records:
        for letter, choice, name in zip(record.letters, record.options, _name_letters(record), strict=True):
            offered.update((fold(choice), name))
            right.update((fold(choice), name) if letter in record.answer else ())
    return {text: right[text] / number for text, number in offered.items()}


def _median_boxes(records: Sequence[Record]) -> tuple[Box, ...]:
    number = int(_most_common([f"{len(record.references):09}" for record in records]))
    chosen = [record for record in records if len(record.references) == number]
    boxes = []
    for index in range(number):
        width_height = [record.image_size * 2 for record in chosen]
        corners = [
            [edge / side for edge, side in zip(record.references[index].corners, sides, strict=True)]
            for record, sides in zip(chosen, width_height, strict=True)
        ]
        x1, y1, x2, y2 = (statistics.median(edges) for edges in zip(*corners, strict=True))
        label = _most_common([record.references[index].label for record in chosen])
        boxes.append(Box(label, (x1, y1, x2, y2)))
    return tuple(boxes)


def score_baseline(
    records: Sequence[Record], chosen: Sequence[Record], settings: ScoringSettings, *, of_chosen: bool = False
) -> tuple[list[ReplyScore] | None, str]:
    """Return the scores of the majority answer with the constant box, and a remark; None without training records.

    With `of_chosen` a kind without any gets its most frequent answer, or letter, among the chosen records themselves.
    """
    train = [record for record in records if record.split == "train"]
    if not train and not of_chosen:
        return None, f"No row of {BASELINE}: the file has no record of split train to take them from."
    known = set(map(kind_of, train))
    own = [record for record in chosen if of_chosen and kind_of(record) not in known]
    fitted, sources = fit_baseline([*train, *own]), [f"of {len(train)} training records"] * bool(train)
    if own:
        sources.append(f"of the {len(own)} evaluated questions of a kind that training lacks")
    scores = []
    for record in chosen:
        if kind_of(record) not in known and not own:
            scores.append(ReplyScore(record.id, None, None, (), *(4 * (math.nan,))))
            continue
        is_known = kind_of(record) in known
        blind = record if is_known else msgspec.structs.replace(record, topic="", options=_name_letters(record))
        answered = fitted.answer(blind)
        reply = Reply(
            dialect=settings.dialect,
            answer=answered.answer if isinstance(answered.answer, str) else ", ".join(answered.answer),
            references=tuple(Box(reference.label, reference.corners) for reference in answered.references),
        )
        scores.append(dataclasses.replace(score_reply(reply, record, settings), format=math.nan))
    note = " Training records are among those scored." if any(record.split == "train" for record in chosen) else ""
    return scores, f"{BASELINE}: {'; '.join(sources)}, ignoring the picture.{note}"
