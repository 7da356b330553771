"""Check a data root: its contents and whether a run can use it, as one object of plain facts; see `docs/data.md`.

A check reads as a run does, once, continues after the first fault, and keeps no texts.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Int32, Int64

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_APPLICABLE, Chain, Step, fold
from stepcot_jax.data.images.file_formats import Note
from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.data.images.image_files import FolderFiles, Selection, examine_image, read_picture
from stepcot_jax.data.images.preprocessing import decode_image_bytes
from stepcot_jax.data.images.stated_sizes import StatedSizes, list_sizes
from stepcot_jax.data.projections import is_frontal_task
from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.data.questions.question_splits import ONE_EACH, TEST_HINT, SplitOptions, is_picture, split_records
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.reasons import Reasons, describe_oddities, note_oddities
from stepcot_jax.data.record_table import count_boxes, find_first
from stepcot_jax.data.records.data_json import FILE_NAME, Scan, scan_records
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.intake import Intake
from stepcot_jax.data.sources.layout_table import AUTO, CASES, check_layout, detect_layout
from stepcot_jax.data.sources.layouts import holds_questions, list_cases, read_vqa_source
from stepcot_jax.data.sources.listed import How, Listed
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import resolve_tables
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment, count_shared
from stepcot_jax.data.statistics import (
    LENGTHS,
    count_control_tokens,
    count_form,
    count_formats,
    count_lengths_of,
    count_records,
    find_contradictions,
    spread_lengths,
)
from stepcot_jax.data.uncertain import Treatment, make_targets, note_one_answers
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.record import Record, SetAside

_NUM_EXAMPLES = 20
_MOST_ORIGINS = 1000
_Targets: TypeAlias = Int32[np.ndarray, "case step"]
_BOXES = ("boxes", "images_with_boxes", "images_with_one_box_label")
_MEGABYTE = 1_000_000
_RECORDS = "a folder with records.jsonl (reasoning records)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(How):
    """How to check a data root; names shared with a run's settings mean the same."""

    layout: str = AUTO  # one of `layouts.CASES`, or "auto"
    images: Literal["decode", "exists", "none"] = "decode"  # "exists" looks for their files
    on_bad_record: OnBadRecord = "stop"  # whether bad records would stop a run
    max_pixels: int = 64_000_000  # largest accepted width times height of an image
    split_seed: int = 0
    num_threads: int = 2  # images decoded at the same time
    uncertain: Treatment = "ignore"  # treatment of uncertain answers in training
    dialect: str = AUTO  # of a run on questions; "auto": the one of the config that is meant for them
    with_thinking: bool = True  # whether the run's replies have the part before the answer


def check_root(root: Path, options: CheckOptions, *, terminal: Terminal) -> dict[str, Any]:
    """Return the facts of a folder or file in any layout, or of reasoning records, which `docs/data.md` explains."""
    root, reasons = Path(root), Reasons()
    if holds_questions(root, options.layout):
        return _check_questions(root, options, reasons, terminal)
    layout = detect_layout(root, further=_RECORDS) if options.layout == AUTO else check_layout(options.layout, CASES)
    how = dataclasses.replace(options, require_images=options.images != "none")
    with _recorded_warnings() as notes:
        if layout == "published":
            scan, boxes = _scan_published(root, reasons, how, terminal), None
        else:
            scan, boxes = _scan_other(root, layout, reasons, how)
    skips, num_good = options.on_bad_record == "skip", int(scan.good.sum())
    stops = _describe_bad(reasons, scan.file, "record", num_good, skips=skips)
    pictures = _decode_pictures(scan, options, terminal) if options.images == "decode" else Pictures()
    if pictures.num_unreadable and not (skips and scan.good.any()):
        stops.append(f"{scan.root}: {pictures.num_unreadable} images cannot be decoded (set aside below)")
    assignment = _find_splits(scan, reasons, options.split_seed)
    targets, problems = _find_targets(scan, assignment, options.uncertain)
    facts: dict[str, Any] = {
        "root": str(scan.root),
        "layout": layout,
        "file": scan.file.name,
        "records": int(scan.good.sum()) + len(reasons),
        "cases": int(scan.good.sum()),
        "patients": scan.table.count_patients(scan.good),
        "set_aside": len(reasons),
        "set_aside_reasons": reasons.as_facts(),
        "origins": _count_origins(scan),
        "steps": _count_steps(scan, targets),
        **_describe_tree(assignment, scan),
        "uncertain": options.uncertain,
        "records_with_other_options": scan.num_other_options,
        "records_with_other_wordings": scan.count_other_wordings(),
        "records_that_repeat_an_image": scan.num_repeated,
        "images": options.images,
        "images_found": scan.num_found,
        "images_missing": None if scan.num_found is None else scan.num_missing,
        **_describe_pictures(pictures, assignment, scan),
        "odd_images": pictures.oddities.as_facts(),
        **dict(
            zip(
                _BOXES,
                boxes or count_boxes(case.boxes for case in itertools.compress(scan.table, scan.good)),
                strict=True,
            )
        ),
        **_describe_splits(assignment, scan),
    }
    facts["stops"] = [*stops, *problems, *_find_stops(assignment, scan, targets)]
    facts["notes"] = [*notes, *note_oddities(pictures.oddities), *_note(facts, assignment, scan, targets)]
    return facts


