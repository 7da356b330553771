"""Replies of MedCLM's public code, dialect "medclm": a reasoning with boxes of the unit square, and the answer."""

import itertools
import re

from stepcot_jax.box import UNIT_SQUARE, Box
from stepcot_jax.chain import fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import (
    BOX,
    BOX_AFTER_NAME,
    IN_ROUND_BRACKETS,
    LARGEST,
    MOST_BOXES,
    NO_REASONING,
    Reply,
    corners_of,
    find_named_boxes,
    write_answer,
    write_boxes,
)
from stepcot_jax.record import Record

_HEADS = re.compile(r"^(Reasoning|Answer):", re.MULTILINE)
_LISTS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERS_BEGIN = re.compile(r"\s*[-+]?(?:[0-9.]|nan|inf)", re.IGNORECASE)


def write_medclm(record: Record) -> str:
    """Write a record: with thinking as the easy and medium stages, without as the hard stage, which writes no box."""
    answer = _check("answer", write_answer(record))
    if not record.thinking.strip():
        return f"Answer: {answer}"
    return f"Reasoning: {_write_reasoning(_check('thinking', record.thinking), record)}\n\nAnswer: {answer}"


def read_medclm(text: str, *, with_thinking: bool = True, in_any_space: bool = False) -> Reply:
    """Read a reply; its references are all boxes of the reasoning, those without a name included."""
    text = text.strip()
    heads = list(itertools.islice(_HEADS.finditer(text), 3))
    names = [head[1] for head in heads]
    problems = []
    if names not in (["Reasoning", "Answer"], ["Answer"]):
        problems.append("not one 'Reasoning:' and one 'Answer:', or one 'Answer:' alone")
    elif heads[0].start():
        problems.append(f"text before '{names[0]}:'")
    answer = text[heads[-1].end() :].strip() if names.count("Answer") == 1 and names[-1] == "Answer" else ""
    if not answer and not problems:
        problems.append("'Answer:' is empty")
    if with_thinking and names == ["Answer"] and not problems:
        problems.append(NO_REASONING)
    references: tuple[Box, ...] | None = () if names == ["Answer"] else None
    reasoning = ""
    if names == ["Reasoning", "Answer"]:
        reasoning = text[heads[0].end() : heads[1].start()].strip()
        references = _read_references(reasoning, largest=LARGEST if in_any_space else 1)
        if not reasoning:
            problems.append("'Reasoning:' is empty")
        if references is None:
            problems.append(f"a list of numbers is no box{'' if in_any_space else ' of the unit square'}")
    return Reply(
        "medclm",
        answer=answer or None,
        references=references,
        regions=references or (),
        thinking=reasoning,
        problems=tuple(problems),
        space=UNIT_SQUARE,
    )


def _read_references(reasoning: str, *, largest: float = 1) -> tuple[Box, ...] | None:
    """Return the boxes of a reasoning; None if a list of four numbers or more is no box from 0 to `largest`."""
    for number, match in enumerate(_LISTS.finditer(reasoning)):
        box = BOX.fullmatch(match[0])
        if box and not all(0 <= number <= largest for number in corners_of(box)):
            return None
        if number > MOST_BOXES or (not box and match[1].count(",") > 2 and _NUMBERS_BEGIN.match(match[1])):
            return None
    return tuple(region for region, _, _ in find_named_boxes(reasoning, BOX_AFTER_NAME))


def _write_reasoning(thinking: str, record: Record) -> str:
    """Put the references into the reasoning.

    Regions **name** ([x1, y1, x2, y2]) in pixels are written in the unit square if they are the references in order;
    otherwise they lose their boxes, and a last line lists the references. Boxes in the unit square already stay.
    """
    references = [reference.label for reference in record.references]
    boxes = write_boxes(record, UNIT_SQUARE)
    in_pixels = [corners_of(match) for box in write_boxes(record) if (match := BOX.match(box))]
    regions = list(find_named_boxes(thinking, IN_ROUND_BRACKETS))
    are_references = [(region.label, region.corners) for region, _, _ in regions] == list(
        zip(references, in_pixels, strict=True)
    )
    pieces, last = [], 0
    for index, (region, start, end) in enumerate(regions):
        name = f"**{region.label}**" if thinking.startswith("**", start) else ""
        pieces += [thinking[last:start], name, f" {boxes[index]}" if are_references else ""]
        last = end
    body = "".join([*pieces, thinking[last:]]).strip()
    written = _read_references(body)
    if written is None:
        raise BadInput("thinking: holds a list of numbers that is no box; dialect 'medclm' reads each as a box")
    named = [fold(label) in fold(region.label) for label, region in zip(references, written, strict=False)]
    if [_write_region(region) for region in written] == boxes and all(named):
        return _check("thinking", body)
    if written:
        raise BadInput("thinking: holds boxes or names other than the references; dialect 'medclm' reads them as such")
    listed = ", ".join(f"**{label}** {box}" for label, box in zip(references, boxes, strict=True))
    return f"{_check('thinking', body)}\nBoxes: {listed}"


def _write_region(region: Box) -> str:
    return f"[{', '.join(f'{number:.4f}' for number in region.corners)}]"


def _check(field: str, text: str) -> str:
    match = re.search(r"\n(Reasoning|Answer):", text)
    if match:
        raise BadInput(f"{field}: a line begins with '{match[1]}:', which dialect 'medclm' reserves for its parts")
    return text.strip()
