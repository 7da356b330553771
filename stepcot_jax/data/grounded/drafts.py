"""Questions before they are records: what is asked, what is referred to, and what is seen there."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepcot_jax.data.grounded.grounded_image import Finding, GroundedImage
from stepcot_jax.data.grounded.regions import HEART
from stepcot_jax.data.grounded.vocabulary import canonical, term_of
from stepcot_jax.data.grounded.wording import describe, knows_steps
from stepcot_jax.reasoning.record import VqaBox


@dataclasses.dataclass(frozen=True)
class Reference:
    """A box that an answer refers to.

    Attributes:
      region: region that the thinking names; the label itself where the source has no regions.
      seen: what is seen there, as the thinking says it.
    """

    box: VqaBox
    region: str
    seen: str


@dataclasses.dataclass(frozen=True)
class Draft:
    """A question with its answer.

    Attributes:
      topic: template that it comes from.
      spoken: the answer as the thinking's last sentence says it.
      sentences: what the thinking says of each option.
      synonyms: further accepted texts of an open answer.
      asked: label that the question is about, "" for several; None for the diagnosis, which the facts describe.
    """

    topic: str
    question: str
    answer: str | tuple[str, ...]
    spoken: str
    references: tuple[Reference, ...] = ()
    choices: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    asked: str | None = None


def diagnosis_of(image: GroundedImage) -> str:
    """Return the diagnosis: of the facts, else the one label that the image has; "" if there is none or several."""
    labels = present_in(image)
    return image.facts.get("diagnosis") or (labels[0] if len(labels) == 1 else "")


def present_in(image: GroundedImage) -> tuple[str, ...]:
    """Return the labels of an image's findings, each once, in alphabetical order."""
    return tuple(sorted({canonical(finding.label) for finding in image.findings}))


def absent_in(image: GroundedImage) -> tuple[str, ...]:
    """Return the labels that the source denies, each finding once, in its order."""
    present = present_in(image)
    return tuple(label for label in dict.fromkeys(map(canonical, image.absent)) if label not in present)


def findings_of(image: GroundedImage, label: str) -> tuple[Finding, ...]:
    """Return the findings of a label or of another name for it."""
    return tuple(finding for finding in image.findings if canonical(finding.label) == canonical(label))


def refer(image: GroundedImage, findings: Sequence[Finding], rng: np.random.Generator) -> tuple[Reference, ...]:
    """Refer to findings: the facts describe a lesion of the diagnosis, its look a secondary sign."""
    wording, references = int(rng.integers(6)), []
    for finding in findings:
        term = term_of(finding.label)
        seen = term.look or f"signs of {term.name}"
        is_lesion = not term.look or (term.region == HEART and finding.region != HEART)  # congestion beside the heart
        if knows_steps(image.facts) and finding.label == image.facts["diagnosis"] and is_lesion:
            seen = describe(image.facts, wording=wording)
        references.append(Reference(VqaBox(finding.label, finding.box), finding.region or finding.label, seen))
    return tuple(references)


def refer_to_region(image: GroundedImage, name: str, seen: str) -> tuple[Reference, ...]:
    """Refer to a region; to nothing if the image has no box of it."""
    box = image.region_box(name)
    return () if box is None else (Reference(VqaBox(name, box), name, seen),)


def pick(rng: np.random.Generator, items: Sequence[Any], shares: Sequence[float] | None = None) -> Any:
    """Draw one of the items, each with its share."""
    cumulative = np.cumsum(np.ones(len(items)) if shares is None else shares)
    return items[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))]
