"""The sentences of a report, as places in its text, so that what is quoted is quoted word for word."""

import dataclasses
import functools
import re

from stepcot_jax.annotate.sections import Role, find_sections

# What ends a sentence is a full stop before a capital, a digit of a list, a de-identified word or the end; not the
# stop of an abbreviation, of a number such as 2.0 cm, or of the "1." that opens an item of a list.
_ABBREVIATIONS = ("dr", "mr", "mrs", "ms", "st", "vs", "approx", "i.e", "e.g", "cf", "pt", "resp", "fig")
# A capital within a sentence means that its full stop is missing, if the word is one that opens sentences and the word
# before it is one that can end them: "No effusion Small nodule in the apex".
_OPENING = (
    r"(?:The|There|This|These|No|Some|Stable|Unchanged|Normal|Negative|Again|Otherwise|Interval|Mild|Minimal|Small"
    r"|Large|Moderate|Low|Old|Multiple|Scattered|Few|Bilateral|Left|Right|Middle|Lungs?|Heart|Cardiac|Pulmonary|Pleural"
    r"|Mediastinal|Cardiomediastinal|Trachea|Aorta|Aortic|Bony|Osseous|Visualized|Degenerative|Calcified|Dense"
    r"|Emphysematous|Chronic|Patchy|Streaky|Cannot|Couple|Possible|Probable|Atherosclerotic)"
)
_CONTINUES = re.compile(
    r"\b(?:the|an?|of|in|on|at|to|by|for|from|with|without|and|or|nor|no|not|is|are|was|were|has|have|may|both|versus"
    r"|over|per|this|focal|acute|evidence|definite|significant|large|small|mild|new|any)$"
)
_STOP = re.compile(
    r"[.!?]+(?=\s|$)|(?<=[a-z)])\.(?=[A-Z])|<(?i:br)\s*/?>|\n[ \t]*\n|\n(?=[ \t]*(?:\d+[.)]|[-*\u2022])[ \t])"
    rf"|(?<=[a-z])\s(?={_OPENING} [a-z])"
)
_ITEM = re.compile(r"\s*(?:(?:\d{1,2}[.)]|[-*\u2022])\s+)?")
_LONGEST_ABBREVIATION = 8
_LONGEST_WORD = 20
_LONGEST_SENTENCE = 600
"""Characters; a hostile text without full stops is cut, since reading takes time with the square of a sentence."""

_LAST_WORD = re.compile(r"[\w.]+$")
_WORD = re.compile(r"\w")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence of a report.

    Attributes:
      text: as the report has it, with its full stop and without the number of a list.
      start: its first character in the report.
      role: what its section is: "findings" or "impression".
    """

    text: str
    start: int
    role: Role

    @functools.cached_property
    def line(self) -> str:
        """The text without its line breaks, as it is searched for words; places in a sentence are places in this."""
        return " ".join(self.text.split())


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """The sentences of the sections that assert, in the report's order.

    >>> [sentence.text for sentence in split_sentences("IMPRESSION: 1. A 2.0 cm mass. 2. No effusion.")]
    ['A 2.0 cm mass.', 'No effusion.']
    """
    sentences = []
    for section in find_sections(text):
        if section.role != "context":
            for start, end in _spans(text, section.start, section.end):
                sentences.append(Sentence(text[start:end], start, section.role))
    return tuple(sentences)


def _spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for stop in _STOP.finditer(text, start, end):
        if stop[0] == "." and not _ends_sentence(text, start, stop.start(), end):
            continue
        is_guess = len(stop[0]) == 1 and stop[0].isspace() and text[stop.end()].isupper()
        if is_guess and _CONTINUES.search(text, max(start, stop.start() - _LONGEST_WORD), stop.start()):
            continue
        spans += _trimmed(text, start, stop.end() if stop[0][0] in ".!?" else stop.start())
        start = stop.end()
    return spans + _trimmed(text, start, end)


def _ends_sentence(text: str, start: int, stop: int, end: int) -> bool:
    match = _LAST_WORD.search(text, max(start, stop - _LONGEST_ABBREVIATION), stop)
    last, before = (match[0].lower(), match.start()) if match else ("", stop)
    if last in _ABBREVIATIONS:
        return not text[stop + 1 : end].strip()
    opens_item = last.isdigit() and not text[start:before].strip()
    return not opens_item


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The characters without the number of a list and without white space about them; none without a word."""
    item = _ITEM.match(text, start, end)
    start = item.end() if item else start
    while end > start and text[end - 1].isspace():
        end -= 1
    spans = []
    while end - start > _LONGEST_SENTENCE:
        cut = text.rfind(" ", start + 1, start + _LONGEST_SENTENCE)
        cut = start + _LONGEST_SENTENCE if cut < 0 else cut
        spans.append((start, cut))
        start = cut
    return [(first, last) for first, last in [*spans, (start, end)] if _WORD.search(text, first, last)]
