"""Questions of four kinds about a grounded image, each with answer, references and thinking that the image bears out.

Design: a record is a function of (seed, image, number of the question). Findings are referred to by their boxes, absent
ones by the region where they would be, a normal chest by its lungs.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from stepcot_jax.data.grounded.choice_questions import ask_multi, ask_single
from stepcot_jax.data.grounded.drafts import (
    Draft,
    absent_in,
    diagnosis_of,
    findings_of,
    pick,
    present_in,
    refer,
    refer_to_region,
)
from stepcot_jax.data.grounded.grounded_image import GroundedImage
from stepcot_jax.data.grounded.regions import BOTH_LUNGS
from stepcot_jax.data.grounded.vocabulary import EXPLAINS, NORMAL, accepted_names, canonical, term_of
from stepcot_jax.data.grounded.wording import PREAMBLE, knows_steps, write_asked_stages, write_stages, write_thinking
from stepcot_jax.data.phantom.phantom_answers import generator
from stepcot_jax.reasoning.record import KINDS, Cue, Kind, VqaBox, VqaRecord

References = Literal["findings", "regions", "both", "none"]
"""What a record's references show, kept as its provenance "references"."""

_CUES: dict[str, Cue] = {"findings": "box", "both": "box", "regions": "text", "none": "image"}
_NORMALITY_SHARE = {True: 0.5, False: 1 / 16}
"""Share of closed questions about normality, of normal images and of others: equal numbers in flat phantoms."""
_PRESENT_SHARE = 8 / 15
"""Share of the other closed questions about abnormal images that ask for a finding that is present: half of all."""

_CLOSED = ("Is there {phrase}?", "Is there any sign of {name}?", "Is {phrase} visible in this picture?")
_NORMALITY = ("Is this chest radiograph normal?", "Is this chest radiograph abnormal?")
_MAIN = (
    "Describe the main abnormality of this chest radiograph.",
    "What is the main abnormality?",
    "What does this chest radiograph show?",
)
_ALL = ("Which abnormalities does this chest radiograph show?", "Name the abnormalities of this chest radiograph.")
_CAUSE = ("What explains the {name}?", "What is the most likely cause of the {name}?")


def ask_questions(image: GroundedImage, *, seed: int) -> tuple[VqaRecord, ...]:
    """Ask one question of each kind about an image.

    A kind is left out if too little is known: a closed question requires an absent label, one with choices four
    options of known truth, an open one a diagnosis or a finding.

    Args:
      image: findings, absent labels, and as far as known regions and facts; with the seven steps and the side among its
        facts, records have stages: of the diagnosis where it is asked about, else of what the question refers to,
        which the fact "asked" then names.
    """
    number = _number_of(image)
    makers: dict[Kind, Callable[[GroundedImage, np.random.Generator], Draft | None]] = {
        "open": _ask_open,
        "closed": _ask_closed,
        "single": ask_single,
        "multi": ask_multi,
    }
    records = []
    for place, kind in enumerate(KINDS):
        rng = generator(seed, number * len(KINDS) + place, stream=7)
        draft = makers[kind](image, rng)
        if draft is not None:
            records.append(_record(image, kind, draft, wording=int(rng.integers(6)), seed=seed))
    return tuple(records)


def _number_of(image: GroundedImage) -> int:
    """Return the phantom's index, or a number made from the image's name."""
    index = image.provenance.get("index", "")
    return int(index) if index.isdecimal() else int(hashlib.sha256(image.id.encode()).hexdigest()[:12], 16)


def _record(image: GroundedImage, kind: Kind, draft: Draft, *, wording: int, seed: int) -> VqaRecord:
    diagnosis = diagnosis_of(image)
    shown = _sort_references(image, (reference.box for reference in draft.references))
    seen = [(VqaBox(reference.region, reference.box.box), reference.seen) for reference in draft.references]
    facts, stages, with_stages = dict(image.facts), None, knows_steps(image.facts)
    if with_stages and draft.asked is None:
        stages = write_stages(facts, answer=draft.spoken, wording=wording)
    elif with_stages:
        places = [(reference.region, reference.seen) for reference in draft.references]
        stages = write_asked_stages(places, asked=draft.asked or "", answer=draft.spoken, wording=wording)
        facts["asked"] = draft.asked or "several findings"
    return VqaRecord(
        id=f"{image.id}_{kind}",
        image_path=image.image_path,
        image_size=image.image_size,
        patient_id=image.patient_id,
        origin=image.origin,
        split=image.split,  # type: ignore[arg-type]
        kind=kind,
        topic=draft.topic,
        question=draft.question,
        choices=draft.choices,
        answer=draft.answer,
        synonyms=draft.synonyms,
        references=tuple(reference.box for reference in draft.references),
        thinking=write_thinking(seen, options=draft.sentences, answer=draft.spoken, wording=wording),
        preamble=PREAMBLE if with_stages else "",
        stages=stages,
        cue=_CUES[shown],
        lesion="" if diagnosis == NORMAL else diagnosis,
        organ=facts.get("organ", ""),
        modality="xray",
        facts=facts,
        provenance={**image.provenance, "maker": "templates", "question_seed": str(seed), "references": shown},
    )


