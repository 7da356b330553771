"""MEDSAGE conversations: full trajectories through the stages L, V, K, C, and answers without stages.

MEDSAGE, Section 3.1 (training tuple) and its public code; a record is one turn of a human and one of a model.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.data.sources.intake import (
    UNNAMED,
    NotARecord,
    Turn,
    convert_fields,
    iterate_records,
    locate_image,
    make_record,
    read_image_size,
    split_question,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import STAGE_NAMES, Kind, Record, SetAside, Stages

ORIGIN = "MEDSAGE"
_LICENCE = "of the image collections that MEDSAGE draws from"
_TAGS = re.compile("<(LOC|VISUAL|VIS|KNOWLEDGE|KNO|CON|ANSWER)>")
_PRINTED, _RELEASED = ("VISUAL", "KNOWLEDGE", "ANSWER"), ("VIS", "KNO")
_LETTERS = re.compile(r"\(?[A-Z][.)]?(?:\s*,\s*\(?[A-Z][.)]?)*")


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[Turn]
    images: list[str] | None = None
    id: str | int = ""


def is_medsage(keys: set[str]) -> bool:
    """Return whether a record with these fields is a conversation of MEDSAGE."""
    return "conversations" in keys and "q_type" not in keys


def read_medsage(
    paths: Sequence[Path],
    *,
    root: Path,
    box_size: tuple[int, int] | None = None,
    on_bad_record: OnBadRecord = "stop",
    require_images: bool = True,
    set_aside: list[SetAside] | None = None,
) -> Iterator[Record]:
    """Yield the records of MEDSAGE files, one at a time."""
    locator = ImageLocator(root, require_images=require_images)
    read = functools.partial(_read, locator=locator, box_size=box_size)
    yield from iterate_records(paths, read, on_bad_record=on_bad_record, set_aside=set_aside)


def _read(
    fields: dict[str, Any], *, path: Path, location: str, locator: ImageLocator, box_size: tuple[int, int] | None
) -> Record:
    conversation = convert_fields(fields, _Conversation)
    speakers = [turn.speaker for turn in conversation.conversations]
    if speakers != ["human", "gpt"]:
        raise NotARecord(f"conversations: turns of {speakers[:6]}; a record is one of human and one of gpt")
    if len(conversation.images or ()) != 1:
        raise NotARecord(f"images: {len(conversation.images or ())} images; a record is about one")
    prompt, response = (turn.value for turn in conversation.conversations)
    made = _read_response(response)
    image_path, real_path = locate_image(locator, (conversation.images or [""])[0])
    if box_size is None and not Path(real_path).is_file():
        raise BadInput("images: the image's file is missing, so --box-size is required")
    size = box_size or read_image_size(Path(real_path))
    reply = made.pop("reply")
    references = []
    if reply is not None:
        for number, (region, corners) in enumerate(zip(reply.references, reply.boxes(size).tolist(), strict=True)):
            try:
                references.append(Box(region.label.strip() or UNNAMED, tuple(corners)).check())
            except BadInput as error:
                raise BadInput(f"<LOC>, box {number}: {error}") from None
    question, choices = split_question(prompt)
    return make_record(
        id=f"{path.name}:{location.rpartition(' ')[2]}",
        kind=_find_kind(made["written"], choices, prompt=prompt),
        field="conversations[1].value",
        image=image_path,
        image_size=size,
        patient=image_path,
        origin=ORIGIN,
        question=question,
        options=choices,
        references=tuple(references),
        provenance={"file": path.name, "row": location, "licence": _LICENCE} | made.pop("provenance"),
        **made,
    )


def _read_response(response: str) -> dict[str, Any]:
    tags = set(_TAGS.findall(response))
    if not tags:
        return {"written": response, "cue": "image", "reply": None, "provenance": {"record": "answer only"}}
    dialect = "lvkc" if tags & set(_PRINTED) else "lvkc_released"
    if len(tags) == 1:
        raise NotARecord(f"conversations[1].value: the single stage <{tags.pop()}>; a record has all and an answer")
    if dialect == "lvkc" and tags & set(_RELEASED):
        raise BadInput(f"conversations[1].value: tags of two dialects ({', '.join(sorted(tags))})")
    reply = read_reply(response, dialect)
    if reply.problems:
        raise BadInput(f"conversations[1].value: {reply.problems[0]} (dialect {dialect!r})")
    return {
        "written": reply.answer or "",
        "preamble": reply.preamble,
        "stages": _stages(reply),
        "cue": "box" if reply.references else "text",
        "reply": reply,
        "provenance": {"record": f"trajectory, dialect {dialect}"},
    }


def _stages(reply: Reply) -> Stages:
    """Return the four texts; the released dialect locates only by boxes, so its localisation states their number."""
    number = len(reply.references or ())
    located = f"{number} located region{'' if number == 1 else 's'}."
    texts = dict.fromkeys(STAGE_NAMES, "") | dict(reply.stages)
    texts["localisation"] = texts["localisation"] or located
    return Stages(**texts)


def _find_kind(written: str, choices: Sequence[str], *, prompt: str) -> Kind:
    """Return the kind of a question; with choices, a prompt that says so or several letters make it "multi"."""
    if choices and "multi-choice" in prompt:
        return "multi"
    if choices:
        return "multi" if "," in written and _LETTERS.fullmatch(written.strip()) else "single"
    if fold(written).rstrip(".") in ("yes", "no"):
        return "closed"
    if _LETTERS.fullmatch(written.strip()):
        raise NotARecord(f"conversations[1].value: the answer {written.strip()[:80]!r} without '<choices>: [A: ..]'")
    return "open"
