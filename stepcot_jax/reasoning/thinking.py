"""The thinking of a reply, to audit whether its answer rests on it: without its conclusion, shortened, or turned."""

import dataclasses
import re
from collections.abc import Iterable, Sequence

import msgspec

from stepcot_jax.chain import fold
from stepcot_jax.reasoning.dialects import answer_start, interpret_answer, read_reply
from stepcot_jax.reasoning.rules import PRESENCE
from stepcot_jax.record import Record

ANSWERED_FIRST = ("gemex_plain",)
"""Dialects whose replies begin with the answer, so that no answer follows the thinking."""

_MARK = re.compile(r"(</?[A-Za-z]{1,12}>|(?m:^)Reasoning: ?| ?\{[^{}]*\}|\n\s*)")
_BETWEEN = re.compile(r"(?<=[.!?])\s+")
_LETTER = re.compile(r"(?<!\w)[A-Z](?=[,.:;)]| is\b)")
_CLAIM = re.compile(r"\b(see|sees|shows?|has|have|is|are)( no| not)?(?= \w)")
_AROUND_NOTHING = re.compile(r"(?<=^Reasoning:) (?=\n)|(?<=<CON>)</CON>$")
_TOLD = "This reasoning about the picture is given, give the answer that follows from it: {}"


@dataclasses.dataclass(frozen=True)
class Thinking:
    """A reply up to its answer, as pieces: sentences, and marks between them such as tags and line breaks."""

    pieces: tuple[tuple[str, bool], ...]  # texts, and whether each is a sentence

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences in order."""
        return tuple(text for text, is_sentence in self.pieces if is_sentence)

    def write(self) -> str:
        """Return the start of a reply in its dialect, which the answer follows; an empty conclusion is left open."""
        texts, after_sentence = list[str](), False
        for text, is_sentence in self.pieces:
            if text.isspace() and texts and texts[-1].isspace():  # around a sentence that was left out
                texts.pop()
            texts.append(f" {text}" if is_sentence and after_sentence else text)
            after_sentence = is_sentence
        return _AROUND_NOTHING.sub("", "".join(texts))

    def keep(self, chosen: Sequence[str | None]) -> "Thinking":
        """Return the thinking with other sentences, one for each; None leaves a sentence out."""
        new = iter(chosen)
        pieces = [(next(new) if is_sentence else text, is_sentence) for text, is_sentence in self.pieces]
        return Thinking(tuple((text, is_sentence) for text, is_sentence in pieces if text is not None))


def read_thinking(reply: str, record: Record, dialect: str) -> Thinking | None:
    """Return the thinking without what names the answer or an option, sentences or boxes; None where none is left."""
    written = read_reply(reply, dialect)
    answer = interpret_answer(written, record)
    if not written.counts or answer is None or dialect in ANSWERED_FIRST:
        return None
    pieces: list[tuple[str, bool]] = []
    for place, part in enumerate(_MARK.split(reply[: answer_start(reply, dialect)])):
        texts = [part] if place % 2 else _BETWEEN.split(part)
        pieces += [(text, place % 2 == 0 and not text.isspace()) for text in texts if text]
    phrases = ["answer", "answers", "option", "options", *map(fold, record.options)]
    phrases += ["yes", "no"] if record.kind == "closed" and not record.is_answered_in_words else []
    if record.is_answered_in_words:  # of the others the answer is a letter, for which `_LETTER` looks: "a" is a word
        phrases += [fold(text) for text in (*record.accepted_texts, answer) if isinstance(text, str)]
    named = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, filter(None, phrases)))})(?!\w)")

    def concludes(sentence: str) -> bool:
        return bool(named.search(fold(sentence)) or (record.options and _LETTER.search(sentence)))

    def leave_out(text: str, is_sentence: bool) -> bool:
        return concludes(text) if is_sentence else "{" in text and bool(named.search(fold(text)))  # a box

    kept = Thinking(tuple(piece for piece in pieces if not leave_out(*piece)))
    return kept if kept.sentences else None


def shorten(thinking: Thinking) -> Thinking | None:
    """Return the first half of the sentences, rounded down; None of a single one, of which nothing would be left."""
    texts = thinking.sentences
    half = len(texts) // 2
    return thinking.keep([*texts[:half], *[None] * (len(texts) - half)]) if half else None


def turn_claim(thinking: Thinking) -> Thinking | None:
    """Return the thinking with the first claim denied, or affirmed where it was denied; None without any claim.

    What precedes the first tag describes the picture as a whole, alike for every patient, and stays.

    >>> turn_claim(Thinking((("I see air.", True), ("It is not wide.", True)))).sentences
    ('I see no air.', 'It is not wide.')
    """
    texts: list[str | None] = list(thinking.sentences)
    starts = (place for place, (text, is_sentence) in enumerate(thinking.pieces) if text[0] == "<" and not is_sentence)
    preamble = sum(is_sentence for _, is_sentence in thinking.pieces[: next(starts, 0)])
    for place, text in enumerate(thinking.sentences):
        claim = _CLAIM.search(text) if place >= preamble else None
        if claim:
            denial = "" if claim[2] else " not" if claim[1] in ("is", "are") else " no"
            texts[place] = f"{text[: claim.end(1)]}{denial}{text[claim.end() :]}"
            return thinking.keep(texts)
    return None


def tell(record: Record, thinking: Thinking) -> Record:
    """Return a question with a thinking as text in it, for models that continue no prefix."""
    told = _TOLD.format(" ".join(thinking.sentences) or "(none)")
    return msgspec.structs.replace(record, question=f"{record.question}\n{told}")


def in_words(answer: str | tuple[str, ...] | None, record: Record) -> frozenset[str]:
    """Return an answer as folded texts of its options, which other orders of options share; none if unread."""
    if answer is None:
        return frozenset()
    if not record.options:
        return frozenset([fold(str(answer))])
    by_letter = dict(zip(record.letters, record.options, strict=True))
    return frozenset(fold(by_letter[letter]) for letter in answer)


def say(reply: str, record: Record, dialect: str) -> frozenset[str]:
    """Return the answer of a reply in words."""
    return in_words(interpret_answer(read_reply(reply, dialect), record), record)


def subject_of(record: Record) -> tuple[str, str]:
    """Return a key that is equal for records which ask the same, in one wording or, of presence, in several."""
    is_presence = record.kind == "closed" and record.topic.startswith(PRESENCE)
    return record.kind, record.topic if is_presence else fold(record.question)


def can_say(words: Iterable[str], record: Record) -> bool:
    """Return whether an answer in words is one of the record's own: every option that it names is there."""
    return not record.options or set(words) <= set(map(fold, record.options))
