"""Variants of questions for audits: the same question about other pictures, and after other thinkings.

A variant is a record of its own, whose provenance names the variant and the question that it is made of.
"""

import bisect
import collections
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from jaxtyping import UInt8

from stepcot_jax.chain import fold
from stepcot_jax.data.phantom.findings import remove_findings
from stepcot_jax.data.phantom.phantom import PhantomCase, PlannedCase, draw_planned, plan_case
from stepcot_jax.data.questions.making import list_absent
from stepcot_jax.data.questions.vocabulary import NORMAL, TERMS, canonical
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.rules import PRESENCE
from stepcot_jax.reasoning.thinking import (
    Thinking,
    can_say,
    in_words,
    read_thinking,
    say,
    shorten,
    subject_of,
    turn_claim,
)
from stepcot_jax.record import Record

OWN, DONOR, NOISE, GREY = "own picture", "a donor's picture", "noise", "grey"
WITHOUT_CLAIMED, WITHOUT_OTHER = "without the claimed finding", "without another finding"
LOOKS, COUNTERFACTUAL = (OWN, DONOR, NOISE, GREY), (WITHOUT_CLAIMED, WITHOUT_OTHER)
THINKS = ("own thinking", "own, first half", "a donor's thinking", "own, one claim turned")
OWN_THINKING, FIRST_HALF, DONATED, TURNED = THINKS

VARIANT, MADE_OF, DONATED_BY, AGREE = "audit_variant", "audit_of", "audit_donor", "audit_agree"
CONDITION = "audit_condition"
"""Names in the provenance: variant, ids of question and donor, share of donors that agree anyway, how a thinking was
given."""

Pixels = UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]
_LABELS = {term.name: label for label, term in TERMS.items()}


def make_variant(record: Record, variant: str, **made: str) -> Record:
    """Return a question as a record of its own, without the true reasoning."""
    known = ("source", "seed", "index", "prevalence", "references")
    kept = {name: record.provenance[name] for name in known if name in record.provenance}
    return msgspec.structs.replace(
        record,
        id=record.id if variant == OWN else f"{record.id}|{variant}",
        thinking="",
        preamble="",
        stages=None,
        provenance={**kept, VARIANT: variant, MADE_OF: record.id, **made},
    )


def choose_donor(record: Record, others: Iterable[Record]) -> Record | None:
    """Return one of other records, drawn by a hash of both; None without any."""
    return min(others, key=lambda other: _hash(f"{record.id}{record.image}\n{other.id}{other.image}"), default=None)


def swap_pictures(records: Iterable[Record], among: Iterable[Record], digest: Callable[[str], str]) -> list[Record]:
    """Return questions with another patient's picture: of the same modality and organ, or modality, where one is.

    The pictures of a group stand in a circle, ordered by a hash; a question gets the next one of another patient whose
    `digest` is another. Questions without such a picture are left out.
    """
    groups = collections.defaultdict(set)
    for each in among:
        for group in _list_groups(each):
            groups[group].add((_hash(each.image), each.image, each.patient))
    circles, swapped = {group: sorted(shown) for group, shown in groups.items()}, list[Record]()
    for record in records:
        own = _hash(record.image), record.image, record.patient
        turned = (
            circle[(start + step) % len(circle)]
            for circle in map(circles.__getitem__, _list_groups(record))
            for start in [bisect.bisect(circle, own)]
            for step in range(len(circle))
        )
        others = (image for _, image, patient in turned if patient != record.patient)
        other = next((image for image in others if digest(image) != digest(record.image)), None)
        swapped += [msgspec.structs.replace(record, image=other)] if other else []
    return swapped


def _list_groups(record: Record) -> tuple[tuple[str, ...], ...]:
    """Return the groups of a picture, the narrowest first; a lesion's organ may be what a question asks for."""
    return (record.modality, "" if record.lesion else record.organ), (record.modality,), ()


