"""Answers as models write them, read by the kind of question."""

import re
import string
from collections.abc import Iterable

from stepcot_jax.chain import NOT_ANNOTATED, Step, fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.record import VqaRecord

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"\(?([A-Za-z])[.):]*")
_BETWEEN_LETTERS = re.compile(r"(?:[\s,;]|\band\b)+", re.IGNORECASE)
_BETWEEN_TEXTS = (
    re.compile(r"[;\n]"),
    re.compile(r"[;\n,]\s*(?=\(?[A-Za-z][.):])"),
    re.compile(r"[;\n,]"),
    re.compile(r"[;\n,]|\band\b", re.IGNORECASE),
)
_LONGEST = 2**16
"""Longer texts are no choice; reading them would take much memory."""


def read_answer(text: str, record: VqaRecord) -> str | tuple[str, ...] | None:
    """Return a written answer in the form of `record.answer`; None if it is no readable answer.

    - closed: the first word decides; a text with both "yes" and "no", or with neither first, is no answer.
    - single: as `chain.Step.read_answer`: a letter, "B.", "(B)", "B: text" or the option's text. Letter and text must
      agree; two letters are no answer.
    - multi: several of these with commas, semicolons or "and" between, letters also with blanks; order and
      repetition do not count.
    - open: the folded text.
    """
    if record.kind == "open":
        return fold(text) or None
    if len(text) > _LONGEST:
        return None
    if record.kind == "closed":
        return _read_yes_or_no(text)
    step = Step("choices", record.question, record.choices)
    if record.kind == "single":
        return _read_choice(text, step)
    letters = _read_letters(text, step)
    for between in (None, *_BETWEEN_TEXTS):
        if letters:
            break
        letters = _read_choices([text] if between is None else between.split(text), step)
    return tuple(sorted(letters)) if letters else None


def _read_yes_or_no(text: str) -> str | None:
    words = _WORD.findall(fold(text))
    decisions = {"yes", "no"}.intersection(words)
    return words[0].capitalize() if len(decisions) == 1 and words[0] in decisions else None


def _read_choice(text: str, step: Step) -> str | None:
    try:
        label = step.read_answer(text)
    except BadInput:
        return None
    return None if label == NOT_ANNOTATED else string.ascii_uppercase[label]


def _read_letters(text: str, step: Step) -> set[str] | None:
    """Return the letters of a text that has nothing but letters; None for any other text."""
    found = [_LETTER.fullmatch(piece) for piece in _BETWEEN_LETTERS.split(text) if piece]
    letters = {match[1].upper() for match in found if match}
    return letters if None not in found and letters <= set(string.ascii_uppercase[: step.num_answers]) else None


def _read_choices(pieces: Iterable[str], step: Step) -> set[str] | None:
    """Return the letters of written choices; None unless each can be read."""
    letters: set[str] = set()
    for piece in pieces:
        letter = _read_choice(piece, step) if piece.strip() else None
        if letter is None and piece.strip():
            return None
        if letter is not None:
            letters.add(letter)
    return letters
