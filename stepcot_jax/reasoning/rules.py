"""The knowledge base: rules for each diagnosis in three wordings, their retrieval, and a search for rules in texts."""

import csv
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepcot_jax.chain import fold

PRESENCE = "presence of "
"""Start of the topic of questions of presence; the finding's name follows."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A statement of medical knowledge about a finding, and the words of a description that go with the finding."""

    finding: str
    statement: str
    source: str
    # Signs are separated by ";". The words of one all stand in one clause; "/" separates alternatives, "*" ends a stem.
    signs: str = ""  # of which a description of the finding has at least one; "" if no sign is known
    against: str = ""  # which exclude it
    place: str = ""  # one word for each place where it lies; a localisation there supports it too

    @functools.cached_property
    def key(self) -> str:
        """The finding, folded."""
        return fold(self.finding)


ANY_SIGN = "any sign"
ENTRIES = tuple(
    Entry(**row)
    for row in csv.DictReader(Path(__file__).with_name("knowledge.csv").read_text(encoding="utf-8").splitlines())
)
"""The entries of `knowledge.csv`, three for each diagnosis; the signs of a finding stand in its first."""

_BY_FINDING: dict[str, tuple[str, ...]] = {
    finding: tuple(entry.statement for entry in ENTRIES if entry.finding == finding)
    for finding in dict.fromkeys(entry.finding for entry in ENTRIES)
}
KNOWLEDGE = {finding: statements for finding, statements in _BY_FINDING.items() if finding != ANY_SIGN}
"""One rule for each diagnosis in three wordings (MEDSAGE's templates T); none names the diagnosis."""

SIGN_RULES = _BY_FINDING[ANY_SIGN]
"""The rule for signs that are no diagnosis, and for several findings, in three wordings."""

_FOLDED = {diagnosis: tuple(map(fold, wordings)) for diagnosis, wordings in KNOWLEDGE.items()}
_DIAGNOSES = {fold(diagnosis): diagnosis for diagnosis in KNOWLEDGE} | {fold("No abnormality"): "Normal"}


def find_rules(text: str) -> frozenset[str]:
    """Return the diagnoses whose rule a text states, in one of the table's wordings.

    >>> find_rules("So:  air outside the lung leaves a zone without vessels beyond the lung's border.")
    frozenset({'Pneumothorax'})
    """
    folded = fold(text)
    return frozenset(
        diagnosis for diagnosis, wordings in _FOLDED.items() if any(wording in folded for wording in wordings)
    )


_WORD = re.compile(r"[^\W\d_]{4,}")


def retrieve(entries: Sequence[Entry], *, names: Sequence[str], seen: str) -> tuple[Entry, ...]:
    """Return the entries about the first of the names that has any, else about any sign.

    Users' own come before the package's, and those that share most words with a text before others.
    """
    words, chosen = set(_WORD.findall(fold(seen))), list[Entry]()
    for name in (*map(fold, names), ANY_SIGN):
        chosen = chosen or [entry for entry in entries if entry.key == name]
    shared = {entry: len(words.intersection(_WORD.findall(fold(entry.statement)))) for entry in chosen}
    return tuple(sorted(chosen, key=lambda entry: (entry in ENTRIES, -shared[entry])))


def ruled_diagnosis(facts: Mapping[str, str]) -> str:
    """Return the diagnosis of a record's facts as the table names it; "" if it is not known or has no rule."""
    return _DIAGNOSES.get(fold(facts.get("diagnosis", "")), "")
