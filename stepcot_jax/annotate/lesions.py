"""What a report says of the one lesion that its diagnosis is about, and which sentence says it.

The words are looked for where they most likely speak of the lesion: in the phrase that names the diagnosis, then in its
clause, then in the sentences about the opacity that the diagnosis explains ("There is a right upper lobe opacity.
Impression: pneumonia."), then in the whole sentence.
"""

import collections
import dataclasses
from collections.abc import Iterator

from stepcot_jax.annotate import descriptions, terms
from stepcot_jax.annotate.assertions import Status
from stepcot_jax.annotate.descriptions import Describer
from stepcot_jax.annotate.places import (
    Place,
    find_sequels,
    find_sides,
    find_site,
    may_share,
    names_two_zones,
    phrase_and_clause,
    relative_clause,
    whole_sentence,
)
from stepcot_jax.annotate.report_reading import Mention, Reading
from stepcot_jax.chain import NOT_APPLICABLE

_MOST_MENTIONS = 30
"""A report that names its finding more often than this says nothing new; looking on would only take time."""

_CALCIFIED = (terms.GRANULOMA, terms.CALCIFICATION)
_DISCRETE = (terms.NODULE, terms.MASS, terms.GRANULOMA)
_OF_LUNG = (terms.NODULE, terms.MASS, terms.ATELECTASIS, terms.INFILTRATION, terms.PNEUMONIA)

IMPLIED_PATTERN = {
    terms.NODULE: descriptions.NODULAR,
    terms.MASS: descriptions.NODULAR,
    terms.GRANULOMA: descriptions.NODULAR,
    terms.PNEUMONIA: descriptions.CONSOLIDATION,
    terms.INFILTRATION: descriptions.CONSOLIDATION,
    terms.ATELECTASIS: descriptions.LINEAR,
}
"""Pattern of a finding whose pattern the report does not name; N/A for the others."""

IMPLIED_LOCATION = {
    terms.EFFUSION: descriptions.PLEURA,
    terms.PNEUMOTHORAX: descriptions.PLEURA,
    terms.CARDIOMEGALY: descriptions.CARDIAC,
}
"""Location of a finding whose place the report does not name, unless it is diffuse; N/A for the others."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer's text and the sentence that supports it."""

    text: str
    sentence: str


