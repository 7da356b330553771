"""Short radiology reports, FINDINGS and IMPRESSION, from the answers of a chain or from replies about one image."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, NOT_APPLICABLE, YES_NO, Chain, fold
from stepcot_jax.data.phantom.answers import WORDINGS, name_side
from stepcot_jax.data.questions.vocabulary import FACT_NAMES, NORMAL, accepted_names
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.reasoning.replies import BOX, IN_ROUND_BRACKETS
from stepcot_jax.reasoning.rules import PRESENCE
from stepcot_jax.reasoning.thinking import in_words
from stepcot_jax.record import Record

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_OF_NOTHING_SEEN = re.compile(
    r"\banswer\b|^(?:each )?option\b|^boxes:|^the place is\b|^i look (?:at|over) the [^:]*$", re.IGNORECASE
)
_LOOK = re.compile(r"^I look at the (.+?)(?: and see| where I see| which shows|:) ")
_PLACES = ("zone", "pattern")  # topics whose answers are no impression
_MARKS = re.compile(r"\*\*|\{[^{}]*\}|</?[A-Za-z]+>")


@dataclasses.dataclass(frozen=True)
class WrittenReport:
    """A report in two sections; "" for one that nothing is known for."""

    findings: str
    impression: str

    def __str__(self) -> str:
        """Return the sections that are not empty, each after its head."""
        sections = {"FINDINGS": self.findings, "IMPRESSION": self.impression}
        return " ".join(f"{head}: {text}" for head, text in sections.items() if text)


NORMAL_REPORT = WrittenReport(
    "The lungs are clear. There is no focal consolidation, pleural effusion or pneumothorax. The heart is of normal "
    "size.",
    "No acute cardiopulmonary abnormality.",
)
"""What a report says of a normal chest: written for a normal reading, and the constant that models are held against."""


def write_chain_report(chain: Chain, labels: Sequence[int]) -> WrittenReport:
    """Write the answers of a chain; steps without an answer, or that do not apply, are left out."""
    options = [
        step.options[label] if label != NOT_ANNOTATED else "" for step, label in zip(chain.steps, labels, strict=True)
    ]
    if [step.options for step in chain.steps] == [step.options for step in DEFAULT_CHAIN.steps]:
        return _write_published(dict(zip(FACT_NAMES, options, strict=True)))
    told = [f"{step.name}: {option}." for step, option in zip(chain.steps, options, strict=True) if _applies(option)]
    last = [told.pop().partition(": ")[2]] if told and _applies(options[-1]) else []
    return WrittenReport(" ".join(told), "".join(last))


def _write_published(facts: Mapping[str, str]) -> WrittenReport:
    if facts["diagnosis"] == NORMAL:
        return NORMAL_REPORT
    found = [next(iter(table.get(facts[name], ())), "") for name, table in zip(FACT_NAMES, WORDINGS, strict=True)]
    detection, distribution, pattern, zone, morphology, secondary, _ = found
    nature = " and ".join(filter(None, (pattern, morphology)))
    what = f"{distribution} {detection}".split()
    place = name_side(zone, "").split() if facts["zone"] != NOT_APPLICABLE else []
    lesion = " ".join([*(what or ["an abnormality"]), *place, *(["with", nature] if nature else [])])
    is_described = bool(what or place or nature)
    sentences = [f"There is {lesion}." if is_described else "", f"{secondary}." if secondary else ""]
    diagnosis = accepted_names(facts["diagnosis"])[0] if facts["diagnosis"] else ""
    return WrittenReport(" ".join(filter(None, sentences)), f"{_capital(diagnosis)}." if diagnosis else "")


def _applies(option: str) -> bool:
    return bool(option) and fold(option) != fold(NOT_APPLICABLE)


def write_reply_report(records: Sequence[Record], replies: Mapping[str, str], dialect: str) -> WrittenReport:
    """Write what replies about one image see and answer.

    Findings are the sentences of their thinking, or of MEDSAGE's visual analysis, without boxes, options and the answer
    itself. The impression has the answers in words: open ones, right options, and findings that are affirmed or denied.
    """
    findings, impression = dict[str, None](), dict[str, None]()
    for record in records:
        reply = read_reply(replies.get(record.id, ""), dialect)
        seen = reply.stages.get("visual", "") or reply.thinking
        findings |= dict.fromkeys(map(_capital, filter(None, map(_clean, _SENTENCE.split(seen)))))
        impression |= dict.fromkeys(_say_answer(record, interpret_answer(reply, record)))
    return WrittenReport(" ".join(findings), " ".join(impression))


def _clean(sentence: str) -> str:
    """Return a sentence without marks and boxes; "" if it is about the answer, or names a place and nothing else."""
    bare = _MARKS.sub("", BOX.sub("", IN_ROUND_BRACKETS.sub("", sentence)))
    bare = re.sub(r"\s+([.,;:])", r"\1", " ".join(bare.split()))
    bare = _LOOK.sub(lambda look: "" if look[0].endswith(": ") else f"{look[1]}: ", bare)
    return "" if _OF_NOTHING_SEEN.search(bare) or not re.search(r"[A-Za-z]", bare) else f"{bare.rstrip('.')}."


def _say_answer(record: Record, answer: str | tuple[str, ...] | None) -> list[str]:
    if answer is None:
        return []
    if record.kind == "open":
        return [f"{_capital(str(answer)).rstrip('.')}."]
    if record.kind == "closed":
        finding = record.topic.removeprefix(PRESENCE) if record.topic.startswith(PRESENCE) else ""
        said = {YES_NO[0]: finding, YES_NO[1]: f"no {finding}"}.get(fold(str(answer)), "") if finding else ""
        return [f"{_capital(said)}."] if said else []
    return [] if record.topic in _PLACES else [f"{_capital(text)}." for text in sorted(in_words(answer, record))]


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
