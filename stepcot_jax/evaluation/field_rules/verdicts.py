"""What a counting rule is asked, and what it returns."""

from typing import NamedTuple

from stepcot_jax.record import Record


class Asked(NamedTuple):
    """A question as the suites' files have it."""

    kind: str  # of `record.KINDS`
    options: tuple[str, ...]  # texts without letters; the first is A
    answer: str | tuple[str, ...]  # a letter, letters, or a text as the data write it

    @property
    def letters(self) -> str:
        """The options' letters."""
        return "".join(chr(ord("A") + place) for place in range(len(self.options)))


class Verdict(NamedTuple):
    """A rule's verdict on a reply."""

    right: bool | None  # None: unread, which counts as not right
    reason: str
    read: str | None = None  # what the rule took as the answer
    chance: float = 0.0  # of an unread reply whose answer the suite draws: its chance of being right


def ask(record: Record) -> Asked:
    """Return the question of a record."""
    return Asked(record.kind, record.options, record.answer)


def choose_letter(letter: str, asked: Asked, reason: str) -> Verdict:
    """Return the verdict on a letter that was read."""
    return Verdict(letter == asked.answer, reason, letter)


def compare(read: str, truth: str) -> Verdict:
    """Return the verdict of a rule that asks for equal texts."""
    return Verdict(read == truth, "equal texts" if read == truth else "not the text of the answer", read)


def take_pairs(text: str, opening: str, closing: str) -> tuple[list[str], str]:
    """Return what stands in each pair, from an opening mark to the next closing one, and the text without the pairs."""
    inside, outside, end = list[str](), list[str](), 0
    # Linear where a non-greedy pattern is not: without a closing mark nothing further is searched.
    while (start := text.find(opening, end)) >= 0 and (stop := text.find(closing, start + len(opening))) >= 0:
        inside.append(text[start + len(opening) : stop])
        outside.append(text[end:start])
        end = stop + len(closing)
    return inside, "".join([*outside, text[end:]])
