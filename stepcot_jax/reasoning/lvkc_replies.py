"""Replies of MEDSAGE: "lvkc" as printed (Figure 12) and "lvkc_released" as its public code writes them.

Grammar of "lvkc"; white space may stand between the stages, box_2d is [y1, x1, y2, x2] on a grid of 0 to 1000:

    preamble <LOC>text with {"box_2d": [..], "label": ".."} and {"point": [..], "label": ".."}</LOC>
    <VISUAL>..</VISUAL><KNOWLEDGE>..</KNOWLEDGE><CON>..</CON><ANSWER>..</ANSWER>

Grammar of "lvkc_released", in pixels, x first; the conclusion is the answer:

    <LOC>{"bbox_xyxy_pixel": [[x1, y1, x2, y2], ..]}</LOC><VIS>..</VIS><KNO>..</KNO><CON>..</CON>
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from stepcot_jax.box import GRID_1000, Box, Corners
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import LARGEST, MOST_BOXES, Reply, check_text, read_parts, write_answer, write_boxes
from stepcot_jax.record import STAGE_NAMES, Record, Stages

_STAGE_TAGS = dict(zip(("LOC", "VISUAL", "KNOWLEDGE", "CON"), STAGE_NAMES, strict=True))
_RELEASED_TAGS = dict(zip(("LOC", "VIS", "KNO", "CON"), STAGE_NAMES, strict=True))
_TAGS = (*_STAGE_TAGS, "ANSWER")
_MARKS = tuple(mark for name in _TAGS for mark in (name, f"/{name}"))
_RELEASED_MARKS = tuple(mark for name in _RELEASED_TAGS for mark in (name, f"/{name}"))
_OBJECT = re.compile(r"\{[^{}]*\}")
_LONG_NUMBER = re.compile(r"[0-9]{20}")
_STRINGS = re.compile(r'"[^"\\]*"')


class _Location(msgspec.Struct):
    label: str
    box_2d: Corners | None = None
    point: tuple[float, float] | None = None


class _Pixels(msgspec.Struct):
    bbox_xyxy_pixel: tuple[Corners, ...]


_LOCATION = msgspec.json.Decoder(_Location)
_PIXELS = msgspec.json.Decoder(_Pixels)


def write_lvkc(record: Record) -> str:
    """Write a record; the boxes of its references follow the text of the localisation."""
    stages = _required_stages(record)
    texts = {tag: check_text(f"stages.{name}", getattr(stages, name), _TAGS) for tag, name in _STAGE_TAGS.items()}
    if re.search("[{}]", texts["LOC"]):
        raise BadInput("stages.localisation: contains a curly bracket, which dialect 'lvkc' reserves for boxes")
    texts["LOC"] += "".join(
        f' {{"box_2d": {box}, "label": "{reference.label}"}}'
        for reference, box in zip(record.references, write_boxes(record, GRID_1000), strict=True)
    )
    texts["ANSWER"] = check_text("answer", write_answer(record), _TAGS)
    preamble = f"{check_text('preamble', record.preamble, _TAGS)}\n" if record.preamble.strip() else ""
    return preamble + "".join(f"<{tag}>{text}</{tag}>" for tag, text in texts.items())


def read_lvkc(text: str, *, in_any_space: bool = False) -> Reply:
    """Read a reply; its points are checked and left out."""
    parts = read_parts(text, _MARKS, has_preamble=True)
    problems = list(parts.problems)
    stages = {name: parts.texts[tag] for tag, name in _STAGE_TAGS.items() if tag in parts.texts}
    references = None
    if "LOC" in parts.texts:
        references, stages["localisation"] = _read_locations(
            parts.texts["LOC"], largest=LARGEST if in_any_space else 1000
        )
        if references is None:
            limits = "" if in_any_space else " from 0 to 1000"
            problems.append(f"<LOC> has a place that is no JSON object with box_2d or point{limits}, and label")
    return Reply(
        "lvkc",
        answer=parts.texts.get("ANSWER"),
        references=references,
        preamble=parts.preamble,
        stages=stages,
        problems=tuple(problems),
        space=GRID_1000,
    )


def write_lvkc_released(record: Record) -> str:
    """Write a record; localisation is the boxes alone, without labels, and the conclusion is the answer alone."""
    stages, tags = _required_stages(record), tuple(_RELEASED_TAGS)
    visual, knowledge = (check_text(f"stages.{name}", getattr(stages, name), tags) for name in ("visual", "knowledge"))
    boxes = f'{{"bbox_xyxy_pixel": [{", ".join(write_boxes(record))}]}}'
    answer = check_text("answer", write_answer(record), tags)
    return f"<LOC>{boxes}</LOC><VIS>{visual}</VIS><KNO>{knowledge}</KNO><CON>{answer}</CON>"


def read_lvkc_released(text: str) -> Reply:
    """Read a reply; its boxes have no names."""
    parts = read_parts(text, _RELEASED_MARKS)
    problems = list(parts.problems)
    stages = {name: parts.texts[tag] for tag, name in _RELEASED_TAGS.items() if tag in parts.texts and tag != "LOC"}
    references = None
    if "LOC" in parts.texts:
        decoded = _decode(_PIXELS, parts.texts["LOC"])
        if decoded is not None and len(decoded.bbox_xyxy_pixel) <= MOST_BOXES and _are_usable(decoded.bbox_xyxy_pixel):
            references = tuple(Box("", box) for box in decoded.bbox_xyxy_pixel)
        else:
            problems.append("<LOC> is not a JSON object with bbox_xyxy_pixel")
    return Reply(
        "lvkc_released", answer=parts.texts.get("CON"), references=references, stages=stages, problems=tuple(problems)
    )


def _read_locations(text: str, *, largest: float) -> tuple[tuple[Box, ...] | None, str]:
    """Return the boxes of a localisation, None if an object is malformed, and the text without its objects."""
    rest, last, regions, is_readable = [], 0, [], True
    for number, match in enumerate(_OBJECT.finditer(text)):
        rest.append(text[last : match.start()])
        last = match.end()
        location = _decode(_LOCATION, match[0]) if is_readable and number < MOST_BOXES else None
        if location is None or not location.label.strip() or (location.box_2d is None) == (location.point is None):
            is_readable = False
            continue
        numbers = location.box_2d or location.point or ()
        is_readable = all(0 <= number <= largest for number in numbers)
        if location.box_2d is not None:
            regions.append(Box(location.label, location.box_2d))
    remaining = "".join([*rest, text[last:]]).strip()
    is_readable &= "{" not in remaining and "}" not in remaining
    return (tuple(regions) if is_readable else None), remaining


def _decode(decoder: msgspec.json.Decoder[Any], text: str) -> Any:
    """Decode JSON; None if it is malformed or holds a number of 20 digits or more."""
    if _LONG_NUMBER.search(text) and _LONG_NUMBER.search(_STRINGS.sub("", text)):
        return None
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def _are_usable(boxes: Iterable[Corners]) -> bool:
    return all(abs(number) < LARGEST for box in boxes for number in box)


def _required_stages(record: Record) -> Stages:
    if record.stages is None:
        raise BadInput("stages: none; dialects 'lvkc' and 'lvkc_released' require all four")
    return record.stages
