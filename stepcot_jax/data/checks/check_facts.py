"""The findings of a check as one object of plain facts, for people and for JSON; `docs/data.md` documents it."""

import dataclasses
from typing import Any

from stepcot_jax.data.checks.check_images import Pictures
from stepcot_jax.data.checks.check_records import Scan
from stepcot_jax.data.checks.check_splits import SplitFacts, find_leaks, find_unannotated
from stepcot_jax.data.splits.splits import SPLIT_NAMES

_NUM_EXAMPLES = 20


@dataclasses.dataclass
class Findings:
    """What a check has found.

    Attributes:
      scan: the records.
      layout: of the data root.
      images: how images were looked at: "decode", "exists" or "none".
      pictures: the decoded images; None where none were decoded.
      splits: None where no record is good.
      boxes_of: records whose boxes are counted, where they are others than the scan's.
      stops: what would stop a run.
      notes: what a run goes on with, but a person may want to know.
    """

    scan: Scan
    layout: str
    images: str
    pictures: Pictures | None = None
    splits: SplitFacts | None = None
    boxes_of: Scan | None = None
    stops: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def gather(findings: Findings) -> dict[str, Any]:
    """The facts; the stops and notes in words come last."""
    scan, splits = findings.scan, findings.splits
    facts: dict[str, Any] = {
        "root": str(scan.root),
        "layout": findings.layout,
        "file": scan.file.name,
        "records": scan.num_records,
        "cases": int(scan.good.sum()),
        "patients": scan.tally.count_patients(scan.good),
        "set_aside": scan.reasons.count,
        "set_aside_reasons": _list_reasons(scan),
        "origins": scan.tally.count_origins(scan.good),
        "steps": _count_steps(scan),
        "records_with_other_options": scan.num_other_options,
        "records_with_other_wordings": scan.tally.count_other_wordings(scan.good),
        "records_that_repeat_an_image": scan.num_repeated,
        **_count_images(findings),
        **_count_boxes(findings.boxes_of or scan),
        **_describe_splits(splits, scan),
    }
    facts["stops"] = [*findings.stops, *_find_stops(splits, scan)]
    facts["notes"] = [*findings.notes, *_note(facts, splits, scan)]
    return facts


def _list_reasons(scan: Scan) -> list[dict[str, Any]]:
    return [
        {
            "reason": reason.kind,
            "count": reason.count,
            "examples": [
                {"record": record, "image_path": image_path, "reason": full}
                for record, image_path, full in reason.examples
            ],
        }
        for reason in scan.reasons.listed()
    ]


def _count_steps(scan: Scan) -> list[dict[str, Any]]:
    steps = []
    for number, step in enumerate(scan.chain.steps if scan.chain else ()):
        counts = scan.tally.count_answers(scan.good, step=number, num_answers=step.num_answers)
        steps.append(
            {
                "name": step.name,
                "question": step.question,
                "wordings": scan.tally.num_wordings[number],
                "annotated": sum(counts),
                "answers": dict(zip(step.options, counts, strict=True)),
            }
        )
    return steps


def _count_images(findings: Findings) -> dict[str, Any]:
    scan, pictures, splits = findings.scan, findings.pictures, findings.splits
    duplicates: list[list[str]] | None = None
    leaks: list[list[dict[str, Any]]] | None = None
    num_repeated = num_leaks = None
    if pictures is not None:
        repeated = pictures.repeated(scan.good).tolist()
        num_repeated = len(repeated)
        duplicates = [
            [scan.tally.image_paths[int(pictures.original[place])], scan.tally.image_paths[place]]
            for place in repeated[:_NUM_EXAMPLES]
        ]
        found = find_leaks(splits, pictures.original, repeated) if splits else []
        num_leaks = len(found)
        leaks = [
            [
                {
                    "image_path": scan.tally.image_paths[place],
                    "patient_id": scan.tally.patient_ids[place],
                    "splits": list(splits.names_of(place)) if splits else [],
                }
                for place in group[:_NUM_EXAMPLES]
            ]
            for group in found[:_NUM_EXAMPLES]
        ]
    return {
        "images": findings.images,
        "images_found": scan.num_found,
        "images_missing": None if scan.num_found is None else scan.num_missing,
        "images_unreadable": None if pictures is None else pictures.num_unreadable,
        "images_with_equal_pixels": num_repeated,
        "equal_images": duplicates,
        "pictures_in_several_splits": num_leaks,
        "leaks": leaks,
    }


def _count_boxes(scan: Scan) -> dict[str, Any]:
    num_boxes, num_images, num_single = scan.tally.count_boxes(scan.good)
    return {"boxes": num_boxes, "images_with_boxes": num_images, "images_with_one_box_label": num_single}


def _describe_splits(splits: SplitFacts | None, scan: Scan) -> dict[str, Any]:
    if splits is None:
        return {"splits_from": "none", "splits": [], "patients_in_several_splits": 0, "cases_in_no_split": 0}
    listed = [
        {
            "name": name,
            "file": splits.files.get(name, ""),
            "rows": splits.num_rows.get(name),
            "rows_that_name_nothing": splits.num_passed_over.get(name),
            "cases": int(member.sum()),
            "patients": scan.tally.count_patients(member),
        }
        for name, member in zip(SPLIT_NAMES, splits.member, strict=True)
    ]
    return {
        "splits_from": splits.source,
        "splits": listed,
        "patients_in_several_splits": splits.count("patients are in more than one split"),
        "shared_patients": dict(list(splits.shared.items())[:_NUM_EXAMPLES]),
        "cases_in_no_split": splits.count("cases are in no split"),
        "split_problems": [
            {"problem": kind, "count": problem.count, "examples": problem.examples}
            for kind, problem in splits.problems.items()
        ],
    }


def _find_stops(splits: SplitFacts | None, scan: Scan) -> list[str]:
    if splits is None:
        return []
    stops = []
    for kind, problem in splits.problems.items():
        more = f" and {problem.count - len(problem.examples)} more" if problem.count > len(problem.examples) else ""
        number = f"{problem.count} " if problem.count > 1 else ""
        stops.append(f"splits: {number}{kind}: {'; '.join(problem.examples)}{more}")
    return stops + [
        f"splits: no annotated answer in the {name} split, accepted is at least one"
        for name in find_unannotated(splits, scan)
    ]


def _note(facts: dict[str, Any], splits: SplitFacts | None, scan: Scan) -> list[str]:
    """What a run would go on with, but a person may want to know."""
    notes = []
    if facts["pictures_in_several_splits"]:
        notes.append(f"{facts['pictures_in_several_splits']} pictures are in more than one split (leakage)")
    if facts["images_with_equal_pixels"]:
        notes.append(f"{facts['images_with_equal_pixels']} images have the pixels of an earlier one")
    if facts["records_with_other_wordings"]:
        notes.append(f"{facts['records_with_other_wordings']} records word a question differently than the first")
    if splits is not None and scan.chain is not None and splits.member[0].any():
        trained = (scan.tally.labels[splits.member[0]] >= 0).any(axis=0)
        untrained = [step.name for step, is_trained in zip(scan.chain.steps, trained, strict=True) if not is_trained]
        if untrained:
            notes.append(f"nobody answered {', '.join(untrained)} in the train split: not trained")
    passed_over = sum(split["rows_that_name_nothing"] or 0 for split in facts["splits"])
    if passed_over:
        notes.append(f"{passed_over} rows of split tables name nothing (empty or merged cells) and are passed over")
    return notes
