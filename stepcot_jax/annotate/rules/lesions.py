"""Answers about the lesion of a report's diagnosis, each with the sentence that supports it."""

import collections
import dataclasses
import re
from collections.abc import Iterator

from stepcot_jax.annotate.rules import terms
from stepcot_jax.annotate.rules.mentions import Mention, Reading, Sentence, Status
from stepcot_jax.annotate.rules.terms import match_slips
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_APPLICABLE

# The words that describe a lesion; in each table earlier answers take precedence. Zones: apex and upper lobe are the
# upper zone; middle lobe and lingula the middle zone; base, lower lobe and the retrocardiac lung the lower zone.


NO_ABNORMALITY, INCREASED, DECREASED, MIXED = DEFAULT_CHAIN.steps[0].options
FOCAL, MULTIFOCAL, DIFFUSE, _ = DEFAULT_CHAIN.steps[1].options
CONSOLIDATION, RETICULAR, NODULAR, LINEAR, CAVITY, _ = DEFAULT_CHAIN.steps[2].options
UPPER, MIDDLE, LOWER, HILAR, PLEURA, CARDIAC, _ = DEFAULT_CHAIN.steps[3].options
SHARP, ILL_DEFINED, SPICULATED, CALCIFIED, _ = DEFAULT_CHAIN.steps[4].options

_LUNG = r"(?:lung |lobe |pulmonary |hemi-?thorax |chest )?"
_ZONE = r"(?:lobes?|lungs?|zones?|chest|hemi-?thora\w+|thorax|fields?|XXXX|poles?|portions?)"

DETECTION_WORDS: dict[str, str] = {
    MIXED: r"mixed (?:increased|opacit\w+|densit\w+|lucen\w+)",
    DECREASED: r"(?:decreased|reduced) (?:opacity|density)|(?:hyper)?lucen(?:t|cy|cies)",
    INCREASED: r"opaci\w+|densit\w+|consolidat\w+",
}
DISTRIBUTION_WORDS: dict[str, str] = {
    DIFFUSE: r"diffuse\w*|widespread|generali[sz]ed|throughout (?:the |both )?lungs?",
    MULTIFOCAL: (
        r"(?:scattered|multiple|several|few)\b[^.;]{0,80}\bthroughout|multi-?(?:focal|lobar|ple)|scattered|bilateral\w*|both|bi-?bas\w+"
        r"|bi-?apical\w*|several|numerous|few|two|three|couple|bases|apices|lobes|zones"
        r"|[2-9](?= (?:[\w-]+ ){0,4}?(?:nodules|masses|granulomas|opacities|densities)\b)"
        r"|(?:right|left) (?:greater|larger) than (?:right|left)"
    ),
    FOCAL: (
        r"focal|focus|solitary|single|locali[sz]ed|right|left|unilateral|RUL|LUL|RML|RLL|LLL|lingul\w+|middle lobe"
        r"|right-sided|left-sided"
    ),
}
PLURAL_WORDS: dict[str, str] = {
    MULTIFOCAL: r"nodules|effusions|granulomas|granulomata|masses|opacities|densities|infiltrates|areas|foci|scars"
}
"""Plurals that mean several lesions unless one site is named; several lesions in one lobe are one focus."""
PATTERN_WORDS: dict[str, str] = {
    CAVITY: r"cavit(?:y|ies|ary|ation|ations|ating)|air[- ]fluid level",
    RETICULAR: r"reticul\w+|interstitial|honeycomb\w*",
    LINEAR: r"linear|streak\w*|plate-?like|discoid|band-?like|bands?|sub-?segmental|strand\w*",
    NODULAR: r"(?:fibro|micro)?nodular|nodules?|mass(?:es)?|mass-?like|rounded|round",
    CONSOLIDATION: r"consolidat\w+|air-?\s?space|alveolar|lobar",
}
LOCATION_WORDS: dict[str, str] = {
    LOWER: (
        r"retro-?cardiac|(?:posterior to|behind) (?:the )?(?:left |right )?heart|superior segment of the \w+ lower lobe"
        rf"|(?:bi-?)?(?:bas(?:al|ally|ilar|e|es))|lower {_LUNG}{_ZONE}|RLL|LLL"
    ),
    UPPER: rf"(?:bi-?)?(?:apex|apices|apical|apically)|upper {_LUNG}{_ZONE}|RUL|LUL|suprahilar|azygos lobe",
    MIDDLE: rf"(?:middle|mid)[ -]?{_LUNG}{_ZONE}|lingul\w+|RML",
    CARDIAC: r"over the cardiac silhouette|about the heart",
    HILAR: (
        r"(?:peri|infra|para|juxta)?-?hil(?:ar|um|a|i)|(?:para-?)?mediastin(?:um|al)|para-?tracheal|subcarinal"
        r"|aorto-?pulmonary|AP window"
    ),
    PLEURA: (
        r"along the (?:right |left |bilateral )?(?:pleura|chest wall)|pleural[- ]based|(?:right |left )chest wall"
        r"|costophrenic|breast|fissur\w+|pleural (?:plaques?|calcif\w+)"
    ),
}
MORPHOLOGY_WORDS: dict[str, str] = {
    CALCIFIED: r"(?<!non)(?<!non-)(?<!no )calci\w+|hyperdense|" + match_slips("calcified"),
    SPICULATED: r"spiculat\w+|stellate",
    ILL_DEFINED: (
        r"(?:ill|poorly)[- ]?(?:defined|marginated|circumscribed|delineated)|indistinct|patchy|hazy|irregular|vague"
        r"|fluffy|blurred"
    ),
    SHARP: (
        r"well[- ]?(?:circumscribed|defined|marginated|delineated)|sharply \w+|circumscribed|smooth\w*"
        r"|(?:sharp|distinct) (?:margin|border|edge|contour)s?"
    ),
}

