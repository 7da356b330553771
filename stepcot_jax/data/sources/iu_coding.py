"""The experts' coding of IU X-Ray (MeSH and RadLex headings with qualifiers) as answers of the chain.

A heading is a finding with qualifiers, such as "Nodule/lung/upper lobe/right". The mapping is literal; the diagnoses
were mapped before any rule was tuned. `iu_coding.json` has the tables:

- diagnoses: only a heading that names one implies it. Patterns that several share (opacity, consolidation), signs
  (enlarged cardiac shadow, blunted angle) and a calcified granuloma, which the coders distinguish, imply none.
- lesions: steps 2 to 5 are about the headings of the diagnosis and every lesion with the same location; without a
  diagnosis, about the lesions if all have one location. A step is annotated if these name exactly one answer.
- locations: lobes as zones of a frontal radiograph; "thorax" and "lung" alone are none.
- distribution: diffuse before multifocal before focal; else one side is focal, both or two locations multifocal.
- patterns: the coders write "round", a shape, for "nodular". No heading codes a sharp or a spiculated margin.
- secondary: findings beside the diagnosis; of none N/A, of several not annotated.
- detection: lucent and dense headings together are mixed; an enlarged heart is neither.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, NOT_APPLICABLE, fold

_TABLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
DIAGNOSES: dict[str, list[str]] = _TABLES["diagnoses"]
LESIONS = frozenset({*DIAGNOSES, *_TABLES["lesions"]} - {"normal", "cardiomegaly"})
OUTSIDE_LUNG = frozenset(_TABLES["outside_lung"])  # qualifiers of a calcification, a lucency or a density elsewhere
SIDES = frozenset({"left", "right"})
ONE_SIDED = frozenset({"lingula", "middle lobe"})
FOCAL, DIFFUSE, MULTIFOCAL = frozenset({"focal"}), frozenset({"diffuse"}), frozenset(_TABLES["multifocal"])
LOCATIONS, PATTERNS, MORPHOLOGIES = (
    {word: answer for answer, words in _TABLES[name].items() for word in words}
    for name in ("locations", "patterns", "morphologies")
)
SECONDARY: list[list[str]] = _TABLES["secondary"]  # heading, qualifier ("" for any) and answer
LUCENT = frozenset(_TABLES["lucent"])
DENSE = (LESIONS | {"pulmonary edema"}) - LUCENT
_Heading = tuple[str, ...]


def read_coding(mesh: Sequence[str]) -> tuple[int, ...]:
    """Return the labels of the steps of `DEFAULT_CHAIN` that the major headings of a report imply."""
    headings = [tuple(fold(part) for part in heading.split("/")) for heading in mesh]
    named = {diagnosis for heading in headings for diagnosis in DIAGNOSES.get(heading[0], ())}
    if len(named) > 1 or ("Normal" in named and len(headings) > 1):
        return (NOT_ANNOTATED,) * DEFAULT_CHAIN.num_steps
    if "Normal" in named:
        return _labels("No abnormality", *[NOT_APPLICABLE] * 5, "Normal")
    diagnosis = next(iter(named), None)
    lesions = _described(headings, diagnosis)
    qualifiers = {qualifier for heading in lesions for qualifier in heading[1:]}
    return _labels(
        _detection(headings),
        _distribution(lesions, qualifiers),
        _only({PATTERNS[word] for heading in lesions for word in heading if word in PATTERNS}),
        _only({LOCATIONS[word] for word in qualifiers if word in LOCATIONS}),
        _only({MORPHOLOGIES[word] for heading in lesions for word in heading if word in MORPHOLOGIES}),
        _secondary(headings) if diagnosis else None,
        diagnosis,
    )


def _labels(*answers: str | None) -> tuple[int, ...]:
    return tuple(
        NOT_ANNOTATED if answer is None else step.options.index(answer)
        for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True)
    )


def _only(answers: Collection[str]) -> str | None:
    return next(iter(answers)) if len(answers) == 1 else None


def _described(headings: Sequence[_Heading], diagnosis: str | None) -> list[_Heading]:
    """Return the headings of the lesion that steps 2 to 5 describe."""
    lesions = [item for item in headings if item[0] in LESIONS and not OUTSIDE_LUNG.intersection(item[1:])]
    if diagnosis is None:
        return lesions if len({_location(item) for item in lesions}) == 1 else []
    named = [item for item in lesions if diagnosis in DIAGNOSES.get(item[0], ())]
    locations = {_location(item) for item in named}
    return [item for item in lesions if item in named or _location(item) in locations]


def _location(heading: _Heading) -> frozenset[str]:
    words = {LOCATIONS.get(word, word) for word in heading[1:] if word in LOCATIONS or word in SIDES}
    return frozenset(words | {word for word in heading[1:] if word in MULTIFOCAL})


def _distribution(lesions: Sequence[_Heading], qualifiers: Collection[str]) -> str | None:
    words = set(qualifiers)
    if words & DIFFUSE:
        return "Diffuse"
    if words & MULTIFOCAL or words >= SIDES or len({_location(item) for item in lesions if _location(item)}) > 1:
        return "Multifocal"
    return "Focal" if words & (FOCAL | SIDES | ONE_SIDED) else None


def _secondary(headings: Sequence[_Heading]) -> str | None:
    effects = {
        answer
        for heading in headings
        for name, qualifier, answer in SECONDARY
        if name in heading and (not qualifier or qualifier in heading)
    }
    return _only(effects) if effects else NOT_APPLICABLE


def _detection(headings: Sequence[_Heading]) -> str | None:
    names = {heading[0] for heading in headings if not OUTSIDE_LUNG.intersection(heading[1:])}
    lucent, dense = bool(names & LUCENT), bool(names & DENSE)
    if not lucent and not dense:
        return None
    if lucent and dense:
        return "Mixed"
    return "Decreased opacity" if lucent else "Increased opacity"
