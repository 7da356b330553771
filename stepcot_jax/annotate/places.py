"""Where a report speaks of a finding: the characters of a sentence, and the site that they name.

The words of a lesion are looked for in the phrase that names it, in its clause, in what a relative clause adds, and in
the sentence behind it that goes on about it.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from stepcot_jax.annotate import descriptions
from stepcot_jax.annotate.report_reading import Mention, Reading
from stepcot_jax.annotate.sentences import Sentence

_PHRASE = re.compile(r"[,;:]|\band\b|\bwith\b|\bwithout\b|\bas well as\b|\bversus\b|\bor\b", re.IGNORECASE)

_LEFT, _RIGHT = (
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for words in (r"left|lingul\w+|LUL|LLL", r"right|RUL|RML|RLL")
)
_SEQUEL = re.compile(
    r"(?:these|this|it|they|both|(?:most )?likely|probabl[ey]|possibly|appears?|measur(?:es?|ing)|represent(?:s|ing)"
    r"|the (?:calcifications?|margins?|nodul\w+|mass(?:es)?|opacit(?:y|ies)|densit(?:y|ies)|lesions?|findings?"
    r"|appearance))\b",
    re.IGNORECASE,
)

# "A nodule which is calcified": what "which" begins is a clause of its own, but about the same lesion.
_RELATIVE = re.compile(
    r"which (?:is|are|appears?|has|have|measures?|contains?|demonstrates?|shows?)\b(?:(?! and\b)[^,;.]){0,80}",
    re.IGNORECASE,
)

Site = tuple[str | None, frozenset[str]]
"""A zone and the sides, as far as they are named."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where to look: characters `first` to `last` of a sentence, about the finding at `about`."""

    sentence: Sentence
    first: int
    last: int
    about: tuple[int, int]

    @property
    def words(self) -> tuple[str, int, int]:
        """The sentence's text and the characters to look at, as a describer takes them."""
        return self.sentence.line, self.first, self.last


def may_share(one: Site, two: Site) -> bool:
    """Whether two sites can be the same, as far as they are named."""
    return (not one[0] or not two[0] or one[0] == two[0]) and (not one[1] or not two[1] or bool(one[1] & two[1]))


def find_site(mention: Mention) -> Site:
    """The zone and the sides that the words near a finding name."""
    *_, clause = phrase_and_clause(mention)
    return descriptions.LOCATION.strongest(*clause.words), frozenset(find_sides(mention, alone=False))


def find_sides(mention: Mention, *, alone: bool) -> set[str]:
    """The sides on which a sentence puts a finding."""
    place = whole_sentence(mention) if alone else next(phrase_and_clause(mention))
    return {side for side, words in (("left", _LEFT), ("right", _RIGHT)) if words.search(*place.words)}


def names_two_zones(mention: Mention) -> bool:
    """Whether the words about a finding join two zones ("right middle and lower lobe")."""
    phrase, clause = phrase_and_clause(mention)
    return descriptions.names_two_zones(*clause.words, about=(phrase.first, phrase.last))


def find_sequels(reading: Reading, own: Iterable[Mention]) -> Iterator[Place]:
    """The sentences that go on about a finding ("These most likely represent calcified granulomas.")."""
    for number in dict.fromkeys(item.number + 1 for item in own):
        if number < len(reading.sentences) and _SEQUEL.match(reading.sentences[number].line):
            sentence = reading.sentences[number]
            yield Place(sentence, 0, len(sentence.line), (0, 0))


def whole_sentence(mention: Mention) -> Place:
    """All that the sentence of a finding says."""
    return Place(mention.sentence, 0, len(mention.sentence.line), (mention.start, mention.end))


def relative_clause(mention: Mention) -> Iterator[Place]:
    """What a relative clause behind the clause of a finding says of it."""
    match = _RELATIVE.match(mention.sentence.line, mention.clause[1])
    if match:
        yield Place(mention.sentence, match.start(), match.end(), (mention.start, mention.end))


def phrase_and_clause(mention: Mention) -> Iterator[Place]:
    """The phrase of a finding, then its clause."""
    text, (first, last) = mention.sentence.line, mention.clause
    about = (mention.start, mention.end)
    start = max((match.end() for match in _PHRASE.finditer(text, first, mention.start)), default=first)
    end = min((match.start() for match in _PHRASE.finditer(text, mention.end, last)), default=last)
    yield Place(mention.sentence, start, end, about)
    yield Place(mention.sentence, min(first, mention.start), max(last, mention.end), about)