class Lesion:
    """The lesion of one finding, with the places of the report that speak of it.

    Args:
      reading: the report.
      chief: the finding.
    """

    def __init__(self, reading: Reading, chief: Mention) -> None:
        self._chief = chief
        least = min(chief.status, Status.LIKELY)
        own = [item for item in reading.mentions if item.finding == chief.finding and item.status >= least]
        own.sort(key=lambda item: (item is not chief, item.number != chief.number))
        own = own[:_MOST_MENTIONS]
        self.linked = _linked(reading, chief)
        explained = self.linked or _explained(reading, chief)[:_MOST_MENTIONS]
        # A sentence that names no other finding is about this one with all its words.
        num_named = collections.Counter(item.number for item in reading.mentions)
        alone = {number for number, count in num_named.items() if count == 1}
        sides = {side for item in own for side in find_sides(item, alone=item.number in alone)}
        self._is_in_two_places = len(sides) > 1 or any(map(names_two_zones, own))
        self._places = [
            *(place for item in own for place in (*phrase_and_clause(item), *relative_clause(item))),
            *(whole_sentence(item) for item in own if item.number in alone),
            *find_sequels(reading, own),
            *(place for item in explained for place in phrase_and_clause(item)),
            *(whole_sentence(item) for item in self.linked if item.number != chief.number),
        ]

    def distribution(self) -> Answer:
        """Answer of step 2."""
        if self._chief.finding == terms.CARDIOMEGALY and not self.linked:
            return self._implied(NOT_APPLICABLE)
        found = [(place, descriptions.DISTRIBUTION.strongest(*place.words)) for place in self._places]
        for place, answer in found:
            if answer == descriptions.FOCAL and (self._is_in_two_places or self._is_strewn(place)):
                return Answer(descriptions.MULTIFOCAL, place.sentence.text)
            diffuse = [other for other, word in found if word == descriptions.DIFFUSE]
            if answer == descriptions.MULTIFOCAL and diffuse:
                return Answer(descriptions.DIFFUSE, diffuse[0].sentence.text)
            if answer:
                return Answer(answer, place.sentence.text)
        if self._chief.finding == terms.CARDIOMEGALY:
            return self._implied(NOT_APPLICABLE)
        several = next((place for place in self._places if descriptions.PLURAL.strongest(*place.words)), None)
        return Answer(descriptions.MULTIFOCAL, several.sentence.text) if several else self._implied(descriptions.FOCAL)

    def _is_strewn(self, place: Place) -> bool:
        """Whether the words name several lesions in a lung and no zone that holds them all."""
        several = self._chief.finding in _DISCRETE and descriptions.PLURAL.strongest(*place.words)
        return bool(several) and not descriptions.LOCATION.strongest(*place.words)

    def pattern(self) -> Answer:
        """Answer of step 3."""
        # "Pulmonary nodule" names the diagnosis, not yet its pattern; "nodular infiltrate" does both.
        named = self._named(descriptions.PATTERN, beside_name=self._chief.finding in (terms.NODULE, terms.MASS))
        return named or self._implied(IMPLIED_PATTERN.get(self._chief.finding, NOT_APPLICABLE))

    def location(self) -> Answer:
        """Answer of step 4."""
        if self._chief.finding == terms.CARDIOMEGALY and not self.linked:
            return self._implied(descriptions.CARDIAC)
        named = self._named(descriptions.LOCATION)
        if named:
            return named
        diffuse = self.distribution().text == descriptions.DIFFUSE
        return self._implied(NOT_APPLICABLE if diffuse else IMPLIED_LOCATION.get(self._chief.finding, NOT_APPLICABLE))

    def morphology(self) -> Answer:
        """Answer of step 5."""
        return self._named(descriptions.MORPHOLOGY) or self._implied(NOT_APPLICABLE)

    def density(self) -> Answer | None:
        """Answer of step 1 where the opacity is described in words; None otherwise."""
        for item in self.linked:
            answer = descriptions.DETECTION.strongest(item.sentence.line, *item.clause)
            if answer:
                return Answer(answer, item.sentence.text)
        return None

    def _named(self, describer: Describer, *, beside_name: bool = False) -> Answer | None:
        for place in self._places:
            spans = [(place.first, place.last)]
            if beside_name:
                spans = [(place.first, place.about[0]), (place.about[1], place.last)]
            for first, last in spans:
                answer = describer.nearest(place.sentence.line, first, last, about=place.about)
                if answer:
                    return Answer(answer, place.sentence.text)
        return None

    def _implied(self, text: str) -> Answer:
        return Answer(text, self._chief.sentence.text)


def _linked(reading: Reading, chief: Mention) -> list[Mention]:
    """The opacities of which the report says that they are consistent with the finding."""
    if not chief.concluded:
        return []
    return [item for item in _opacities(reading) if item.number in (chief.number - 1, chief.number)]


def _explained(reading: Reading, chief: Mention) -> list[Mention]:
    """The opacities that a finding of the lung itself most likely explains.

    A granuloma at the place of a nodule is the nodule; what may be at the place of a lesion that is no diagnosis is it.
    """
    site = find_site(chief)
    if chief.sort == "lesion":
        lesions = [item for item in reading.mentions if item.sort == "lesion" and item.present]
        return [item for item in lesions if may_share(find_site(item), site)]
    calcified = [item for item in reading.mentions if item.finding in _CALCIFIED and item.present]
    is_placed_nodule = chief.finding == terms.NODULE and site[0]
    of_nodule = [item for item in calcified if find_site(item) == site] if is_placed_nodule else []
    return [*_opacities(reading), *of_nodule] if chief.finding in _OF_LUNG else []


def _opacities(reading: Reading) -> Iterator[Mention]:
    return (item for item in reading.mentions if item.finding in (terms.OPACITY, terms.LUCENCY) and item.present)
