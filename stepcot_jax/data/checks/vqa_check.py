"""Check a file of reasoning records: what it holds, in which dialects it can be written, what would stop a run."""

import collections
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepcot_jax.box import convert_rounded, pixels
from stepcot_jax.chain import fold
from stepcot_jax.data.checks.check import CheckOptions
from stepcot_jax.data.checks.check_printing import Table, list_reasons, make_tables_printable
from stepcot_jax.data.checks.check_records import Reasons
from stepcot_jax.data.checks.vqa_counts import LENGTHS, count_lengths_of, count_records
from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.questions.record_files import VqaCollection, read_vqa_records
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reasoning.dialects import DIALECTS, read_reply, write_reply
from stepcot_jax.reasoning.replies import read_answer
from stepcot_jax.record import Record, SetAside

_NUM_EXAMPLES = 5
_MISSING = "does not exist below the data root"


def check_vqa(root: Path, options: CheckOptions, *, terminal: Terminal) -> dict[str, Any]:
    """Return the facts of a file of reasoning records.

    Every record is written in every dialect and read back; what is read must have its answer and its boxes, to the
    dialect's precision.
    """
    collection = read_vqa_records(root, on_bad_record="skip", require_images=options.images != "none")
    unreadable = _find_unreadable(collection, options, terminal) if options.images == "decode" else {}
    records = [record for record in collection.records if record.image not in unreadable]
    reasons = Reasons()
    for item in collection.set_aside:
        reasons.append(item)
    bad_lines = {item.record for item in collection.set_aside}
    lines = (line for line in itertools.count(1) if line not in bad_lines)
    for line, record in zip(lines, collection.records, strict=False):
        if record.image in unreadable:
            reasons.append(SetAside(line, record.image, unreadable[record.image], record.patient))
    watched = terminal.watch(records, "writing in every dialect")
    facts: dict[str, Any] = {
        "root": str(collection.root),
        "layout": "reasoning records",
        "file": collection.path.name,
        "records": len(records) + len(reasons),
        "set_aside": len(reasons),
        "set_aside_reasons": reasons.as_facts(),
        "images": options.images,
        **count_records(records),
        "lengths": {name: _spread(count_lengths_of(records, name)) for name in LENGTHS},
        "formats": _try_formats(watched),
    }
    facts["patients_in_several_splits"] = _count_shared(records)
    facts["stops"] = _find_stops(facts, options)
    facts["notes"] = _note(facts)
    return facts


def _find_unreadable(collection: VqaCollection, options: CheckOptions, terminal: Terminal) -> dict[str, str]:
    """Return the images that cannot be decoded, with the reason."""
    found = {}
    paths = list(dict.fromkeys(record.image for record in collection.records))
    for path in terminal.watch(paths, "reading the images"):
        try:
            content = read_file(collection.root / path, max_bytes=most_bytes(options.max_pixels))
            decode_picture(content, name=path, max_pixels=options.max_pixels)
        except (BadInput, OSError) as error:
            found[path] = f"image_path: {error}"
    return found


def _spread(lengths: Sequence[int]) -> dict[str, float]:
    if not lengths:
        return {"texts": 0}
    low, middle, high = np.percentile(lengths, (5, 50, 95)).tolist()
    return {
        "texts": len(lengths),
        "percentile_5": low,
        "median": middle,
        "percentile_95": high,
        "longest": max(lengths),
    }


def _try_formats(records: Iterable[Record]) -> list[dict[str, Any]]:
    formats: dict[str, dict[str, Any]] = {
        dialect: {"dialect": dialect, "written": 0, "read_back": 0, "refused": collections.Counter(), "differ": []}
        for dialect in DIALECTS
    }
    for record in records:
        for dialect, found in formats.items():
            try:
                text = write_reply(record, dialect)
            except BadInput as error:
                found["refused"][str(error)[:200]] += 1
                continue
            found["written"] += 1
            if problem := find_difference(record, text, dialect):
                found["differ"] = [*found["differ"], {"id": record.id, "problem": problem}][:_NUM_EXAMPLES]
            else:
                found["read_back"] += 1
    for found in formats.values():
        found["refused"] = dict(found["refused"].most_common(_NUM_EXAMPLES))
    return list(formats.values())