# "Right middle and lower lobe", "left hilar and lower lobe" name two sites, hence two lesions.
_STEMS: dict[str, str] = {
    "upper": r"upper|apex|apical",
    "middle": r"mid(?:dle|-?lungs?)?|lingul\w+",
    "lower": r"lower|bas(?:al|ilar|e)",
    "hilar": r"(?:peri)?hil(?:ar|um)",
}
_STEM = "|".join(_STEMS.values())
_TWO_ZONES = re.compile(
    rf"\b(?P<one>{_STEM})(?: {_ZONE})?(?:,? (?:and|as well as) |, | ?/ ?)"
    rf"(?:in |at |within )?(?:the )?(?:left |right )?(?P<two>{_STEM})\b",
    re.IGNORECASE,
)


def names_two_zones(text: str, first: int, last: int, *, about: tuple[int, int]) -> bool:
    """Return whether `first` to `last` join two zones by "and", a comma or a slash, at least one within `about`."""
    for match in _TWO_ZONES.finditer(text, first, last):
        is_near = match.start() < about[1] and about[0] < match.end()
        if is_near and _zone_of(match["one"]) != _zone_of(match["two"]):
            return True
    return False


def _zone_of(word: str) -> str:
    return next(zone for zone, stem in _STEMS.items() if re.fullmatch(stem, word, re.IGNORECASE))


class Describer:
    """Finds the answer of one table that the words near a finding name."""

    def __init__(self, words: dict[str, str]) -> None:
        self._answers = tuple(words)
        groups = "|".join(rf"(?P<a{number}>{pattern})" for number, pattern in enumerate(words.values()))
        self._pattern = re.compile(rf"\b(?:{groups})\b", re.IGNORECASE)

    def nearest(self, text: str, first: int, last: int, *, about: tuple[int, int]) -> str | None:
        """Return the answer whose words, within `first` to `last`, are nearest to the range `about`."""
        best, least = None, len(text) + 1
        for match in self._pattern.finditer(text, first, last):
            distance = max(match.start() - about[1], about[0] - match.end(), 0)
            if distance < least:
                best, least = self._named(match), distance
        return best

    def strongest(self, text: str, first: int, last: int) -> str | None:
        """Return the first answer of the table that characters `first` to `last` name."""
        named = {self._named(match) for match in self._pattern.finditer(text, first, last)}
        return next((answer for answer in self._answers if answer in named), None)

    def _named(self, match: re.Match[str]) -> str:
        return self._answers[int(match.lastgroup[1:])]  # type: ignore[index]


