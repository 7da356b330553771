"""MEDSAGE's conversations of one turn of a human and one of a model: trajectories through L, V, K, C, or answers.

Section 3.1 (training tuple) and public code.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Point
from stepcot_jax.chain import fold
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.released import (
    REPLY,
    UNNAMED,
    Locate,
    NotARecord,
    Turn,
    convert_fields,
    label_boxes,
    list_records,
    read_turns,
    read_whole_reply,
    split_question,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply, read_points
from stepcot_jax.record import STAGE_NAMES, Kind, Stages

_TAGS = re.compile("<(LOC|VISUAL|VIS|KNOWLEDGE|KNO|CON|ANSWER)>")
_PRINTED, _RELEASED = ("VISUAL", "KNOWLEDGE", "ANSWER"), ("VIS", "KNO")
_LETTERS = re.compile(r"\(?[A-Z][.)]?(?:\s*,\s*\(?[A-Z][.)]?)*")


class _Conversation(msgspec.Struct, frozen=True):
    conversations: list[Turn]
    images: list[str] | None = None
    id: str | int = ""


def list_medsage(root: Path, how: How, files: Sequence[Path]) -> Source:
    """List the records of files; without `box_size` the size is that of the image's file."""
    return list_records(root, how, files, _read)


def _read(fields: dict[str, Any], how: How, *, locate: Locate, path: Path) -> dict[str, Any]:  # noqa: ARG001
    conversation = convert_fields(fields, _Conversation)
    prompt, response = read_turns(conversation.conversations, otherwise=NotARecord)
    images = conversation.images or []
    if len(images) != 1:
        raise NotARecord(f"images: {len(images)} images; a record is about one")
    made, reply = _read_response(response)
    image_path, real_path = locate(images[0])
    if how.box_size is None and not Path(real_path).is_file():
        raise BadInput("images: the image's file is missing, so --box-size is required")
    size = how.box_size or read_image_size(Path(real_path))
    references: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    if reply is not None:
        points = read_points(reply, size)
        names = (region.label.strip() or UNNAMED for region in reply.references or ())
        references = label_boxes(names, map(tuple, reply.boxes(size).tolist()), field="<LOC>, box {}")
    question, choices = split_question(prompt)
    made["provenance"]["licence"] = "of the image collections that MEDSAGE draws from"
    return made | {
        "kind": _find_kind(made["written"], choices, prompt=prompt),
        "field": REPLY,
        "image": image_path,
        "image_size": size,
        "patient": image_path,
        "origin": "MEDSAGE",
        "question": question,
        "options": choices,
        "references": references,
        "points": points,
    }


def _read_response(response: str) -> tuple[dict[str, Any], Reply | None]:
    tags = set(_TAGS.findall(response))
    if not tags:
        return {"written": response, "cue": "image", "provenance": {"record": "answer only"}}, None
    dialect = "lvkc" if tags & set(_PRINTED) else "lvkc_released"
    if len(tags) == 1:
        raise NotARecord(f"{REPLY}: the single stage <{tags.pop()}>; a record has all and an answer")
    if dialect == "lvkc" and tags & set(_RELEASED):
        raise BadInput(f"{REPLY}: tags of two dialects ({', '.join(sorted(tags))})")
    reply = read_whole_reply(response, dialect)
    made = {
        "written": reply.answer or "",
        "preamble": reply.preamble,
        "stages": _stages(reply),
        "cue": "box" if reply.references else "text",
        "provenance": {"record": f"trajectory, dialect {dialect}"},
    }
    return made, reply


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
        raise NotARecord(f"{REPLY}: the answer {written.strip()[:80]!r} without '<choices>: [A: ..]'")
    return "open"
