"""Checks of reports and annotations for any annotator; each failure has a named `Reason`.

The checks work for any chain: a rule about an answer applies if the chain offers that answer.
"""

import re
from collections.abc import Sequence

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Reason, Report
from stepcot_jax.annotate.rules.annotator import URGENCY, find_asserted, is_contradicted
from stepcot_jax.annotate.rules.mentions import Status, read_report, split_sentences
from stepcot_jax.chain import NOT_ANNOTATED, NOT_APPLICABLE, Chain, fold

_NONE = fold("No abnormality")
_NORMAL = fold("Normal")
_SAME_FINDING = {"effusion": "pleural effusion", "pneumothorax": "pneumothorax", "cardiomegaly": "cardiomegaly"}
"""Diagnoses that are secondary effects too; a diagnosis is not its own effect."""

_DENSE_DIAGNOSES = frozenset(fold(name) for name in URGENCY) - {"pneumothorax", "cardiomegaly"}
_LUCENT, _DENSE = fold("Decreased opacity"), fold("Increased opacity")

_QUOTED = re.compile(r'"([^"]{1,2000})"')
_ELLIPSIS = re.compile(r"\s*(?:\.\.\.|\[\.\.\.\])\s*")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)")
_STEP_NUMBER = re.compile(r"\bsteps?\s+\d+(?:\s*(?:,|-|to|and|through)\s*\d+)*", re.IGNORECASE)
_LEFT = re.compile(r"\b(?:left\w*|LUL|LLL|lingul\w+)\b", re.IGNORECASE)
_RIGHT = re.compile(r"\b(?:right-?(?:sided)?|RUL|RML|RLL)\b", re.IGNORECASE)
_BOTH = re.compile(r"\b(?:bilateral\w*|both|bi-?(?:bas|apic)\w+|bases|apices|hemidiaphragms)\b", re.IGNORECASE)
_PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-"})


def check_report(report: Report) -> None:
    """Require a report with findings or impression and a frontal image."""
    if not split_sentences(report.text):
        raise CannotAnnotate(Reason.NO_REPORT, "no sentence in findings or impression")
    if not report.images:
        raise CannotAnnotate(Reason.NO_FRONTAL_IMAGE, "the source names none")


def check_annotation(report: Report, annotation: Annotation, *, chain: Chain) -> None:
    """Require an annotation with a diagnosis that is consistent and supported by its report.

    Steps before the diagnosis may stay open; a step without an answer has no reasoning.
    """
    labels = annotation.labels
    if len(labels) != chain.num_steps:
        raise CannotAnnotate(Reason.INVALID_STEP, f"{len(labels)} answers for {chain.num_steps} steps")
    for step, label, reasoning in zip(chain.steps, labels, annotation.reasoning, strict=True):
        is_open = label == NOT_ANNOTATED and step is not chain.steps[-1] and not reasoning
        if not is_open and not 0 <= label < step.num_answers:
            raise CannotAnnotate(Reason.INVALID_STEP, f"step {step.name!r}: {label} is not a label")
    check_consistency(labels, chain=chain)
    words = _plain(report.text)
    for step, reasoning in zip(chain.steps, annotation.reasoning, strict=True):
        problem = _find_foreign_words(_plain(reasoning), words)
        if problem:
            raise CannotAnnotate(Reason.REASONING_NOT_IN_REPORT, f"step {step.name!r}: {problem}")
    _check_diagnosis(report, fold(chain.steps[-1].options[labels[-1]]))


def check_consistency(labels: Sequence[int], *, chain: Chain) -> None:
    """Require labels, one per step, that do not contradict each other; steps not annotated are ignored."""
    answers = [
        "" if label == NOT_ANNOTATED else fold(step.options[label])
        for step, label in zip(chain.steps, labels, strict=True)
    ]
    detection, between, diagnosis = answers[0], answers[1:-1], answers[-1]
    offers_none = _NONE in map(fold, chain.steps[0].options)
    offers_normal = _NORMAL in map(fold, chain.steps[-1].options)
    is_known = bool(detection and diagnosis)
    if is_known and offers_none and offers_normal and (detection == _NONE) != (diagnosis == _NORMAL):
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{detection!r} contradicts the diagnosis {diagnosis!r}")
    if detection == _NONE or diagnosis == _NORMAL:
        for step, answer in zip(chain.steps[1:-1], between, strict=True):
            if fold(NOT_APPLICABLE) in map(fold, step.options) and answer not in ("", fold(NOT_APPLICABLE)):
                raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"step {step.name!r}: {answer!r} in a normal chest")
    if _SAME_FINDING.get(diagnosis) in between:
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{diagnosis!r} is the diagnosis and its own effect")
    lucent = diagnosis == "pneumothorax"
    if (lucent and detection == _DENSE) or (diagnosis in _DENSE_DIAGNOSES and detection == _LUCENT):
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{detection!r} contradicts the diagnosis {diagnosis!r}")


def _find_foreign_words(reasoning: str, report: str) -> str:
    """Return what a reasoning cites although the report lacks it, or ""."""
    for quote in _QUOTED.findall(reasoning):
        if not all(part.strip(" .,;:") in report for part in _ELLIPSIS.split(quote)):
            return "it quotes words that the report does not have"
    told = _STEP_NUMBER.sub(" ", reasoning)
    numbers = set(_NUMBER.findall(told)) - set(_NUMBER.findall(report))
    if numbers and told.strip(" .") not in report:
        return f"it names the number {min(numbers)}, which the report does not have"
    both = _BOTH.search(report) is not None
    for side, pattern in (("left", _LEFT), ("right", _RIGHT)):
        if pattern.search(reasoning) and not pattern.search(report) and not both:
            return f"it names the {side} side, which the report does not have"
    return ""


def _check_diagnosis(report: Report, diagnosis: str) -> None:
    finding = next((name for name in URGENCY if fold(name) == diagnosis), None)
    if finding is None and diagnosis != _NORMAL:
        return
    reading = read_report(report.text)
    if finding is None:
        asserted = find_asserted(reading, {mention.finding for mention in reading.mentions})
        if asserted is not None:
            raise CannotAnnotate(Reason.NOT_NORMAL, asserted.finding.lower())
        return
    named = [mention for mention in reading.mentions if mention.finding == finding]
    if is_contradicted(reading, finding):
        raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"the report asserts and denies {diagnosis}")
    if any(mention.denied_wholly for mention in named) and all(mention.status == Status.ABSENT for mention in named):
        raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"the report denies {diagnosis}")


def _plain(text: str) -> str:
    return fold(text.translate(_PLAIN))