DETECTION = Describer(DETECTION_WORDS)
DISTRIBUTION = Describer(DISTRIBUTION_WORDS)
PLURAL = Describer(PLURAL_WORDS)
PATTERN = Describer(PATTERN_WORDS)
LOCATION = Describer(LOCATION_WORDS)
MORPHOLOGY = Describer(MORPHOLOGY_WORDS)

_MOST_MENTIONS = 30  # further mentions add no information, only time
_CALCIFIED = (terms.GRANULOMA, terms.CALCIFICATION)
_DISCRETE = (terms.NODULE, terms.MASS, terms.GRANULOMA)
_OF_LUNG = (terms.NODULE, terms.MASS, terms.ATELECTASIS, terms.INFILTRATION, terms.PNEUMONIA)

IMPLIED_PATTERN = {
    terms.NODULE: NODULAR,
    terms.MASS: NODULAR,
    terms.GRANULOMA: NODULAR,
    terms.PNEUMONIA: CONSOLIDATION,
    terms.INFILTRATION: CONSOLIDATION,
    terms.ATELECTASIS: LINEAR,
}
"""Pattern where the report names none; N/A for other findings."""

IMPLIED_LOCATION = {terms.EFFUSION: PLEURA, terms.PNEUMOTHORAX: PLEURA, terms.CARDIOMEGALY: CARDIAC}
"""Location where the report names none and the finding is not diffuse; N/A for other findings."""

_PHRASE = re.compile(r"[,;:]|\band\b|\bwith\b|\bwithout\b|\bas well as\b|\bversus\b|\bor\b", re.IGNORECASE)

_LEFT = re.compile(r"\b(?:left|lingul\w+|LUL|LLL)\b", re.IGNORECASE)
_RIGHT = re.compile(r"\b(?:right|RUL|RML|RLL)\b", re.IGNORECASE)
_SEQUEL = re.compile(
    r"(?:these|this|it|they|both|(?:most )?likely|probabl[ey]|possibly|appears?|measur(?:es?|ing)|represent(?:s|ing)"
    r"|the (?:calcifications?|margins?|nodul\w+|mass(?:es)?|opacit(?:y|ies)|densit(?:y|ies)|lesions?|findings?"
    r"|appearance))\b",
    re.IGNORECASE,
)

# "A nodule which is calcified": a clause of its own about the same lesion.
_RELATIVE = re.compile(
    r"which (?:is|are|appears?|has|have|measures?|contains?|demonstrates?|shows?)\b(?:(?! and\b)[^,;.]){0,80}",
    re.IGNORECASE,
)

