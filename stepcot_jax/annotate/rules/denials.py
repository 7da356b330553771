"""Denials that may not reach what follows them, so that a report is set aside instead of being a certain Normal."""

import itertools
import re

from stepcot_jax.annotate.rules.mentions import Mention, Reading, Status

_JOINED = re.compile(r"\b(?:n?or|and)\b|[,/&]")
_LIST_ENDS = re.compile(r"\b(?:n?or|and)\b|/")
_PLACE = r"(?:left|right|upper|lower|middle|apical|basal|basilar|bibasilar|lingular|retrocardiac|perihilar)"
_PLACED_BEHIND = re.compile(rf" (?:is |seen |noted )?(?:in|at|of|within|along|over) (?:the )?{_PLACE}\b", re.IGNORECASE)
_PLACED_BEFORE = re.compile(rf",\s*(?:an? )?(?:{_PLACE} ){{1,2}}(?:(?:lobe|lung|zone) )?$", re.IGNORECASE)
_BOTH_SIDES = re.compile(
    r"\b(?:left|right)\b[\w -]{0,20}(?:\b(?:n?or|and|versus|than|to)\b|/)[\w ]{0,9}\b(?:left|right)\b", re.I
)
_SIDE = re.compile(r"\b(left|right)(?:-sided)?\b", re.IGNORECASE)
_EXCEPT = re.compile(
    r"\b(?:except(?:ion of)?|other than|apart from|aside from|save for|but|only|yet)\b[^.;]{0,40}\b(?:left|right)\b",
    re.IGNORECASE,
)
_FINE = re.compile(r"\b(?:normal\w*|clear\w*|unremarkable|intact|no|without|free|sharp|well|not)\b", re.IGNORECASE)
_FURTHEST = 60  # characters from a denied finding to the exception


def find_doubtful_denial(reading: Reading) -> Mention | None:
    """Return a denied finding that the report may state after all; None if every denial is plain.

    A denial is in doubt where it reaches a second finding across neither a conjunction nor a comma, or across a comma
    to one with its place ("no effusion, nodule in the left lung"); where it names one side and the text goes on to the
    other side without naming a finding; and where an exception to it follows.
    """
    denied = [mention for mention in reading.mentions if mention.status == Status.ABSENT and mention.sort != "other"]
    for first, second in itertools.pairwise(denied):
        if first.number == second.number and not second.signed and not _reaches(first, second):
            return second
    for mention in denied:
        if not mention.signed and (_goes_on_to_the_other_side(mention, reading) or _has_exception(mention, reading)):
            return mention
    return None


def _reaches(first: Mention, second: Mention) -> bool:
    line = second.sentence.line
    between = line[first.end : second.start]
    if first.clause != second.clause or re.search(r"\b(?:no|not|without|nor|neither)\b", between, re.IGNORECASE):
        return True
    if not _JOINED.search(between) and re.search(r"[^\w\s-]", between):
        return False
    if _LIST_ENDS.search(between) or _LIST_ENDS.search(line, second.end, second.clause[1]):
        return True
    is_placed = _PLACED_BEHIND.match(line, second.end) or _PLACED_BEFORE.search(line, first.end, second.start)
    return is_placed is None


def _goes_on_to_the_other_side(mention: Mention, reading: Reading) -> bool:
    line = mention.sentence.line
    sides = [(side[1].lower(), side.start()) for side in _SIDE.finditer(line)]
    named = [other for other in reading.mentions if other.number == mention.number]
    if not sides or _BOTH_SIDES.search(line) or any(other.start > mention.end for other in named):
        return False
    if len({side for side, _ in sides}) == 2:
        return _FINE.search(line, mention.end) is None
    following = reading.sentences[mention.number + 1 : mention.number + 2]
    is_named = any(other.number == mention.number + 1 for other in reading.mentions)
    others = {side[1].lower() for sentence in following for side in _SIDE.finditer(sentence.line)}
    goes_on = bool(others - {sides[0][0]}) and not is_named
    return goes_on and not any(_FINE.search(sentence.line) for sentence in following)


def _has_exception(mention: Mention, reading: Reading) -> bool:
    found = _EXCEPT.search(mention.sentence.line, mention.end)
    if found is None or found.start() > mention.end + _FURTHEST:
        return False
    return not any(other.number == mention.number and other.start > mention.end for other in reading.mentions)
