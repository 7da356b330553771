"""Gather the findings of a check as one object of plain facts, for people and for JSON; see `docs/data.md`."""

import collections
import dataclasses
import itertools
from typing import Any

import numpy as np
from jaxtyping import Int64

from stepcot_jax.data.checks.check_records import Reasons
from stepcot_jax.data.records.cases import CaseTable
from stepcot_jax.data.records.record_scan import Scan
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment

_NUM_EXAMPLES = 20


@dataclasses.dataclass
class Findings:
    """Everything that a check has found.

    Attributes:
      scan: the records.
      reasons: the records set aside, by reason.
      layout: of the data root.
      num_unreadable: images that cannot be decoded.
      original: for each record the first one whose image has the same pixels; None if no image was decoded.
      assignment: the splits; None if no record is good.
      boxes_of: cases whose boxes are counted; None for those of the scan.
      stops: what would stop a run.
      notes: what a run accepts but a person may want to know.
    """

    scan: Scan
    reasons: Reasons
    layout: str
    num_unreadable: int = 0
    original: Int64[np.ndarray, " record"] | None = None
    assignment: Assignment | None = None
    boxes_of: CaseTable | None = None
    stops: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def gather(findings: Findings, *, images: str) -> dict[str, Any]:
    """Return the facts; stops and notes come last. `images` is "decode", "exists" or "none"."""
    scan, assignment, num_aside = findings.scan, findings.assignment, len(findings.reasons)
    table, num_cases = scan.table, int(scan.good.sum())
    boxes_of, boxed = table, scan.good
    if findings.boxes_of is not None:
        boxes_of, boxed = findings.boxes_of, np.ones(len(findings.boxes_of), bool)
    num_boxes, num_with_boxes, num_with_one_label = boxes_of.count_boxes(boxed)
    facts: dict[str, Any] = {
        "root": str(scan.root),
        "layout": findings.layout,
        "file": scan.file.name,
        "records": num_cases + num_aside,
        "cases": num_cases,
        "patients": table.count_patients(scan.good),
        "set_aside": num_aside,
        "set_aside_reasons": findings.reasons.as_facts(),
        "origins": table.count_origins(scan.good),
        "steps": _count_steps(scan),
        "records_with_other_options": scan.num_other_options,
        "records_with_other_wordings": scan.count_other_wordings(),
        "records_that_repeat_an_image": scan.num_repeated,
        "images": images,
        "images_found": scan.num_found,
        "images_missing": None if scan.num_found is None else scan.num_missing,
        **_describe_pictures(findings),
        "boxes": num_boxes,
        "images_with_boxes": num_with_boxes,
        "images_with_one_box_label": num_with_one_label,
        **_describe_splits(assignment, scan),
    }
    facts["stops"] = [*findings.stops, *_find_stops(assignment, scan)]
    facts["notes"] = [*findings.notes, *_note(facts, assignment, scan)]
    return facts


def _count_steps(scan: Scan) -> list[dict[str, Any]]:
    steps = []
    for number, step in enumerate(scan.chain.steps if scan.chain else ()):
        counts = scan.table.count_answers(scan.good, step=number, num_answers=step.num_answers).tolist()
        steps.append(
            {
                "name": step.name,
                "question": step.question,
                "wordings": scan.num_wordings[number],
                "annotated": sum(counts),
                "answers": dict(zip(step.options, counts, strict=True)),
            }
        )
    return steps


def _describe_pictures(findings: Findings) -> dict[str, Any]:
    names = ("images_unreadable", "images_with_equal_pixels", "equal_images", "pictures_in_several_splits", "leaks")
    if findings.original is None:
        return dict.fromkeys(names)
    scan, assignment, original = findings.scan, findings.assignment, findings.original.tolist()
    table = scan.table
    repeated = [place for place in np.flatnonzero(scan.good).tolist() if original[place] != place]
    member = assignment.member if assignment else np.zeros((len(SPLIT_NAMES), len(original)), bool)
    groups = collections.defaultdict(list)
    for place in repeated:
        groups[original[place]].append(place)
    leaks = []
    for first, others in groups.items():
        splits_of = {place: list(itertools.compress(SPLIT_NAMES, member[:, place])) for place in (first, *others)}
        if len(set().union(*splits_of.values())) > 1:
            leaks.append(splits_of)
    equal = [[table.image_paths[original[place]], table.image_paths[place]] for place in repeated[:_NUM_EXAMPLES]]
    listed = [
        [
            {"image_path": table.image_paths[place], "patient_id": table.patient_ids[place], "splits": splits}
            for place, splits in list(group.items())[:_NUM_EXAMPLES]
        ]
        for group in leaks[:_NUM_EXAMPLES]
    ]
    return dict(zip(names, (findings.num_unreadable, len(repeated), equal, len(leaks), listed), strict=True))


def _describe_splits(assignment: Assignment | None, scan: Scan) -> dict[str, Any]:
    if assignment is None:
        return {"splits_from": "none", "splits": [], "patients_in_several_splits": 0, "cases_in_no_split": 0}
    heads = ("name", "file", "rows", "rows_that_name_nothing", "cases", "patients")
    listed = [
        dict(zip(heads, (name, *table, int(member.sum()), scan.table.count_patients(member)), strict=True))
        for name, member in zip(SPLIT_NAMES, assignment.member, strict=True)
        for table in [assignment.tables.get(name, ("", None, None))]
    ]
    return {
        "splits_from": assignment.source,
        "splits": listed,
        "patients_in_several_splits": assignment.count("patients are in more than one split"),
        "shared_patients": dict(list(assignment.shared.items())[:_NUM_EXAMPLES]),
        "cases_in_no_split": assignment.count("cases are in no split"),
        "split_problems": [
            {"problem": kind, "count": problem.count, "examples": problem.examples}
            for kind, problem in assignment.problems.items()
        ],
    }


def _find_stops(assignment: Assignment | None, scan: Scan) -> list[str]:
    if assignment is None:
        return []
    is_annotated = scan.table.labels >= 0
    return [f"splits: {problem}" for problem in assignment.problems.values()] + [
        f"splits: the {name} split has no annotated answer; at least one is required"
        for name, member in zip(SPLIT_NAMES, assignment.member, strict=True)
        if name in ("train", "val") and member.any() and not is_annotated[member].any()
    ]


def _note(facts: dict[str, Any], assignment: Assignment | None, scan: Scan) -> list[str]:
    notes = [
        f"{facts[name]} {what}"
        for name, what in (
            ("pictures_in_several_splits", "pictures are in more than one split (leakage)"),
            ("images_with_equal_pixels", "images have the pixels of an earlier one"),
            ("records_with_other_wordings", "records word a question differently than the first"),
        )
        if facts[name]
    ]
    if assignment is not None and scan.chain is not None and assignment.member[0].any():
        trained = (scan.table.labels[assignment.member[0]] >= 0).any(axis=0)
        untrained = [step.name for step, is_trained in zip(scan.chain.steps, trained, strict=True) if not is_trained]
        if untrained:
            notes.append(f"nobody answered {', '.join(untrained)} in the train split: not trained")
    if passed_over := sum(split["rows_that_name_nothing"] or 0 for split in facts["splits"]):
        notes.append(f"{passed_over} rows of split tables name nothing (empty or merged cells) and are passed over")
    return notes
