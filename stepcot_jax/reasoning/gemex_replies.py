"""Replies of GEMeX: "gemex" with thinking (GEMeX-RMCoT, Figure 3 and Section 4.1) and "gemex_plain" as first released.

Grammar of "gemex"; white space may stand between tags:

    <think>text, with regions as **name** ([x1, y1, x2, y2])</think>
    <response><answer>..</answer><location><ref>name</ref><box>[x1, y1, x2, y2]</box>..</location></response>

Grammar of "gemex_plain":

    <answer> .. <reason> .. <location> [[x1, y1, x2, y2], ..]
"""

from stepcot_jax.box import Box
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import (
    IN_ROUND_BRACKETS,
    MOST_BOXES,
    Reply,
    check_text,
    find_named_boxes,
    read_boxes,
    read_parts,
    scan_tags,
    tag_pattern,
    write_answer,
    write_boxes,
)
from stepcot_jax.record import Record

_MARKS = ("think", "/think", "response", "answer", "/answer", "location", "/location", "/response")
_LOCATED = ("ref", "box")
_TAGS = ("think", "response", "answer", "location", *_LOCATED)
_PLAIN = ("answer", "reason", "location")


def write_gemex(record: Record) -> str:
    """Write a record, one <ref> and <box> per reference; without thinking the response alone, GEMeX-200K's target."""
    if not record.references:
        raise BadInput("references: none; dialect 'gemex' requires at least one box")
    located = "".join(
        f"<ref>{reference.label}</ref><box>{box}</box>"
        for reference, box in zip(record.references, write_boxes(record), strict=True)
    )
    answer = check_text("answer", write_answer(record), _TAGS)
    response = f"<response><answer>{answer}</answer><location>{located}</location></response>"
    if not record.thinking.strip():
        return response
    return f"<think>{check_text('thinking', record.thinking, _TAGS)}</think>\n{response}"


def read_gemex(text: str, *, with_thinking: bool = True) -> Reply:
    """Read a reply; <ref> holds the labels. Without thinking a reply is the response block alone."""
    parts = read_parts(text, _MARKS if with_thinking else _MARKS[2:])
    problems = list(parts.problems)
    location = parts.texts.get("location", "")
    references = _read_located(location) if location else None
    if location and references is None:
        problems.append("<location> is not names with boxes")
    thinking = parts.texts.get("think", "")
    if any(tag_pattern(_LOCATED).search(part) for part in (thinking, parts.texts.get("answer", ""))):
        problems.append("<ref> or <box> outside of <location>")
    return Reply(
        "gemex",
        answer=parts.texts.get("answer"),
        references=references,
        regions=tuple(region for region, _, _ in find_named_boxes(thinking, IN_ROUND_BRACKETS) if region.label),
        thinking=thinking,
        problems=tuple(problems),
    )


def _read_located(text: str) -> tuple[Box, ...] | None:
    """Return the boxes of <location>, where each <ref> is followed by at least one <box> of one or more boxes."""
    tags = scan_tags(text, _LOCATED, most=4 * MOST_BOXES) or []
    regions: list[Box] = []
    name, is_open, end = "", True, 0  # is_open: the last name has no box yet
    for opening, closing in zip(tags[::2], tags[1::2], strict=False):
        content = text[opening.end : closing.start]
        if closing.mark != f"/{opening.mark}" or text[end : opening.start].strip():
            return None
        if opening.mark == "ref":
            if not content.strip() or (name and is_open):
                return None
            name, is_open = content, True
        else:
            boxes = read_boxes(content) if name else None
            if boxes is None or len(regions) + len(boxes) > MOST_BOXES:
                return None
            regions += [Box(name, box) for box in boxes]
            is_open = False
        end = closing.end
    return None if is_open or text[end:].strip() else tuple(regions)


def write_gemex_plain(record: Record) -> str:
    """Write a record; its thinking is the reason. Labels are not written; no reference is written as []."""
    answer = check_text("answer", write_answer(record), _PLAIN)
    reason = check_text("thinking", record.thinking, _PLAIN)
    return f"<answer> {answer} <reason> {reason} <location> [{', '.join(write_boxes(record))}]"


def read_gemex_plain(text: str) -> Reply:
    """Read a reply; its boxes have no names."""
    parts = read_parts(text, _PLAIN)
    problems = list(parts.problems)
    location = parts.texts.get("location")
    references = None
    if location is not None:
        inner = location[1:-1].strip() if location[0] == "[" and location[-1] == "]" and len(location) > 1 else "-"
        boxes = read_boxes(inner) if inner else []
        references = None if boxes is None else tuple(Box("", box) for box in boxes)
        if references is None:
            problems.append("<location> is not a list of boxes")
    return Reply(
        "gemex_plain",
        answer=parts.texts.get("answer"),
        references=references,
        thinking=parts.texts.get("reason", ""),
        problems=tuple(problems),
    )