def group_subjects(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Return the records that ask the same, by subject."""
    groups = collections.defaultdict(list)
    for record in records:
        groups[subject_of(record)].append(record)
    return groups


def make_noise(pixels: Pixels, name: str) -> Pixels:
    """Return independent noise with the picture's mean and deviation, a function of the name."""
    rng = np.random.default_rng(int.from_bytes(_hash(name)[:8]))
    drawn = rng.normal(pixels.mean(), pixels.std(), pixels.shape[:2])
    return _as_like(np.clip(np.rint(drawn), 0, 255).astype(np.uint8), pixels)


def vary_picture(
    record: Record, *, among: Sequence[Record], load: Callable[[Record], Pixels]
) -> Iterator[tuple[Record, Pixels]]:
    """Yield the variants of a question that show another picture, its own first; `among` are possible donors."""
    pixels = load(record)
    yield make_variant(record, OWN), pixels
    truth, options = in_words(record.answer, record), set(map(fold, record.options))
    said = {other.id: in_words(other.answer, other) for other in among if other.patient != record.patient}
    if record.kind == "multi":  # what a donor shows beyond this question's options is no part of its answer
        said = {name: words & options for name, words in said.items()}
    donor = choose_donor(record, [other for other in among if said.get(other.id, truth) != truth])
    if donor is not None:
        yield make_variant(record, DONOR, **{DONATED_BY: donor.id}), load(donor)
    yield make_variant(record, NOISE), make_noise(pixels, record.image)
    yield make_variant(record, GREY), np.full_like(pixels, round(float(pixels.mean())))
    yield from _remove_marks(record, pixels)


def _remove_marks(record: Record, pixels: Pixels) -> Iterator[tuple[Record, Pixels]]:
    """Yield a phantom without the finding that a question of presence claims, and without another one."""
    planned = plan_again(record.provenance)
    if planned is None or record.answer != "Yes":
        return
    label = _LABELS.get(record.topic.removeprefix(PRESENCE), "")
    own = draw_planned(planned, size=len(pixels))
    if label in ("", NORMAL) or not np.array_equal(own.image, pixels if pixels.ndim == 2 else pixels[..., 0]):
        return
    drawn = draw_without(planned, label, size=len(pixels))
    if label in list_absent(drawn.boxes):  # no other finding looks like it
        made = msgspec.structs.replace(make_variant(record, WITHOUT_CLAIMED), answer="No", references=())
        yield made, _as_like(drawn.image, pixels)
    other = min({canonical(mark.box.label) for mark in own.marks} - {canonical(label)}, default="")
    if other:
        drawn = draw_without(planned, other, size=len(pixels))
        if any(canonical(mark.box.label) == canonical(label) for mark in drawn.marks):
            yield make_variant(record, WITHOUT_OTHER, audit_removed=other), _as_like(drawn.image, pixels)


def _as_like(drawn: UInt8[np.ndarray, "height width"], pixels: Pixels) -> Pixels:
    return drawn if pixels.ndim == 2 else np.repeat(drawn[..., None], 3, axis=2)


def plan_again(provenance: Mapping[str, str]) -> PlannedCase | None:
    """Return the plan of a record's phantom; None for another source."""
    if provenance.get("source") != "phantom":
        return None
    try:
        seed, index = int(provenance["seed"]), int(provenance["index"])
        return plan_case(index, seed=seed, prevalence=provenance["prevalence"])  # type: ignore[arg-type]
    except (KeyError, ValueError, BadInput):
        return None


def draw_without(planned: PlannedCase, label: str, *, size: int) -> PhantomCase:
    """Draw a planned phantom without any mark of a finding; all other pixels, noise and exposure stay."""
    scene = remove_findings(planned.scene, lambda other: canonical(other) == canonical(label))
    return draw_planned(dataclasses.replace(planned, scene=scene), size=size)


def vary_thinking(
    records: Sequence[Record], replies: Mapping[str, str], dialect: str
) -> Iterator[tuple[Record, Thinking]]:
    """Yield variants of answered questions, each with the thinking that its answer is to follow."""
    read = {record.id: read_thinking(replies.get(record.id, ""), record, dialect) for record in records}
    given = {name: thinking for name, thinking in read.items() if thinking is not None}
    said = {record.id: say(replies[record.id], record, dialect) for record in records if record.id in given}
    groups = group_subjects([record for record in records if record.id in given])
    for record in (record for record in records if record.id in given):
        words, own = said[record.id], given[record.id]
        others = [other for other in groups[subject_of(record)] if other.patient != record.patient]
        differing = [other for other in others if said[other.id] != words and can_say(said[other.id], record)]
        donor = choose_donor(record, differing)
        yield make_variant(record, OWN_THINKING), own
        half = shorten(own)
        if half is not None:
            yield make_variant(record, FIRST_HALF), half
        if donor is not None:
            agree = sum(said[other.id] == words for other in others) / len(others)
            made = {DONATED_BY: donor.id, AGREE: f"{agree:.6f}"}
            yield make_variant(record, DONATED, **made), given[donor.id]
        turned = turn_claim(own)
        if turned is not None:
            yield make_variant(record, TURNED), turned


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
