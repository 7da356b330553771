"""Replies whose answer or whose boxes cannot be read: counted apart, with their reasons, and told in one line."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepcot_jax.record import KINDS, Record

MISSING = "no reply"
WARNING = "WARNING: "
"""Begins the line on a model with at least 5 % unread answers or boxes."""
_DOUBTFUL = 0.05


@dataclasses.dataclass(frozen=True)
class Unread:
    """Replies in which answers, or boxes, were looked for, and why they cannot be read in some."""

    num_replies: int
    reasons: collections.Counter[str]  # of the unread ones

    @property
    def share(self) -> float:
        """Share of the replies; NaN without any."""
        return self.reasons.total() / self.num_replies if self.num_replies else math.nan

    @property
    def because(self) -> str:
        """The three most frequent reasons with their numbers."""
        return "; ".join(f"{reason} ({number})" for reason, number in self.reasons.most_common(3))

    def __str__(self) -> str:
        return f"{self.reasons.total()} of {self.num_replies}"


UnreadParts = Mapping[str, Unread]  # by "answers" and, where boxes are asked for, "boxes"


def count_unread(scores: Iterable[Any]) -> dict[str, Unread]:
    """Count the unread answers of replies (`ReplyScore`), and the unread boxes of those asked for boxes, if any is."""
    replies = [score for score in scores if MISSING not in score.problems]
    located = [score for score in replies if not math.isnan(score.v_score)]
    answers = collections.Counter(score.unread_answer for score in replies if score.unread_answer)
    boxes = collections.Counter(score.unread_boxes for score in located if score.unread_boxes)
    of_boxes = {"boxes": Unread(len(located), boxes)} if located else {}
    return {"answers": Unread(len(replies), answers), **of_boxes}


def describe_unread(models: Mapping[str, UnreadParts]) -> list[str]:
    """Return a line for each model; those with 5 % or more begin with WARNING and come first."""
    lines = []
    for name, parts in models.items():
        mark = WARNING if any(part.share >= _DOUBTFUL for part in parts.values()) else ""
        told = [f"unread {what} {part}" + f" [{part.because}]" * bool(part.reasons) for what, part in parts.items()]
        lines.append(f"{mark}{name}: {'; '.join(told)}")
    return sorted(lines, key=lambda line: not line.startswith(WARNING))


def find_doubts(models: Mapping[str, UnreadParts], dialects: Mapping[str, str]) -> str:
    """Return which models have more than half of their answers or boxes unread; "" for none."""
    return "; ".join(
        f"{name}: the {what} of {part} replies cannot be read, as dialect {dialects[name]}"
        for name, parts in models.items()
        for what, part in parts.items()
        if part.share > 0.5
    )


def count_replies(records: Sequence[Record], scores: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Count, for each kind and "all": questions, missing and ill-formed replies, unread answers and boxes, unscored."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record, score in zip(records, scores, strict=True):
        missing = MISSING in score.problems
        for group in (record.kind, "all"):
            counts[group] += collections.Counter(
                questions=1,
                missing=missing,
                ill_formed=bool(score.problems) and not missing,
                unread_answers=bool(score.unread_answer),
                unread_boxes=bool(score.unread_boxes),
                unscored=math.isnan(score.a_score) and not missing,
            )
    names = ("questions", "missing", "ill_formed", "unread_answers", "unread_boxes", "unscored")
    return {group: {name: counts[group][name] for name in names} for group in (*KINDS, "all") if group in counts}