def _scan_published(root: Path, reasons: Reasons, how: How, terminal: Terminal) -> Scan:
    path = root / FILE_NAME
    num_bytes = path.stat().st_size if path.is_file() else 0
    total = math.ceil(num_bytes / _MEGABYTE)
    reading: dict[str, Any] = {"step_names": how.step_names, "require_images": how.require_images, "with_texts": False}
    with terminal.bar("reading the records (MB)", total=total):
        show = lambda read: terminal.update(total if read >= num_bytes else read // _MEGABYTE)  # noqa: E731
        return scan_records(root, reasons.append, visit=show, **reading)


def _scan_other(root: Path, layout: str, reasons: Reasons, how: How) -> tuple[Scan, tuple[int, int, int]]:
    """Return the records that are not refused, and numbers of boxes, of images with some, and with one label."""
    source, boxes = list_cases(root, layout, how), list[tuple[Box, ...]]()

    def keep_boxes(item: Listed) -> Listed:
        boxes.append(() if item.refusal else item.record.boxes)
        return item

    intake = Intake(source._replace(records=map(keep_boxes, source.records)), on_bad_record="skip")
    collection = intake.read_cases(layout, keeps_missing=True)
    for item in collection.set_aside:
        reasons.append(item)
    scan = Scan(
        collection.root,
        collection.path,
        collection.cases,
        collection.record_numbers,
        reasons.append,
        np.ones(len(collection.cases), bool),
        collection.chain,
        num_wordings=(1,) * collection.chain.num_steps,
        is_frontal=is_frontal_task(case.view for case in collection.cases),
    )
    for index, path in enumerate(scan.table.image_paths if intake.missing else ()):
        if path in intake.missing:
            scan.num_missing += 1
            scan.drop(index, intake.missing[path])
    scan.num_found = int(scan.good.sum()) if how.require_images else None
    return scan, count_boxes(boxes)


def _describe_bad(reasons: Reasons, file: Path | str, what: str, num_good: int, *, skips: bool) -> list[str]:
    """Return what stops a run at bad records, with an example."""
    example = reasons.example
    if example is None or (skips and num_good):
        return []
    number, total = reasons.num_bad, num_good + len(reasons)
    said = f"{number} of {total} {what}s are bad" if num_good else f"no {what} is valid"
    way_on = "; on_bad_record=skip continues without them" if num_good else ""
    return [f"{file}: {said} (set aside below, such as {what} {example.record}, {example.reason[:300]}){way_on}"]


@contextlib.contextmanager
def _recorded_warnings() -> Iterator[list[str]]:
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stepcot_jax.data")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield heard
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


def _find_splits(scan: Scan, reasons: Reasons, seed: int) -> Assignment:
    nothing = np.zeros((len(SPLIT_NAMES), len(scan.table)), np.int32)
    if not scan.good.any():
        return Assignment("none", nothing)
    assignment = resolve_tables(
        scan.root,
        scan.table,
        good=scan.good,
        set_aside_paths=reasons.image_paths,
        set_aside_patients=reasons.patient_ids,
    )
    if assignment is not None:
        return assignment
    try:
        splits = make_splits(scan.table, seed=seed, chosen=scan.good)
    except BadInput as error:
        assignment = Assignment("made", nothing)
        assignment.add_problem("splits cannot be made", str(error))
        return assignment
    return Assignment.of(splits, len(scan.table))


@dataclasses.dataclass
class Pictures:
    """What decoding the images found."""

    num_unreadable: int = 0
    oddities: Reasons = dataclasses.field(default_factory=Reasons)  # of readable images, such as a black one
    original: Int64[np.ndarray, " record"] | None = None  # the first record with the same pixels; None: not decoded


def _decode_pictures(scan: Scan, options: CheckOptions, terminal: Terminal) -> Pictures:
    """Decode the image of every good record; set unreadable and lateral ones aside."""
    good = np.flatnonzero(scan.good).tolist()
    paths = scan.table.image_paths
    files = Selection(FolderFiles(scan.root, paths, most_bytes(options.max_pixels)), good)

    def digest(content: bytes, *, name: str, note: Note) -> bytes:
        pixels = decode_image_bytes(content, name=name, max_pixels=options.max_pixels, note=note)
        for oddity in describe_oddities(pixels):
            note(oddity)
        hashed = hashlib.blake2b(str(pixels.shape).encode(), digest_size=16)
        hashed.update(np.ascontiguousarray(pixels).data)
        return hashed.digest()

    def examine(index: int) -> tuple[bytes | BadInput | str, list[str]]:
        return examine_image(files, index, digest, is_frontal=scan.is_frontal)

    pictures, digests = Pictures(), list[bytes]()
    watched = terminal.watch(range(len(good)), "reading the images")
    for index, (result, notes) in map_in_threads(examine, watched, num_threads=options.num_threads):
        record = good[index]
        for note in notes:
            pictures.oddities.append(SetAside(scan.numbers[record], paths[record], note))
        if isinstance(result, bytes):
            digests.append(result)
        else:
            pictures.num_unreadable += isinstance(result, BadInput)
            scan.drop(record, str(result), by_rule=isinstance(result, str))
    pictures.original, readable = np.arange(len(scan.table)), np.flatnonzero(scan.good)
    pictures.original[readable] = readable[find_first(digests)]
    return pictures


def _find_targets(scan: Scan, assignment: Assignment, treatment: Treatment) -> tuple[_Targets | None, list[str]]:
    """Return the training targets of the train split, and why a run could not make them."""
    if scan.chain is None:
        return None, []
    chosen = assignment.member[0] & scan.good
    answers = {"labels": scan.table.labels[chosen], "uncertain": scan.table.uncertain[chosen]}
    try:
        return make_targets(**answers, chain=scan.chain, treatment=treatment), []
    except BadInput as error:
        return make_targets(**answers, chain=scan.chain, treatment="ignore"), [str(error)]


def _count_origins(scan: Scan) -> dict[str, int]:
    counts = list(scan.table.count_origins(scan.good).items())
    others = sum(number for _, number in counts[_MOST_ORIGINS:])
    return dict(counts[:_MOST_ORIGINS]) | ({"(further origins)": others} if others else {})


def _count_steps(scan: Scan, targets: _Targets | None) -> list[dict[str, Any]]:
    if scan.chain is None:
        return []
    steps, uncertain = [], scan.table.count_uncertain(scan.good).tolist()
    trained = None if targets is None else (targets >= 0).sum(axis=0).tolist()
    for number, step in enumerate(scan.chain.steps):
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


def _describe_tree(assignment: Assignment, scan: Scan) -> dict[str, Any]:
    if scan.chain is None or not scan.chain.is_tree:
        return {}
    member = assignment.member & scan.good
    rows = count_form(scan.table, scan.chain, dict(zip(SPLIT_NAMES, member, strict=True)))
    return {"parts": [dataclasses.asdict(row) for row in rows]}


def _describe_pictures(pictures: Pictures, assignment: Assignment, scan: Scan) -> dict[str, Any]:
    names = ("images_unreadable", "images_with_equal_pixels", "equal_images", "pictures_in_several_splits", "leaks")
    if pictures.original is None:
        return dict.fromkeys(names)
    table, original = scan.table, pictures.original.tolist()
    repeated = [index for index in np.flatnonzero(scan.good).tolist() if original[index] != index]
    member = assignment.member
    groups: dict[int, dict[int, list[str]]] = collections.defaultdict(dict)
    for index in repeated:
        for same in (original[index], index):
            groups[original[index]][same] = list(itertools.compress(SPLIT_NAMES, member[:, same]))
    leaks = [group for group in groups.values() if len(set().union(*group.values())) > 1]
    equal = [[table.image_paths[original[index]], table.image_paths[index]] for index in repeated[:_NUM_EXAMPLES]]
    listed = [
        [
            {"image_path": table.image_paths[index], "patient_id": table.patient_ids[index], "splits": splits}
            for index, splits in list(group.items())[:_NUM_EXAMPLES]
        ]
        for group in leaks[:_NUM_EXAMPLES]
    ]
    return dict(zip(names, (pictures.num_unreadable, len(repeated), equal, len(leaks), listed), strict=True))


def _describe_splits(assignment: Assignment, scan: Scan) -> dict[str, Any]:
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


def _find_stops(assignment: Assignment, scan: Scan, targets: _Targets | None) -> list[str]:
    val = scan.table.labels[assignment.member[1]]
    answers = {"train": val[:0] if targets is None else targets, "val": val}
    return [f"splits: {problem}" for problem in assignment.problems.values()] + [
        f"splits: the {name} split has no annotated answer; at least one is required"
        for name, labels in answers.items()
        if len(labels) and not (labels >= 0).any()
    ]


def _find_lost(facts: dict[str, Any]) -> str:
    """Return a note where a program may have read the answer N/A as a missing cell; "" elsewhere."""
    offered = [step for step in facts["steps"] if NOT_APPLICABLE in step["answers"] and step["annotated"]]
    without = {step["name"]: step["annotated"] for step in offered if not step["answers"][NOT_APPLICABLE]}
    cases, most = facts["cases"], min((1 - _LOST_SHARE) * facts["cases"], facts["cases"] - 1)
    lost = {name: cases - number for name, number in without.items() if number <= most}
    if not lost:
        return ""
    cells = "".join(f", and {number} of {cases} cells of {name} are empty" for name, number in lost.items())
    some = "" if len(without) == len(offered) else f" of {', '.join(lost)}"
    what = f"no case has the answer {NOT_APPLICABLE}{some}{cells}"
    return f"{what}: did a program (pandas) read {NOT_APPLICABLE} as missing?"


_LOST_SHARE = 0.1
_TRAINED_AS = {
    "ignore": "ignores them",
    "negative": "takes the negative option in their place",
    "positive": "takes them for certain",
}


def _has_borrowed_names(chain: Chain) -> bool:
    """Return whether the steps have the published names but none of their options, "N/A" aside."""

    def read(step: Step) -> set[str]:
        return {fold(option) for option in step.options} - {fold(NOT_APPLICABLE)}

    pairs = list(zip(chain.steps, DEFAULT_CHAIN.steps, strict=False))
    return all(step.name == known.name and read(step).isdisjoint(read(known)) for step, known in pairs)


def _note(facts: dict[str, Any], assignment: Assignment, scan: Scan, targets: _Targets | None) -> list[str]:
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
    if lost := _find_lost(facts):
        notes.append(lost)
    if targets is not None and scan.chain is not None and len(targets):
        untrained = [step["name"] for step in facts["steps"] if not step["trained"]]
        if untrained and scan.chain.is_tree:
            notes.append(f"{len(untrained)} of {len(facts['steps'])} steps are never asked in the train split")
        elif untrained:
            notes.append(f"nobody answered {', '.join(untrained)} in the train split: not trained")
        notes += note_one_answers(scan.table.labels, assignment.member & scan.good, targets, scan.chain)
    if scan.chain is not None and _has_borrowed_names(scan.chain):
        notes.append(
            "no step has an option of the published step of its name: config.data.step_names (here --step-names) names "
            "the steps of another chain"
        )
    if passed_over := sum(split["rows_that_name_nothing"] or 0 for split in facts["splits"]):
        notes.append(f"{passed_over} rows of split tables name nothing (empty or merged cells) and are passed over")
    return notes


def _check_questions(root: Path, options: CheckOptions, reasons: Reasons, terminal: Terminal) -> dict[str, Any]:
    with _recorded_warnings() as warnings:
        collection = read_vqa_source(
            root,
            layout=options.layout,
            on_bad_record="skip",
            require_images=options.images != "none",
            box_size=options.box_size,
        )
    oddities, stated = Reasons(), StatedSizes()
    unreadable: dict[str, str] = {}
    if options.images == "decode":
        unreadable = _find_unreadable_images(collection, oddities, stated, options, terminal)
    records = [record for record in collection.records if record.image not in unreadable]
    for item in collection.set_aside:
        reasons.append(item)
    for line, record in zip(collection.lines, collection.records, strict=True):
        if record.image in unreadable:
            reasons.append(SetAside(line, record.image, unreadable[record.image], record.patient))
    watched = terminal.watch(records, "writing in every dialect")
    facts: dict[str, Any] = {
        "root": str(collection.root),
        "layout": collection.layout,
        "file": collection.path.name,
        "records": len(records) + len(reasons),
        "set_aside": len(reasons),
        "set_aside_reasons": reasons.as_facts(),
        "images": options.images,
        **count_records(records),
        "lengths": {name: spread_lengths(count_lengths_of(records, name)) for name in LENGTHS},
        "formats": count_formats(watched),
    }
    named = (record for record in records if record.split and not is_picture(record.patient))
    members = {(record.patient, record.split) for record in named}
    facts["patients_in_several_splits"] = count_shared(members)
    facts["control_tokens"] = count_control_tokens(records)
    facts["contradictions"] = find_contradictions(records)
    facts["dialect"] = _choose_dialect(records) if options.dialect == AUTO else options.dialect
    facts["stops"] = _describe_bad(
        reasons, facts["file"], collection.unit, len(records), skips=options.on_bad_record == "skip"
    )
    if number := facts["patients_in_several_splits"]:
        facts["stops"].append(f"{facts['file']}: {number} patients are in more than one split; {ONE_EACH}")
    else:
        with _recorded_warnings() as more:
            facts["stops"] += _find_stops_of_training(collection, records, facts, options)
        warnings += more
    facts["odd_images"] = oddities.as_facts()
    facts["notes"] = [
        *warnings,
        *note_oddities(oddities),
        *stated.list_notes(),
        *_note_questions(facts, with_thinking=options.with_thinking),
    ]
    return facts


def _find_unreadable_images(
    collection: VqaCollection, oddities: Reasons, stated: StatedSizes, options: CheckOptions, terminal: Terminal
) -> dict[str, str]:
    unreadable, notes = {}, list[str]()
    sizes = list_sizes(collection.records)
    for number, path in enumerate(terminal.watch(list(sizes), "reading the images")):
        try:
            content = read_picture(collection.root, path, max_bytes=most_bytes(options.max_pixels))
            pixels = decode_image_bytes(content, name=path, max_pixels=options.max_pixels, note=notes.append)
            stated.compare(number, path, sizes[path], (pixels.shape[1], pixels.shape[0]), content)
            for note in notes + describe_oddities(pixels):
                oddities.append(SetAside(-1, path, note))
            notes.clear()
        except (BadInput, OSError) as error:
            unreadable[path] = f"image_path: {error}"
    return unreadable


def _choose_dialect(records: Sequence[Record]) -> str:
    """Return the dialect for records of MedCLM's views, of MEDSAGE's stages, without any box, or for any others."""
    if all(record.provenance.get("stage") in ("easy", "medium", "hard") for record in records):
        return "medclm"
    if not any(record.references or record.stages for record in records):
        return PLAIN
    return "lvkc" if all(record.stages and not record.thinking.strip() for record in records) else "gemex"


def _find_stops_of_training(
    collection: VqaCollection, good: Sequence[Record], facts: dict[str, Any], options: CheckOptions
) -> list[str]:
    """Split the records and write the replies of the train split, as a run does."""
    try:
        split = split_records(collection, SplitOptions(seed=options.split_seed))
    except BadInput as error:
        return [str(error)]
    file, dialect, names = facts["file"], facts["dialect"], {record.id for record in good}
    kept = [record for record in split if record.id in names]
    empty = [name for name in SPLIT_NAMES if all(name != record.split for record in kept)]
    stops = [f"{file}: no record is in the {name} split{TEST_HINT if name == 'test' else ''}" for name in empty]
    train, problems = [record for record in kept if record.split == "train"], list[str]()
    for record in train:
        try:
            write_texts(record, dialect, with_thinking=options.with_thinking)
        except BadInput as error:
            problems.append(str(error))
    if problems:
        what = f"{len(problems)} of {len(train)} training records cannot be written in dialect {dialect}"
        stops.append(f"{file}: {what} ({problems[0]}; here --dialect)")
    return stops


def _note_questions(facts: dict[str, Any], *, with_thinking: bool) -> list[str]:
    notes = list[str]()
    if facts["dialect"] == PLAIN and with_thinking and not facts["with_thinking"]:
        notes.append(
            "no record has thinking: prompts ask for some unless config.vqa.with_thinking=False (here "
            "--without-thinking)"
        )
    notes += [
        f"{outcome['written'] - outcome['read_back']} records written in dialect {outcome['dialect']} do not read back "
        f"(record {outcome['differ'][0]['id']}, {outcome['differ'][0]['problem']}): true replies would count as wrong"
        for outcome in facts["formats"]
        if outcome["read_back"] < outcome["written"]
    ]
    if facts["splits"].get(""):
        notes.append(f"{facts['splits']['']} records are in no split")
    if pairs := facts["contradictions"]:
        first = " and ".join(map(repr, pairs[0]))
        notes.append(f"{len(pairs)} questions of a picture have two answers (first in records {first})")
    notes += [
        f"{number} {'question has' if number == 1 else 'questions have'} {token!r}, which tokenizers read as a control "
        "token"
        for token, number in facts["control_tokens"].items()
    ]
    return notes