Site = tuple[frozenset[str], frozenset[str]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, the sentence that supports it, and whether it is only possible."""

    text: str
    sentence: str
    uncertain: bool = False


def doubted(answer: Answer) -> Answer:
    """Return the answer as only possible; N/A, which names no finding, is unchanged."""
    return dataclasses.replace(answer, uncertain=answer.text != NOT_APPLICABLE)


@dataclasses.dataclass(frozen=True)
class _Span:
    """Characters `first` to `last` of a sentence, searched for words about the finding at `about`."""

    sentence: Sentence
    first: int
    last: int
    about: tuple[int, int]

    def strongest(self, describer: Describer) -> str | None:
        return describer.strongest(self.sentence.line, self.first, self.last)


class Lesion:
    """The lesion of one finding, with the spans of the report that describe it."""

    def __init__(self, reading: Reading, chief: Mention) -> None:
        self._chief = chief
        least = min(chief.status, Status.LIKELY)
        mentions = [item for item in reading.mentions if item.finding == chief.finding and item.status >= least]
        mentions.sort(key=lambda item: (item is not chief, item.number != chief.number))
        mentions = mentions[:_MOST_MENTIONS]
        # The opacities that the report calls consistent with the finding.
        near = (chief.number - 1, chief.number) if chief.concluded else ()
        self.linked = [item for item in _opacities(reading) if item.number in near]
        explained = self.linked or _explained(reading, chief)[:_MOST_MENTIONS]
        self.is_asserted = chief.present or bool(self.linked) or any(_may_be_one(chief, item) for item in explained)
        """Whether the report asserts the finding, or a shadow at its site that it may explain."""
        # If a sentence names no other finding, all its words describe this one.
        num_named = collections.Counter(item.number for item in reading.mentions)
        alone = {number for number, count in num_named.items() if count == 1}
        sides = {
            side
            for item in mentions
            for side in _find_sides(_sentence_of(item) if item.number in alone else _near(item)[0])
        }
        self._has_two_sites = len(sides) > 1 or any(
            names_two_zones(item.sentence.line, clause.first, clause.last, about=(phrase.first, phrase.last))
            for item, (phrase, clause) in zip(mentions, map(_near, mentions), strict=True)
        )
        self._spans = [
            *(span for item in mentions for span in (*_near(item), *_relative_clause(item))),
            *(_sentence_of(item) for item in mentions if item.number in alone),
            *_sequels(reading, mentions),
            *(span for item in explained for span in _near(item)),
            *(_sentence_of(item) for item in self.linked if item.number != chief.number),
        ]

    def distribution(self) -> Answer:
        """Return the answer of step 2."""
        if self._chief.finding == terms.CARDIOMEGALY and not self.linked:
            return self._implied(NOT_APPLICABLE)
        answers = [(span, span.strongest(DISTRIBUTION)) for span in self._spans]
        for span, answer in answers:
            if answer == FOCAL and (self._has_two_sites or self._is_strewn(span)):
                return Answer(MULTIFOCAL, span.sentence.text)
            diffuse = [other for other, word in answers if word == DIFFUSE]
            if answer == MULTIFOCAL and diffuse:
                return Answer(DIFFUSE, diffuse[0].sentence.text)
            if answer:
                return Answer(answer, span.sentence.text)
        if self._chief.finding == terms.CARDIOMEGALY:
            return self._implied(NOT_APPLICABLE)
        several = next((span for span in self._spans if span.strongest(PLURAL)), None)
        return Answer(MULTIFOCAL, several.sentence.text) if several else self._implied(FOCAL)

    def _is_strewn(self, span: _Span) -> bool:
        """Return whether a span names several lesions of the lung without a zone that contains them all."""
        several = self._chief.finding in _DISCRETE and span.strongest(PLURAL)
        return bool(several) and not span.strongest(LOCATION)

    def pattern(self) -> Answer | None:
        """Return the answer of step 3; None for an atelectasis that is not described as a line ("patchy")."""
        # "Pulmonary nodule" names only the diagnosis; "nodular infiltrate" also names a pattern.
        named = self._named(PATTERN, beside_name=self._chief.finding in (terms.NODULE, terms.MASS))
        if named is None and self._chief.finding == terms.ATELECTASIS and self._is_no_line():
            return None
        implied = self._implied(IMPLIED_PATTERN.get(self._chief.finding, NOT_APPLICABLE))
        return named or (implied if self._chief.present else doubted(implied))

    def _is_no_line(self) -> bool:
        """Return whether an atelectasis is a collapse, or its shadow is called patchy, hazy or the like."""
        name = self._chief.sentence.line[self._chief.start : self._chief.end]
        described = self._named(MORPHOLOGY)
        return "collaps" in name.lower() or (described is not None and described.text == ILL_DEFINED)

    def location(self) -> Answer:
        """Return the answer of step 4."""
        if self._chief.finding == terms.CARDIOMEGALY and not self.linked:
            return self._implied(CARDIAC)
        if named := self._named(LOCATION):
            return named
        if self.distribution().text == DIFFUSE:
            return self._implied(NOT_APPLICABLE)
        return self._implied(IMPLIED_LOCATION.get(self._chief.finding, NOT_APPLICABLE))

    def morphology(self) -> Answer:
        """Return the answer of step 5."""
        return self._named(MORPHOLOGY) or self._implied(NOT_APPLICABLE)

    def density(self) -> Answer | None:
        """Return the answer of step 1 if the report describes the linked opacity in words, else None."""
        for item in self.linked:
            answer = DETECTION.strongest(item.sentence.line, *item.clause)
            if answer:
                return Answer(answer, item.sentence.text)
        return None

    def _named(self, describer: Describer, *, beside_name: bool = False) -> Answer | None:
        for span in self._spans:
            ranges = [(span.first, span.last)]
            if beside_name:
                ranges = [(span.first, span.about[0]), (span.about[1], span.last)]
            for first, last in ranges:
                answer = describer.nearest(span.sentence.line, first, last, about=span.about)
                if answer:
                    return Answer(answer, span.sentence.text)
        return None

    def _implied(self, text: str) -> Answer:
        return Answer(text, self._chief.sentence.text)


def _explained(reading: Reading, chief: Mention) -> list[Mention]:
    """Return the mentions that most likely describe the same lesion as the finding."""
    site = _find_site(chief)
    if chief.sort == "lesion":
        lesions = [item for item in reading.mentions if item.sort == "lesion" and item.present]
        return [item for item in lesions if _may_be_one(chief, item)]
    calcified = [item for item in reading.mentions if item.finding in _CALCIFIED and item.present]
    is_placed_nodule = chief.finding == terms.NODULE and site[0]
    of_nodule = [item for item in calcified if _find_site(item) == site] if is_placed_nodule else []
    return [*_opacities(reading), *of_nodule] if chief.finding in _OF_LUNG else []


def _may_be_one(one: Mention, other: Mention) -> bool:
    """Return whether the zones and sides in the report allow that two mentions have the same site."""
    pairs = zip(_find_site(one), _find_site(other), strict=True)
    return all(not ours or not theirs or bool(ours & theirs) for ours, theirs in pairs)


def _opacities(reading: Reading) -> Iterator[Mention]:
    return (item for item in reading.mentions if item.finding in (terms.OPACITY, terms.LUCENCY) and item.present)


def _find_site(mention: Mention) -> Site:
    phrase, clause = _near(mention)
    zone = clause.strongest(LOCATION)
    return frozenset({zone} if zone else ()), frozenset(_find_sides(phrase))


def _find_sides(span: _Span) -> set[str]:
    searched = span.sentence.line, span.first, span.last
    return {side for side, words in (("left", _LEFT), ("right", _RIGHT)) if words.search(*searched)}


def _near(mention: Mention) -> tuple[_Span, _Span]:
    text, (first, last) = mention.sentence.line, mention.clause
    about = (mention.start, mention.end)
    start = max((match.end() for match in _PHRASE.finditer(text, first, mention.start)), default=first)
    end = min((match.start() for match in _PHRASE.finditer(text, mention.end, last)), default=last)
    clause = _Span(mention.sentence, min(first, mention.start), max(last, mention.end), about)
    return _Span(mention.sentence, start, end, about), clause


def _relative_clause(mention: Mention) -> Iterator[_Span]:
    match = _RELATIVE.match(mention.sentence.line, mention.clause[1])
    if match:
        yield _Span(mention.sentence, match.start(), match.end(), (mention.start, mention.end))


def _sentence_of(mention: Mention) -> _Span:
    return _Span(mention.sentence, 0, len(mention.sentence.line), (mention.start, mention.end))


def _sequels(reading: Reading, mentions: list[Mention]) -> Iterator[_Span]:
    """Yield the sentences that continue a finding ("These most likely represent calcified granulomas.")."""
    for number in dict.fromkeys(item.number + 1 for item in mentions):
        if number < len(reading.sentences) and _SEQUEL.match(reading.sentences[number].line):
            sentence = reading.sentences[number]
            yield _Span(sentence, 0, len(sentence.line), (0, 0))