def _sort_references(image: GroundedImage, boxes: Iterable[VqaBox]) -> References:
    regions = {region.label for region in image.regions}
    are_regions = {box.label in regions for box in boxes}
    by_kind: dict[frozenset[bool], References] = {
        frozenset(): "none",
        frozenset([True]): "regions",
        frozenset([False]): "findings",
    }
    return by_kind.get(frozenset(are_regions), "both")


def _ask_closed(image: GroundedImage, rng: np.random.Generator) -> Draft | None:
    diagnosis = image.facts.get("diagnosis")
    if diagnosis and rng.random() < _NORMALITY_SHARE[diagnosis == NORMAL]:
        return _ask_normality(image, rng)
    present, absent = present_in(image), absent_in(image)
    if not absent:
        return None  # "Yes" would be the only answer that it could have
    if present and rng.random() < _PRESENT_SHARE:
        label, answer = pick(rng, present), "Yes"
        references = refer(image, findings_of(image, label), rng)
    else:
        label, answer = pick(rng, absent, [term_of(label).share for label in absent]), "No"
        references = refer_to_region(image, term_of(label).region, f"no {term_of(label).name}")
    term = term_of(label)
    wordings = (*_CLOSED, "Is the heart enlarged?") if term.name == "cardiomegaly" else _CLOSED
    question = pick(rng, wordings).format(phrase=term.phrase, name=term.name)
    is_diagnosis = answer == "Yes" and all(each.label == diagnosis for each in findings_of(image, label))
    asked = None if is_diagnosis else canonical(label)
    return Draft(f"presence of {term.name}", question, answer, answer, references, asked=asked)


def _ask_normality(image: GroundedImage, rng: np.random.Generator) -> Draft:
    is_normal, place = image.facts["diagnosis"] == NORMAL, int(rng.integers(2))
    answer = "Yes" if is_normal == (place == 0) else "No"
    references = refer(image, findings_of(image, image.facts["diagnosis"]), rng)
    references = references or refer_to_region(image, BOTH_LUNGS, "clear lungs")
    return Draft("normality", _NORMALITY[place], answer, answer, references)


def _ask_open(image: GroundedImage, rng: np.random.Generator) -> Draft | None:
    """Ask for the main abnormality, for the cause of a sign that the diagnosis explains, or for all abnormalities."""
    diagnosis, secondary = diagnosis_of(image), image.facts.get("secondary", "")
    if not diagnosis:
        return _ask_for_all(image, rng)
    references = refer(image, findings_of(image, diagnosis), rng)
    references = references or refer_to_region(image, BOTH_LUNGS, "clear lungs")
    answer, *synonyms = accepted_names(diagnosis)
    topic, question = "main abnormality", pick(rng, _MAIN)
    if diagnosis in EXPLAINS.get(secondary, ()) and rng.random() < 0.5:
        topic = f"cause of {term_of(secondary).name}"
        question = pick(rng, _CAUSE).format(name=term_of(secondary).name)
    return Draft(topic, question, answer, answer, references, synonyms=tuple(synonyms))


def _ask_for_all(image: GroundedImage, rng: np.random.Generator) -> Draft | None:
    """Ask for every label of an image without a diagnosis; either order of two is accepted."""
    names = [accepted_names(label)[0] for label in present_in(image)]
    if not names:
        return None
    findings = [finding for label in present_in(image) for finding in findings_of(image, label)]
    answer, reverse = (" and ".join(ordered) for ordered in (names, names[::-1]))
    return Draft("all abnormalities", pick(rng, _ALL), answer, answer, refer(image, findings, rng), synonyms=(reverse,))
