"""Map findings of other collections to answers of the chain, without guessing.

A normal image answers all seven steps, another one the first by density and the last if it has one diagnosis.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, NOT_APPLICABLE

NORMAL = DIAGNOSIS_OPTIONS[0]
_NO_ABNORMALITY, _INCREASED, _DECREASED, _MIXED = DEFAULT_CHAIN.steps[0].options
_DETECTION, _DIAGNOSIS = 0, DEFAULT_CHAIN.num_steps - 1


@dataclasses.dataclass(frozen=True)
class Finding:
    """A collection's finding in terms of the chain."""

    diagnosis: str = ""  # one of the nine; "" if it is none of them
    density: Literal["", "increased", "decreased"] = ""  # of the lungs; "" if unknown


DIAGNOSES: dict[str, Finding] = {
    **{name: Finding(name, "increased") for name in DIAGNOSIS_OPTIONS if name != NORMAL},
    "Cardiomegaly": Finding("Cardiomegaly"),
    "Pneumothorax": Finding("Pneumothorax", "decreased"),
}
"""The eight abnormal diagnoses as findings."""

Answers = tuple[tuple[int, ...], tuple[str, ...]]
"""Labels of `DEFAULT_CHAIN`, and the reason for each that is annotated."""


def answer_normal(reason: str) -> Answers:
    """Return the answers of an image without abnormal findings."""
    middle = (NOT_APPLICABLE,) * (DEFAULT_CHAIN.num_steps - 2)
    return _answer((_NO_ABNORMALITY, *middle, NORMAL), reason)


def answer_findings(findings: Iterable[Finding], *, diagnosis: str, reason: str) -> Answers:
    """Return the answers of an image with abnormal findings; `diagnosis` is "" if there are none or several."""
    densities = {finding.density for finding in findings} - {""}
    answers = [""] * DEFAULT_CHAIN.num_steps
    if densities:
        by_density = {"increased": _INCREASED, "decreased": _DECREASED}
        answers[_DETECTION] = _MIXED if len(densities) > 1 else by_density[densities.pop()]
    answers[_DIAGNOSIS] = diagnosis
    return _answer(answers, reason)


def _answer(answers: Sequence[str], reason: str) -> Answers:
    labels = tuple(
        step.options.index(answer) if answer else NOT_ANNOTATED
        for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True)
    )
    return labels, tuple(reason if answer else "" for answer in answers)
