"""Split a report into the sentences that count as evidence, as character ranges so that quotes stay verbatim.

Only findings and impression are evidence. An indication ("rule out pneumonia") names the question, a comparison or a
history names the past; neither says what this radiograph shows.
"""

import dataclasses
import functools
import re
from typing import Literal

Role = Literal["findings", "impression", "context"]

HEADINGS: dict[Role, tuple[str, ...]] = {
    "findings": ("findings", "finding", "report", "description", "chest", "chest x-ray"),
    "impression": (
        *("impression", "impressions", "conclusion", "conclusions", "opinion", "summary", "interpretation"),
    ),
    "context": (
        *("indication", "indications", "reason for exam", "reason for examination", "comparison", "comparisons"),
        *("history", "clinical history", "clinical information", "clinical indication", "technique", "procedure"),
        *("examination", "exam", "study", "views", "recommendation", "recommendations"),
    ),
}
"""Role of a section -> its headings, in lower case."""

_ROLES = {name: role for role, names in HEADINGS.items() for name in names}
# Headings are upper case anywhere, or any case at the start of a line; "; impression: mass" is no heading.
_NAMES = "|".join(sorted((re.escape(name) for name in _ROLES), key=len, reverse=True))
_HEADING = re.compile(rf"(?:(?<![^\s.;])(?P<capitals>{_NAMES.upper()})|^[ \t]*(?P<line>(?i:{_NAMES})))[ \t]*:", re.M)

# A full stop ends a sentence before a capital, a list number, a de-identified word or the end of the text; not after
# an abbreviation, within a number such as 2.0 cm, or in the "1." that opens a list item.
_ABBREVIATIONS = ("dr", "mr", "mrs", "ms", "st", "vs", "approx", "i.e", "e.g", "cf", "pt", "resp", "fig")
# A full stop is missing where a word that opens sentences is capitalised after a word that can end one: "No effusion
# Small nodule in the apex".
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
"""Characters. Longer sentences are cut, because the time to read one grows with the square of its length."""

_LAST_WORD = re.compile(r"[\w.]+$")
_WORD = re.compile(r"\w")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence of a report.

    Attributes:
      text: verbatim, with its full stop and without a list number.
      start: offset of its first character in the report.
    """

    text: str
    start: int
    role: Role

    @functools.cached_property
    def line(self) -> str:
        """The text with line breaks folded; offsets within a sentence refer to it."""
        return " ".join(self.text.split())


def find_sections(text: str) -> list[tuple[Role, int, int]]:
    """Return role, start and end of each non-empty section; text outside any section counts as findings.

    >>> [role for role, *_ in find_sections("INDICATION: cough. FINDINGS: Clear lungs.")]
    ['context', 'findings']
    """
    headings = list(_HEADING.finditer(text))
    roles: list[Role] = ["findings", *(_ROLES[(match["capitals"] or match["line"]).lower()] for match in headings)]
    starts = [0, *(match.end() for match in headings)]
    ends = [*(match.start() for match in headings), len(text)]
    return [found for found in zip(roles, starts, ends, strict=True) if text[found[1] : found[2]].strip()]


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """Split findings and impression into sentences, in the report's order.

    >>> [sentence.text for sentence in split_sentences("IMPRESSION: 1. A 2.0 cm mass. 2. No effusion.")]
    ['A 2.0 cm mass.', 'No effusion.']
    """
    return tuple(
        Sentence(text[start:end], start, role)
        for role, first, last in find_sections(text)
        if role != "context"
        for start, end in _spans(text, first, last)
    )


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
    return not last.isdigit() or bool(text[start:before].strip())


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the range without list number and surrounding white space, cut if too long; empty without a word."""
    item = _ITEM.match(text, start, end)
    start = item.end() if item else start
    end = start + len(text[start:end].rstrip())
    spans = []
    while end - start > _LONGEST_SENTENCE:
        cut = text.rfind(" ", start + 1, start + _LONGEST_SENTENCE)
        cut = start + _LONGEST_SENTENCE if cut < 0 else cut
        spans.append((start, cut))
        start = cut
    return [(first, last) for first, last in [*spans, (start, end)] if _WORD.search(text, first, last)]
