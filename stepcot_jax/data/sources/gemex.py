"""GEMeX's questions: test records, training conversations and the thinking columns of GEMeX-RMCoT (Section 3)."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.released import (
    UNNAMED,
    Locate,
    Turn,
    convert_fields,
    label_boxes,
    list_records,
    read_turns,
    read_whole_reply,
    split_question,
    strip_letters,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import KINDS, Kind

_MIMIC_PATIENT = re.compile(r"(?:^|/)(p[0-9]{8})(?=/)")


class _TestRecord(msgspec.Struct, frozen=True):
    question: str
    answer: str | list[str]
    visual_regions: list[str]
    visual_locations: list[Corners]
    image_path: str
    choices: list[str] | None = None
    type: str = ""
    reason: str = ""
    ori_report: str = ""
    q_id: str | int = ""


class _TrainingRecord(msgspec.Struct, frozen=True):
    conversations: list[Turn]
    q_type: str
    image: str
    type_prompt: str = ""
    row_id: str | int = ""


class _ThinkingRecord(msgspec.Struct, frozen=True):
    image_path: str
    question: str
    question_type: str
    thinkVG: str  # noqa: N815
    response: str


def list_gemex(root: Path, how: How, files: Sequence[Path]) -> Source:
    """List the records of files; no release states the size of the picture that boxes refer to, so the caller must."""
    if how.box_size is None:
        raise BadInput("--box-size is required: width and height in pixels of the picture that GEMeX's boxes refer to")
    return list_records(root, how, files, _read)


def _read(fields: dict[str, Any], how: How, *, path: Path, locate: Locate) -> dict[str, Any]:
    """Return a record of a GEMeX file; the patient is that of a MIMIC-CXR path, else there is one per image."""
    if "conversations" in fields:
        made = _read_training(convert_fields(fields, _TrainingRecord))
    elif "thinkVG" in fields:
        made = _read_thinking(convert_fields(fields, _ThinkingRecord))
    else:
        made = _read_test(convert_fields(fields, _TestRecord), path=path)
    image_path, _ = locate(made["image"])
    patient = _MIMIC_PATIENT.search(image_path)
    made["provenance"]["licence"] = "MIMIC-CXR-JPG: credentialed access (PhysioNet)"
    made |= {"image": image_path, "image_size": how.box_size, "patient": patient[1] if patient else image_path}
    return made | {"origin": "GEMeX", "modality": "xray"}


def _read_test(record: _TestRecord, *, path: Path) -> dict[str, Any]:
    if len(record.visual_regions) != len(record.visual_locations):
        shown = f"{len(record.visual_locations)} boxes of {len(record.visual_regions)} regions"
        raise BadInput(f"visual_locations: {shown}; expected one box per region")
    return {
        "written": record.answer if isinstance(record.answer, str) else ", ".join(record.answer),
        "kind": _kind_of_test(record, path),
        "question": record.question.strip(),
        "options": strip_letters(record.choices or ()),
        "references": _label_regions(record.visual_regions, record.visual_locations),
        "thinking": record.reason.strip(),
        "topic": record.type,
        "report": record.ori_report.strip(),
        "split": "test",
        "image": record.image_path,
        "provenance": {"record": "GEMeX test record", "q_id": str(record.q_id)},
    }


def _read_training(record: _TrainingRecord) -> dict[str, Any]:
    prompt, reply = read_turns(record.conversations)
    question, choices = split_question(prompt.strip().removesuffix(record.type_prompt.strip()))
    return _from_reply(read_whole_reply(reply, "gemex_plain")) | {
        "kind": _kind_of_name(record.q_type, field="q_type"),
        "question": question,
        "options": choices,
        "image": record.image,
        "provenance": {"record": "GEMeX training record", "row_id": str(record.row_id)},
    }


def _read_thinking(record: _ThinkingRecord) -> dict[str, Any]:
    thinking = record.thinkVG.strip()
    if not thinking.startswith("<think>"):
        thinking = f"<think>{thinking}</think>"
    reply = read_whole_reply(f"{thinking}{record.response.strip()}", "gemex", field="thinkVG, response")
    question, choices = split_question(record.question)
    return _from_reply(reply) | {
        "kind": _kind_of_name(record.question_type, field="question_type"),
        "question": question,
        "options": choices,
        "image": record.image_path,
        "provenance": {"record": "GEMeX-RMCoT"},
    }


def _from_reply(reply: Reply) -> dict[str, Any]:
    regions = reply.references or ()
    names, boxes = [region.label or UNNAMED for region in regions], [region.corners for region in regions]
    return {
        "written": reply.answer or "",
        "references": _label_regions(names, boxes),
        "thinking": reply.thinking,
        "split": "train",
    }


def _label_regions(names: Iterable[str], boxes: Iterable[Corners]) -> tuple[Box, ...]:
    return label_boxes(map(str.strip, names), boxes, field="visual_locations[{}]")


def _kind_of_name(name: str, *, field: str) -> Kind:
    """Return the kind of "single_choice_questions", "single-choice" or "single"."""
    for kind in KINDS:
        if name.strip().lower().startswith(kind):
            return kind
    raise BadInput(f"{field}: {name[:80]!r} is not a question type; expected {', '.join(KINDS)}")


def _kind_of_test(record: _TestRecord, path: Path) -> Kind:
    """Return the one kind that the file's name has, else the kind that choices and answer show."""
    named = [kind for kind in KINDS if kind in path.stem.lower()]
    if len(named) == 1:
        return named[0]
    if record.choices:
        return "single" if isinstance(record.answer, str) else "multi"
    is_closed = isinstance(record.answer, str) and record.answer.strip(" .").lower() in ("yes", "no")
    return "closed" if is_closed else "open"
