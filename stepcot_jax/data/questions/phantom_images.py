"""Phantoms as grounded images: findings with their regions, region boxes from masks, absent labels and facts."""

import collections
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.phantom.answers import Prevalence
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import PhantomCase, PlannedCase, check_size, draw_planned, plan_case
from stepcot_jax.data.questions.vocabulary import (
    FACT_NAMES,
    HEART,
    LOOK_ALIKES,
    MEDIASTINUM,
    TERMS,
    Mask,
    canonical,
    diaphragm_name,
    enclose_boxes,
    find_regions,
    hilum_name,
    host_organ,
    split_lungs,
    zone_name,
)
from stepcot_jax.record import Record

_LEAST_SIZE = 32
_MOST_BOXES = 3
_SIDELESS = "Cardiac"
_SIDES = {-1: "right", 1: "left"}
_ZONES = {"Upper lung zone": "upper", "Middle lung zone": "middle", "Lower lung zone": "lower"}


def ground_phantom(
    index: int, *, seed: int = 0, size: int = 64, prevalence: Prevalence = "flat"
) -> tuple[Record, PhantomCase]:
    """Draw a phantom and return it as a grounded image, and the drawn case."""
    return ground_planned(plan_case(index, seed=seed, prevalence=prevalence), size=size, prevalence=prevalence)


def ground_planned(planned: PlannedCase, *, size: int, prevalence: Prevalence = "flat") -> tuple[Record, PhantomCase]:
    """Draw a planned phantom as `ground_phantom` does; `prevalence` is the one it was planned with."""
    check_size(size, least=_LEAST_SIZE)
    drawn = draw_planned(planned, size=size)
    image = ground_marks(drawn.case, drawn.marks, side=drawn.side, lungs=drawn.lung_mask, heart=drawn.heart_mask)
    source = {"source": "phantom", "seed": str(planned.seed), "index": str(planned.index), "prevalence": prevalence}
    return msgspec.structs.replace(image, provenance=source), drawn


def ground_marks(
    case: Record, marks: Sequence[Mark], *, side: str, lungs: Mask, heart: Mask, chain: Chain = DEFAULT_CHAIN
) -> Record:
    """Return a drawn case as a grounded image without provenance."""
    facts = list_answers(case, chain)
    facts["side"] = side if _shows_side(marks, facts) else ""
    regions = find_regions(lungs, heart)
    findings = _find(case, marks, facts, {region.label: region.corners for region in regions})
    corners = [finding.corners for finding in findings if finding.label == facts["diagnosis"]]
    organs = {f"{name} lung": mask for name, mask in split_lungs(lungs).items()} | {"heart": heart}
    facts["organ"] = host_organ(corners[0], organs) if corners else ""
    return Record(
        id=Path(case.image).stem,
        image=case.image,
        image_size=(lungs.shape[1], lungs.shape[0]),
        patient=case.patient,
        origin=case.origin,
        boxes=findings,
        regions=regions,
        absent=list_absent(findings),
        facts=facts,
    )


def _shows_side(marks: Sequence[Mark], facts: dict[str, str]) -> bool:
    """Whether marks or report show a side; an enlarged heart alone has none."""
    described = {canonical(facts["diagnosis"]), canonical(facts["secondary"])}
    return facts["zone"] != _SIDELESS or any(mark.side and canonical(mark.box.label) in described for mark in marks)


def list_answers(case: Record, chain: Chain) -> dict[str, str]:
    """Return the answers of a case by `vocabulary.FACT_NAMES`, "" where it has none."""
    answers = [
        step.options[label] if label != NOT_ANNOTATED else ""
        for step, label in zip(chain.steps, case.answers, strict=True)
    ]
    return dict(zip(FACT_NAMES, answers, strict=True))


def list_absent(findings: Sequence[Box]) -> tuple[str, ...]:
    """Return the labels that are not among a phantom's findings and do not look like one of them."""
    present = {canonical(finding.label) for finding in findings}
    unknown = present.union(*(LOOK_ALIKES.get(label, ()) for label in present))
    return tuple(label for label in TERMS if label not in unknown)


def _find(case: Record, drawn: Sequence[Mark], facts: dict[str, str], regions: dict[str, Corners]) -> tuple[Box, ...]:
    by_label = collections.defaultdict(list)
    for mark in sorted(drawn, key=lambda mark: mark.box.label != facts["diagnosis"]):
        by_label[mark.box.label].append(mark)
    findings = []
    for label, marks in by_label.items():
        sentence = _sentence(case.report, label, facts)
        groups = [[mark] for mark in marks]
        if len(marks) > _MOST_BOXES:
            groups = [[mark for mark in marks if mark.side == side] for side in (0, -1, 1)]
        for group in filter(None, groups):
            box = enclose_boxes([corners_of(mark) for mark in group])
            findings.append(Box(label, box, sentence, _name_region(group, facts, box, regions)))
    return tuple(findings)


def _sentence(report: str, label: str, facts: dict[str, str]) -> str:
    first, _, second = report.partition(". ")
    return second.partition(";")[0] + "." if label == facts["secondary"] else first + "."


def corners_of(mark: Mark) -> Corners:
    """Return the box of a mark as corners."""
    x1, y1, x2, y2 = map(float, mark.box.corners)
    return x1, y1, x2, y2


def _name_region(marks: Sequence[Mark], facts: dict[str, str], box: Corners, regions: dict[str, Corners]) -> str:
    """Return the region of marks of one label: the lung where their box is not centred in the zone that they name."""
    names = {_name_one(mark, facts, box, regions) for mark in marks}
    side = _SIDES.get(marks[0].side)
    name = names.pop() if len(names) == 1 or side is None else f"{side} lung"
    zone = _ZONES.get(facts["zone"]) if marks[0].box.label == facts["diagnosis"] else None
    is_other = bool(zone and side) and name != zone_name(str(side), str(zone))
    is_beside = not regions[name][1] <= (box[1] + box[3]) / 2 < regions[name][3]
    return f"{side} lung" if name.endswith("lung zone") and (is_other or is_beside) else name


def _name_one(mark: Mark, facts: dict[str, str], box: Corners, regions: dict[str, Corners]) -> str:
    """Return the region of one mark: by step 4 for a lesion of the diagnosis, else by the kind of sign."""
    label, side = mark.box.label, _SIDES.get(mark.side)
    if side is None:
        return MEDIASTINUM if label == "Mediastinal shift" else HEART
    if mark.kind == "sign":
        return diaphragm_name(side)
    if mark.kind == "fluid":
        low = zone_name(side, "lower")
        return low if (box[1] + box[3]) / 2 >= regions[low][1] else f"{side} lung"
    if mark.kind == "air":
        return f"{side} lung"
    fixed = {"Lymphadenopathy": hilum_name(side), "Emphysema": zone_name(side, "upper")}
    fixed |= {"Effusion": zone_name(side, "middle")}  # consolidation or a fissure above the fluid
    if label in fixed:
        return fixed[label]
    if facts["zone"] == "Hilar/Mediastinal":
        return hilum_name(side)
    zone = _ZONES.get(facts["zone"])
    return zone_name(side, zone) if zone else f"{side} lung"