def find_difference(record: Record, text: str, dialect: str) -> str:
    """Return how a written reply differs from its record when it is read; "" if it does not."""
    reply = read_reply(text, dialect, with_thinking=bool(record.thinking.strip()))
    if reply.problems:
        return f"form: {reply.problems[0]}"
    answer = fold(record.answer) if record.kind == "open" and isinstance(record.answer, str) else record.answer
    if reply.answer is None or read_answer(reply.answer, record) != answer:
        return f"answer: {reply.answer!r:.80}"
    is_without_boxes = dialect == "medclm" and not record.thinking.strip()  # MedCLM's hard stage
    source = pixels(record.image_size)
    boxes = [] if is_without_boxes else [reference.corners for reference in record.references]
    expected = convert_rounded(boxes, source=source, target=reply.space or source)
    found = np.array([region.corners for region in reply.references or ()]).reshape(-1, 4)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=0, atol=1e-9):
        return f"boxes: {found.tolist()!r:.80}"
    return ""


def _count_shared(records: Sequence[Record]) -> int:
    """Count the patients that are in more than one split."""
    splits = collections.defaultdict(set)
    for record in records:
        splits[record.patient].add(record.split)
    return sum(len(found - {""}) > 1 for found in splits.values())


def _find_stops(facts: dict[str, Any], options: CheckOptions) -> list[str]:
    stops, file = [], facts["file"]
    num_good = facts["records"] - facts["set_aside"]
    if facts["set_aside"] and (options.on_bad_record == "stop" or not num_good):
        stops.append(
            f"{file}: {facts['set_aside']} of {facts['records']} lines are bad (set aside below); on_bad_record=skip "
            "continues without them"
        )
        missing = next((each["reason"] for each in facts["set_aside_reasons"] if _MISSING in each["reason"]), "")
        stops += [f"{file}: {missing}"] if missing else []
    if facts["patients_in_several_splits"]:
        stops.append(f"{file}: {facts['patients_in_several_splits']} patients are in more than one split")
    by_split = facts["splits"]
    if any(by_split.get(name) for name in SPLIT_NAMES) and not by_split.get("train"):
        stops.append(f"{file}: no record is in the train split")
    for found in facts["formats"]:
        if found["read_back"] < found["written"]:
            example = found["differ"][0]
            stops.append(
                f"{file}: {found['written'] - found['read_back']} records written in dialect {found['dialect']} do not "
                f"read back (record {example['id']}, {example['problem']})"
            )
    return stops


def _note(facts: dict[str, Any]) -> list[str]:
    num_good = facts["records"] - facts["set_aside"]
    notes = [
        f"{num_good - found['written']} records cannot be written in dialect {found['dialect']} "
        f"({next(iter(found['refused']))})"
        for found in facts["formats"]
        if found["written"] < num_good
    ]
    if facts["splits"].get(""):
        notes.append(f"{facts['splits']['']} records are in no split")
    return notes


def list_vqa_tables(facts: dict[str, Any]) -> list[Table]:
    """Return the facts as tables of printable cells."""
    names = ("records", "set_aside", "patients", "pictures", "boxes", "with_thinking", "with_stages")
    spread = ("texts", "percentile_5", "median", "percentile_95", "longest")
    splits = [name for name in (*SPLIT_NAMES, "") if facts["splits"].get(name)]
    return make_tables_printable(
        [
            (
                f"{facts['root']}: {facts['layout']} ({facts['file']})",
                ("", "number"),
                [[name.replace("_", " "), f"{facts[name]:,}"] for name in names],
            ),
            (
                "Records by kind and split",
                ("kind", *(name or "(none)" for name in splits), "all"),
                [
                    [kind, *(f"{counts.get(name, 0):,}" for name in splits), f"{sum(counts.values()):,}"]
                    for kind, counts in facts["kinds"].items()
                ],
            ),
            (
                "Boxes of a record",
                ("boxes", "records"),
                [[number, f"{count:,}"] for number, count in facts["boxes_of_records"].items()],
            ),
            (
                "Lengths (words)",
                ("text", *(name.replace("_", " ") for name in spread)),
                [[name, *(f"{found.get(key, 0):,.0f}" for key in spread)] for name, found in facts["lengths"].items()],
            ),
            (
                "Formats",
                ("dialect", "written", "read back"),
                [[each["dialect"], f"{each['written']:,}", f"{each['read_back']:,}"] for each in facts["formats"]],
            ),
            list_reasons(facts),
        ]
    )
