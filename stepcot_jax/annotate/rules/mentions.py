"""Every finding that a report names, with its sentence and its assertion status."""

import dataclasses
import re
from typing import Literal

from stepcot_jax.annotate.rules.assertions import Assertions, Status
from stepcot_jax.annotate.rules.sentences import Sentence, split_sentences
from stepcot_jax.annotate.rules.terms import LESIONS, NO_FINDING, PNEUMOTHORAX, TERMS
from stepcot_jax.chain import DIAGNOSIS_OPTIONS

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
    "|".join(rf"(?P<t{number}>\b(?:{'|'.join(words)})\b)" for number, (_, *words) in enumerate(TERMS)), re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Mention:
    """A finding that a sentence names.

    Attributes:
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
    def sort(self) -> Literal["diagnosis", "lesion", "other"]:
        """A diagnosis of the chain, another lesion, or another abnormality."""
        if self.finding in DIAGNOSIS_OPTIONS:
            return "diagnosis"
        return "lesion" if self.finding in LESIONS else "other"

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


def find_terms(sentence: str) -> list[tuple[str, int, int]]:
    """Return finding, start and end of each name of a finding in a sentence, in order, asserted or denied."""
    named = ((TERMS[int((match.lastgroup or "")[1:])][0], *match.span()) for match in _NAMES.finditer(sentence))
    return [found for found in named if found[0] != NO_FINDING]


def _mentions(sentence: Sentence, number: int) -> list[Mention]:
    line = sentence.line
    named = find_terms(line)
    if not named:
        return []
    assertions = Assertions(line)
    routine = _is_routine(line, named)
    mentions: list[Mention] = []
    for finding, start, end in named:
        clause = assertions.clause(start)
        status = Status.ABSENT if routine else assertions.status(start, end)
        leading = line[max(0, start - _LONGEST_CONCLUSION) : start]
        concluded = status >= Status.LIKELY and _CONCLUDES.search(leading) is not None
        # After "or" or "versus" a finding is the less likely alternative of the diagnosis before it.
        diagnosed = max((item.end for item in mentions if item.end <= start and item.sort == "diagnosis"), default=None)
        mentions.append(
            Mention(
                finding=finding,
                status=Status.STATED if concluded else status,
                sentence=sentence,
                number=number,
                start=start,
                end=end,
                clause=clause,
                associated=_ASSOCIATED.search(line, *clause) is not None,
                alternative=diagnosed is not None and _OR.fullmatch(line, diagnosed, start) is not None,
                concluded=concluded,
                denied_wholly=assertions.denies_all(start),
            )
        )
    return mentions


def _is_routine(text: str, named: list[tuple[str, int, int]]) -> bool:
    """Whether a sentence is a bare list such as "Pleural effusion or pneumothorax.", which continues a denial.

    The two findings cannot be alternative readings of one shadow.
    """
    findings = {finding for finding, _, _ in named}
    if PNEUMOTHORAX not in findings or len(findings) < 2:
        return False
    ends, starts = [0, *(end for _, _, end in named)], [*(start for _, start, _ in named), len(text)]
    between = (text[end:start] for end, start in zip(ends, starts, strict=True))
    return _LIST.fullmatch(" ".join(between)) is not None
