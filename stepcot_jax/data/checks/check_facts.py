"""Gather the findings of a check as one object of plain facts, for people and for JSON; see `docs/data.md`."""

import collections
import dataclasses
import itertools
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer

from stepcot_jax.chain import Chain, find_one_answer
from stepcot_jax.data.checks.check_records import Reasons
from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.records.data_json import Scan
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment
from stepcot_jax.data.uncertain import IGNORED, Targets, UncertainAnswers, make_targets
from stepcot_jax.host.errors import BadInput

_NUM_EXAMPLES = 20


@dataclasses.dataclass
class Findings:
    """Everything that a check has found.

    Attributes:
      reasons: the records set aside, by reason.
      num_unreadable: images that cannot be decoded.
      original: for each record the first one whose image has the same pixels; None if no image was decoded.
      assignment: the splits; None if no record is good.
      boxes_of: cases whose boxes are counted; None for those of the scan.
      uncertain: what training makes of uncertain answers.
      stops: what would stop a run.
      notes: what a run accepts but a person may want to know.
    """

    scan: Scan
    reasons: Reasons
    layout: str
    num_unreadable: int = 0
    original: Int64[np.ndarray, " record"] | None = None
    assignment: Assignment | None = None
    boxes_of: RecordTable | None = None
    uncertain: UncertainAnswers = IGNORED
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
    targets, stops = _find_targets(findings)
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
        "steps": _count_steps(scan, targets),
        "uncertain": findings.uncertain.treatment,
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
    facts["stops"] = [*findings.stops, *stops, *_find_stops(assignment, scan, targets)]
    facts["notes"] = [*findings.notes, *_note(facts, assignment, scan, targets)]
    return facts


def _find_targets(findings: Findings) -> tuple[Targets | None, list[str]]:
    """Return what training on the train split compares with, and why a run could not make it.

    None without a train split; uncertain answers are ignored where the run could not treat them as it should.
    """
    scan, assignment = findings.scan, findings.assignment
    if assignment is None or scan.chain is None:
        return None, []
    chosen = assignment.member[0] & scan.good
    answers = {"labels": scan.table.labels[chosen], "uncertain": scan.table.uncertain[chosen]}
    try:
        return make_targets(**answers, chain=scan.chain, rule=findings.uncertain), []
    except BadInput as error:
        return make_targets(**answers, chain=scan.chain, rule=IGNORED), [str(error)]


def _count_steps(scan: Scan, targets: Targets | None) -> list[dict[str, Any]]:
    steps = []
    trained = None if targets is None else (targets.labels >= 0).sum(axis=0).tolist()
    uncertain = scan.table.count_uncertain(scan.good).tolist() if scan.chain else []
    for number, step in enumerate(scan.chain.steps if scan.chain else ()):
        counts = scan.table.count_answers(scan.good, step=number, num_answers=step.num_answers).tolist()
        steps.append(
            {
                "name": step.name,
                "question": step.question,
                "wordings": scan.num_wordings[number],
                "annotated": sum(counts),
                "uncertain": uncertain[number],
                "trained": None if trained is None else trained[number],
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


def _find_stops(assignment: Assignment | None, scan: Scan, targets: Targets | None) -> list[str]:
    if assignment is None:
        return []
    val = scan.table.labels[assignment.member[1]]
    answers = {"train": val[:0] if targets is None else targets.labels, "val": val}
    return [f"splits: {problem}" for problem in assignment.problems.values()] + [
        f"splits: the {name} split has no annotated answer; at least one is required"
        for name, labels in answers.items()
        if len(labels) and not (labels >= 0).any()
    ]


_OF_ONE_ANSWER = {
    "train": ("nothing to learn there", "nothing to learn"),
    "val": ("not counted for the best weights", "no best weights can be chosen, the last are kept"),
    "test": ("not in the mean accuracy", "there is no mean accuracy"),
}
"""What it means for a split that all its annotated cases have the same answer at a step; and at every step."""


def note_one_answers(
    labels: Integer[np.ndarray, "case step"], member: Bool[np.ndarray, "split case"], targets: Targets, chain: Chain
) -> list[str]:
    """Return, for each split with steps at which all its annotated cases have the same answer, what follows from it."""
    notes = []
    for name, own in zip(SPLIT_NAMES, member, strict=True):
        counted = targets.labels if name == "train" else labels[own]
        same = targets.has_one_answer if name == "train" else find_one_answer(counted)
        annotated = (counted >= 0).any(axis=0)
        if not same.any():
            continue
        steps = ", ".join(step.name for step, is_same in zip(chain.steps, same, strict=True) if is_same)
        of_a_step, of_all = _OF_ONE_ANSWER[name]
        follows = of_all if same.sum() == annotated.sum() else of_a_step
        share = f"{same.sum()} of {annotated.sum()} steps"
        notes.append(f"every case of the {name} split has the same answer at {steps} ({share}): {follows}")
    return notes


_TRAINED_AS = {
    "ignore": "ignores them",
    "negative": "takes the negative option in their place",
    "positive": "takes them for certain",
    "soft": "takes them and the negative option as soft targets",
}


def _note(facts: dict[str, Any], assignment: Assignment | None, scan: Scan, targets: Targets | None) -> list[str]:
    notes = [
        f"{facts[name]} {what}"
        for name, what in (
            ("pictures_in_several_splits", "pictures are in more than one split (leakage)"),
            ("images_with_equal_pixels", "images have the pixels of an earlier one"),
            ("records_with_other_wordings", "records word a question differently than the first"),
        )
        if facts[name]
    ]
    if num_uncertain := sum(step["uncertain"] for step in facts["steps"]):
        notes.append(
            f"{num_uncertain} answers are uncertain: never the truth in validation or test; training "
            f"{_TRAINED_AS[facts['uncertain']]} (config.data.uncertain={facts['uncertain']})"
        )
    if assignment is not None and targets is not None and scan.chain is not None and len(targets.labels):
        untrained = [step["name"] for step in facts["steps"] if not step["trained"]]
        if untrained:
            notes.append(f"nobody answered {', '.join(untrained)} in the train split: not trained")
        notes += note_one_answers(scan.table.labels, assignment.member & scan.good, targets, scan.chain)
    if passed_over := sum(split["rows_that_name_nothing"] or 0 for split in facts["splits"]):
        notes.append(f"{passed_over} rows of split tables name nothing (empty or merged cells) and are passed over")
    return notes
