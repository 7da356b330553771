"""Every finding that a report names, with its sentence and its assertion status."""

import dataclasses
import re

from stepcot_jax.annotate.rules.assertions import Assertions, Status
from stepcot_jax.annotate.rules.sentences import Sentence, split_sentences
from stepcot_jax.annotate.rules.terms import PNEUMOTHORAX, TERMS, Sort

_ASSOCIATED = re.compile(
    r"\b(?:associated|accompan\w+|also|adjacent|reactive|compressive|secondary(?! to)|underlying)\b", re.I
)
# Up to three words, such as "a small right", may stand between phrase and finding.
_CONCLUDES = re.compile(
    r"\b(?:(?:consistent|compatible) with|findings suggest|impression:|diagnosis:)(?:\s+[\w-]+){0,3}?\s+$", re.I
)
_LONGEST_CONCLUSION = 80
_LIST = re.compile(
    r"(?=.*\bn?or\b)(?:[\s,.;]|\b(?:n?or|and/or|focal|large|acute|definite|visible|significant)\b)*", re.I
)
_OR = re.compile(r"\s*(?:,\s*)?(?:or|versus|vs\.?|over|and/or|/|less likely)\s*(?:[\w-]+\s+){0,3}", re.I)
_NAMES = re.compile(
    "|".join(rf"(?P<t{number}>\b(?:{term.words})\b)" for number, term in enumerate(TERMS)), re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Naming:
    """A name of a finding: characters `start` to `end` of a sentence."""

    finding: str
    sort: Sort
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Mention:
    """A finding that a sentence names.

    Attributes:
      finding: its name in `terms`.
      sort: "diagnosis", "lesion" or "other".
      status: assertion status.
      sentence: the sentence.
      number: index of the sentence in the report.
      start: offset of the name in the sentence's line.
      end: offset one past the name.
      clause: start and end of its clause.
      associated: named as a companion of another finding.
      alternative: the second of two readings ("atelectasis or infiltrate").
      concluded: introduced by a phrase such as "most consistent with".
      denied_wholly: denied altogether, not only as large, focal or new.
    """

    finding: str
    sort: Sort
    status: Status
    sentence: Sentence
    number: int
    start: int
    end: int
    clause: tuple[int, int]
    associated: bool
    alternative: bool
    concluded: bool
    denied_wholly: bool

    @property
    def present(self) -> bool:
        """Whether the finding is stated or likely."""
        return self.status >= Status.LIKELY


@dataclasses.dataclass(frozen=True)
class Reading:
    """A report's sentences and the findings they name, in order."""

    sentences: tuple[Sentence, ...]
    mentions: tuple[Mention, ...]


def read_report(text: str) -> Reading:
    """Read findings and impression of a report.

    >>> [(mention.finding, mention.status.name) for mention in read_report("Small effusion. No mass.").mentions]
    [('Effusion', 'STATED'), ('Mass', 'ABSENT')]
    """
    sentences = split_sentences(text)
    mentions = (mention for number, sentence in enumerate(sentences) for mention in _mentions(sentence, number))
    return Reading(sentences, tuple(mentions))


def find_terms(sentence: str) -> list[Naming]:
    """Return the names of findings in a sentence, in order, asserted or denied."""
    found = []
    for match in _NAMES.finditer(sentence):
        term = TERMS[int(match.lastgroup[1:])]  # type: ignore[index]
        if term.sort != "none":
            found.append(Naming(term.finding, term.sort, match.start(), match.end()))
    return found


def _mentions(sentence: Sentence, number: int) -> list[Mention]:
    named = find_terms(sentence.line)
    if not named:
        return []
    assertions = Assertions(sentence.line)
    routine = _is_routine(sentence.line, named)
    found = []
    for naming in named:
        first, last = assertions.clause(naming.start)
        status = Status.ABSENT if routine else assertions.status(naming.start, naming.end)
        leading = sentence.line[max(0, naming.start - _LONGEST_CONCLUSION) : naming.start]
        concluded = status >= Status.LIKELY and _CONCLUDES.search(leading) is not None
        found.append(
            Mention(
                finding=naming.finding,
                sort=naming.sort,
                status=Status.STATED if concluded else status,
                sentence=sentence,
                number=number,
                start=naming.start,
                end=naming.end,
                clause=(first, last),
                associated=_ASSOCIATED.search(sentence.line, first, last) is not None,
                alternative=_is_alternative(sentence.line, naming, named),
                concluded=concluded,
                denied_wholly=assertions.denies_all(naming.start),
            )
        )
    return found


def _is_routine(text: str, named: list[Naming]) -> bool:
    """Whether a sentence is a bare list such as "Pleural effusion or pneumothorax.", which continues a denial.

    The two findings cannot be alternative readings of one shadow.
    """
    findings = {naming.finding for naming in named}
    if PNEUMOTHORAX not in findings or len(findings) < 2:
        return False
    between, end = [], 0
    for naming in named:
        between.append(text[end : naming.start])
        end = naming.end
    return _LIST.fullmatch(" ".join([*between, text[end:]])) is not None


def _is_alternative(text: str, naming: Naming, named: list[Naming]) -> bool:
    """Whether a finding follows "or" or "versus" as the less likely alternative of the diagnosis before it."""
    ends = [other.end for other in named if other.end <= naming.start and other.sort == "diagnosis"]
    return bool(ends) and _OR.fullmatch(text, max(ends), naming.start) is not None
