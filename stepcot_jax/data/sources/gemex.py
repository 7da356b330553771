"""GEMeX as released: test records, training conversations and the thinking columns of GEMeX-RMCoT.

GEMeX-RMCoT, Section 3. No release states the size of the picture that its boxes refer to, so the caller must.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.intake import (
    UNNAMED,
    Turn,
    convert_fields,
    find_patient,
    iterate_records,
    locate_image,
    make_record,
    split_question,
    strip_letters,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import KINDS, Kind, Record, SetAside

ORIGIN = "GEMeX"
_LICENCE = "MIMIC-CXR-JPG: credentialed access (PhysioNet)"


class _TestRecord(msgspec.Struct, frozen=True):
    question: str
    answer: str | list[str]
    visual_regions: list[str]
    visual_locations: list[Corners]
    image_path: str
    choices: list[str] | None = None
    type: str = ""
    reason: str = ""
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


def is_gemex(keys: set[str]) -> bool:
    """Return whether a record with these fields is one of GEMeX."""
    return bool(keys & {"visual_locations", "thinkVG"}) or {"conversations", "q_type"} <= keys


def read_gemex(
    paths: Sequence[Path],
    *,
    root: Path,
    box_size: tuple[int, int] | None,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    set_aside: list[SetAside] | None = None,
) -> Iterator[Record]:
    """Yield the records of GEMeX files, one at a time."""
    if box_size is None or min(box_size) < 1:
        problem = "is required" if box_size is None else f"{list(box_size)} is no size"
        raise BadInput(f"--box-size {problem}: width and height in pixels of the picture that GEMeX's boxes refer to")
    locator = ImageLocator(root, require_images=require_images)
    read = functools.partial(_read, locator=locator, box_size=box_size)
    yield from iterate_records(paths, read, on_bad_record=on_bad_record, set_aside=set_aside)


def _read(
    fields: dict[str, Any], *, path: Path, location: str, locator: ImageLocator, box_size: tuple[int, int]
) -> Record:
    if "conversations" in fields:
        made = _read_training(convert_fields(fields, _TrainingRecord))
    elif "thinkVG" in fields:
        made = _read_thinking(convert_fields(fields, _ThinkingRecord))
    else:
        made = _read_test(convert_fields(fields, _TestRecord), path=path)
    image_path, _ = locate_image(locator, made.pop("image"))
    made["provenance"] |= {"file": path.name, "row": location, "licence": _LICENCE}
    return make_record(
        id=f"{path.name}:{location.rpartition(' ')[2]}",
        image=image_path,
        image_size=box_size,
        patient=find_patient(image_path),
        origin=ORIGIN,
        modality="xray",
        **made,
    )


def _read_test(record: _TestRecord, *, path: Path) -> dict[str, Any]:
    if len(record.visual_regions) != len(record.visual_locations):
        shown = f"{len(record.visual_locations)} boxes of {len(record.visual_regions)} regions"
        raise BadInput(f"visual_locations: {shown}; expected one box per region")
    kind = _kind_of_file(path) or _kind_of_test(record)
    return {
        "written": record.answer if isinstance(record.answer, str) else ", ".join(record.answer),
        "kind": kind,
        "question": record.question.strip(),
        "options": strip_letters(record.choices or ()),
        "references": _label(record.visual_regions, record.visual_locations),
        "thinking": record.reason.strip(),
        "topic": record.type,
        "split": "test",
        "image": record.image_path,
        "provenance": {"record": "GEMeX test record", "q_id": str(record.q_id)},
    }


def _read_training(record: _TrainingRecord) -> dict[str, Any]:
    speakers = [turn.speaker for turn in record.conversations]
    if speakers != ["human", "gpt"]:
        raise BadInput(f"conversations: turns of {speakers[:6]}; expected human, gpt")
    prompt = record.conversations[0].value.strip().removesuffix(record.type_prompt.strip())
    question, choices = split_question(prompt)
    reply = _read_reply(record.conversations[1].value, "gemex_plain", field="conversations[1].value")
    return _from_reply(reply) | {
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
    reply = _read_reply(f"{thinking}{record.response.strip()}", "gemex", field="thinkVG, response")
    question, choices = split_question(record.question)
    return _from_reply(reply) | {
        "kind": _kind_of_name(record.question_type, field="question_type"),
        "question": question,
        "options": choices,
        "image": record.image_path,
        "provenance": {"record": "GEMeX-RMCoT"},
    }


def _read_reply(text: str, dialect: str, *, field: str) -> Reply:
    reply = read_reply(text, dialect)
    if reply.problems:
        raise BadInput(f"{field}: {reply.problems[0]} (dialect {dialect!r})")
    return reply


def _from_reply(reply: Reply) -> dict[str, Any]:
    regions = reply.references or ()
    return {
        "written": reply.answer or "",
        "references": _label([region.label or UNNAMED for region in regions], [region.corners for region in regions]),
        "thinking": reply.thinking,
        "split": "train",
    }


def _label(names: Sequence[str], boxes: Sequence[Corners]) -> tuple[Box, ...]:
    made = []
    for number, (name, box) in enumerate(zip(names, boxes, strict=True)):
        try:
            made.append(Box(name.strip(), box).check())
        except BadInput as error:
            raise BadInput(f"visual_locations[{number}]: {error}") from None
    return tuple(made)


def _kind_of_file(path: Path) -> Kind | None:
    named = [kind for kind in KINDS if kind in path.stem.lower()]
    return named[0] if len(named) == 1 else None


def _kind_of_name(name: str, *, field: str) -> Kind:
    """Return the kind of "single_choice_questions", "single-choice" or "single"."""
    for kind in KINDS:
        if name.strip().lower().startswith(kind):
            return kind
    raise BadInput(f"{field}: {name[:80]!r} is not a question type; expected {', '.join(KINDS)}")


def _kind_of_test(record: _TestRecord) -> Kind:
    if record.choices:
        return "single" if isinstance(record.answer, str) else "multi"
    is_closed = isinstance(record.answer, str) and record.answer.strip(" .").lower() in ("yes", "no")
    return "closed" if is_closed else "open"
