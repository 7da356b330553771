"""Dialects: how four published systems write prompts and grounded replies, plain replies, and how replies are read.

| dialect | of | boxes | references keep |
|---|---|---|---|
| `gemex` | GEMeX-RMCoT, Figure 3 | whole pixels, x first | names and boxes |
| `gemex_plain` | GEMeX as released | whole pixels, x first | boxes |
| `lvkc` | MEDSAGE, Figure 12 | 0 to 1000, y first | names and boxes |
| `lvkc_released` | MEDSAGE's public code | whole pixels, x first | boxes |
| `medclm` | MedCLM's public code | unit square, four decimals, x first | names and boxes |
| `plain` | ours: an answer in words or letters | none | nothing |
| `levels` | ours: the JSON object that `stepcot constrain` asks for | none | nothing |
| `free` | any model, without a grammar; read only | as written | names and boxes |

Reading a written record returns its answer and these references, rounded half up to the dialect's precision.

White space may stand between tags. GEMeX, "gemex" with thinking (GEMeX-RMCoT, Figure 3 and Section 4.1), and
"gemex_plain" as first released:

    <think>text, with regions as **name** ([x1, y1, x2, y2])</think>
    <response><answer>..</answer><location><ref>name</ref><box>[x1, y1, x2, y2]</box>..</location></response>

    <answer> .. <reason> .. <location> [[x1, y1, x2, y2], ..]

MEDSAGE: "lvkc" as printed (Figure 12), where box_2d is [y1, x1, y2, x2] on a grid of 0 to 1000, and "lvkc_released" as
its public code writes it, in pixels, x first; there the conclusion is the answer:

    preamble <LOC>text with {"box_2d": [..], "label": ".."} and {"point": [..], "label": ".."}</LOC>
    <VISUAL>..</VISUAL><KNOWLEDGE>..</KNOWLEDGE><CON>..</CON><ANSWER>..</ANSWER>

    <LOC>{"bbox_xyxy_pixel": [[x1, y1, x2, y2], ..]}</LOC><VIS>..</VIS><KNO>..</KNO><CON>..</CON>

MedCLM: "medclm", boxes of the unit square within the reasoning, as its public code writes them. The hard stage, and it
alone, has neither reasoning nor boxes, only the answer:

    Reasoning: text, with boxes as **name** [0.2344, 0.6250, 0.3125, 0.6875]

    Answer: ..

Ours: "plain", the form of most data of medical questions; thinking is optional, and the rest is the answer:

    <think>text</think>
    the answer alone
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from stepcot_jax.box import GRID_1000, Box, Corners, Point, find_space
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.answers import find_answer, read_answer
from stepcot_jax.reasoning.endings import declines
from stepcot_jax.reasoning.free_replies import UNCLOSED, find_ending, read_free, split_thoughts
from stepcot_jax.reasoning.imaging import picture_of
from stepcot_jax.reasoning.levels import ANSWER_MARK, LEVELS, LEVELS_FORM, read_levels, write_levels
from stepcot_jax.reasoning.medclm_replies import read_medclm, write_medclm
from stepcot_jax.reasoning.plain_replies import PLAIN, read_plain, start_of_plain, write_plain
from stepcot_jax.reasoning.replies import (
    IN_ROUND_BRACKETS,
    LARGEST,
    MOST_BOXES,
    Reply,
    check_text,
    find_named_boxes,
    normalise,
    read_boxes,
    read_parts,
    scale_points,
    scan_tags,
    tag_pattern,
    without_stop_tokens,
    write_answer,
    write_boxes,
)
from stepcot_jax.record import STAGE_NAMES, Record, Stages

_GEMEX_MARKS = ("think", "/think", "response", "answer", "/answer", "location", "/location", "/response")
_GEMEX_LOCATED = ("ref", "box")
_GEMEX_TAGS = ("think", "response", "answer", "location", *_GEMEX_LOCATED)
_PLAIN_MARKS = ("answer", "reason", "location")


def write_gemex(record: Record) -> str:
    """Write a record, one <ref> and <box> per reference; without thinking the response alone, GEMeX-200K's target."""
    if not record.references:
        raise BadInput("references: none; dialect 'gemex' requires at least one box")
    located = "".join(
        f"<ref>{reference.label}</ref><box>{box}</box>"
        for reference, box in zip(record.references, write_boxes(record), strict=True)
    )
    answer = check_text("answer", write_answer(record), _GEMEX_TAGS)
    response = f"<response><answer>{answer}</answer><location>{located}</location></response>"
    if not record.thinking.strip():
        return response
    return f"<think>{check_text('thinking', record.thinking, _GEMEX_TAGS)}</think>\n{response}"


def read_gemex(text: str, *, with_thinking: bool = True) -> Reply:
    """Read a reply; <ref> holds the labels. Without thinking a reply is the response block alone."""
    parts = read_parts(text, _GEMEX_MARKS if with_thinking else _GEMEX_MARKS[2:])
    problems = list(parts.problems)
    location = parts.texts.get("location", "")
    references = _read_located(location) if location else None
    if location and references is None:
        problems.append("<location> is not names with boxes")
    thinking = parts.texts.get("think", "")
    if any(tag_pattern(_GEMEX_LOCATED).search(part) for part in (thinking, parts.texts.get("answer", ""))):
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
    tags = scan_tags(text, _GEMEX_LOCATED, most=4 * MOST_BOXES) or []
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
    answer = check_text("answer", write_answer(record), _PLAIN_MARKS)
    reason = check_text("thinking", record.thinking, _PLAIN_MARKS)
    return f"<answer> {answer} <reason> {reason} <location> [{', '.join(write_boxes(record))}]"


def read_gemex_plain(text: str) -> Reply:
    """Read a reply; its boxes have no names."""
    parts = read_parts(text, _PLAIN_MARKS)
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


_STAGE_TAGS = dict(zip(("LOC", "VISUAL", "KNOWLEDGE", "CON"), STAGE_NAMES, strict=True))
_RELEASED_TAGS = dict(zip(("LOC", "VIS", "KNO", "CON"), STAGE_NAMES, strict=True))
_LVKC_TAGS = (*_STAGE_TAGS, "ANSWER")
_LVKC_MARKS = tuple(mark for name in _LVKC_TAGS for mark in (name, f"/{name}"))
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
    """Write a record; the boxes of its references and its points follow the text of the localisation."""
    stages = _required_stages(record)
    texts = {tag: check_text(f"stages.{name}", getattr(stages, name), _LVKC_TAGS) for tag, name in _STAGE_TAGS.items()}
    if re.search("[{}]", texts["LOC"]):
        raise BadInput("stages.localisation: contains a curly bracket, which dialect 'lvkc' reserves for boxes")
    texts["LOC"] += "".join(
        f' {{"box_2d": {box}, "label": "{reference.label}"}}'
        for reference, box in zip(record.references, write_boxes(record, GRID_1000), strict=True)
    )
    texts["LOC"] += "".join(
        f' {{"point": [{point.at[0]:.0f}, {point.at[1]:.0f}], "label": "{point.label}"}}'
        for point in scale_points(record, GRID_1000, is_rounded=True)
    )
    texts["ANSWER"] = check_text("answer", write_answer(record), _LVKC_TAGS)
    preamble = f"{check_text('preamble', record.preamble, _LVKC_TAGS)}\n" if record.preamble.strip() else ""
    return preamble + "".join(f"<{tag}>{text}</{tag}>" for tag, text in texts.items())


def read_lvkc(text: str, *, in_any_space: bool = False) -> Reply:
    """Read a reply."""
    parts = read_parts(text, _LVKC_MARKS, has_preamble=True)
    problems = list(parts.problems)
    stages = {name: parts.texts[tag] for tag, name in _STAGE_TAGS.items() if tag in parts.texts}
    references, points = None, tuple[Point, ...]()
    if "LOC" in parts.texts:
        largest = LARGEST if in_any_space else 1000
        references, points, stages["localisation"] = _read_locations(parts.texts["LOC"], largest=largest)
        if references is None:
            limits = "" if in_any_space else " from 0 to 1000"
            problems.append(f"<LOC> has a place that is no JSON object with box_2d or point{limits}, and label")
    return Reply(
        "lvkc",
        answer=parts.texts.get("ANSWER"),
        references=references,
        points=points,
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


_MARKED_STAGES = {"lvkc": (_STAGE_TAGS, _LVKC_TAGS), "lvkc_released": (_RELEASED_TAGS, tuple(_RELEASED_TAGS))}
_MOST_STAGE_TAGS = 64


def find_stages(text: str, dialect: str) -> dict[str, tuple[int, int]]:
    """Return where the text of each stage starts and ends; a stage that repeats or holds a tag is left out.

    >>> find_stages("<VIS>dense</VIS><KNO>a <CON>b</CON>", "lvkc_released")
    {'visual': (5, 10), 'conclusion': (28, 29)}
    """
    stages, names = _MARKED_STAGES[dialect]
    tags = scan_tags(text, names, most=_MOST_STAGE_TAGS) or []
    counts = collections.Counter(tag.mark for tag in tags)
    return {
        stages[opening.mark]: (opening.end, closing.start)
        for opening, closing in itertools.pairwise(tags)
        if opening.mark in stages and closing.mark == f"/{opening.mark}" and counts[opening.mark] == 1
        if counts[closing.mark] == 1
    }


def _read_locations(text: str, *, largest: float) -> tuple[tuple[Box, ...] | None, tuple[Point, ...], str]:
    """Return boxes (None if an object is malformed) and points of a localisation, and the text without its objects."""
    rest, last, regions, points, is_readable = [], 0, [], [], True
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
        elif location.point is not None:
            points.append(Point(location.label, location.point))
    remaining = "".join([*rest, text[last:]]).strip()
    is_readable &= "{" not in remaining and "}" not in remaining
    return (tuple(regions), tuple(points), remaining) if is_readable else (None, (), remaining)


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


class _Dialect(NamedTuple):
    """A dialect: writer, reader, the form that prompts ask for (with and without thinking), and the answer's mark."""

    write: Callable[[Record], str]
    read: Callable[[str], Reply]
    form: str
    form_without_thinking: str
    answer_mark: str


_GEMEX_FORM = "final answer ({answer}) with corresponding visual location in <response> </response> tags."
_LVKC_FORM = (
    "Please describe the image, then output the location in <LOC> </LOC>, the visual analysis in <VISUAL> </VISUAL>, "
    "the medical knowledge in <KNOWLEDGE> </KNOWLEDGE>, the conclusion in <CON> </CON> and the final answer ({answer}) "
    "in <ANSWER> </ANSWER> tags."
)
_RELEASED_FORM = (
    "Please output the boxes in <LOC> </LOC>, the visual analysis in <VIS> </VIS>, the medical knowledge in "
    "<KNO> </KNO> and the final answer ({answer}) in <CON> </CON> tags."
)
_PLAIN_FORM = (
    "Please output the final answer ({answer}) after <answer>, the reason "
    "after <reason> and the boxes after <location>."
)

_DIALECTS = {
    "gemex": _Dialect(
        write_gemex,
        read_gemex,
        f"Please output the thinking process in <think> </think> and {_GEMEX_FORM}",
        f"Please output the {_GEMEX_FORM}",
        "<response>",
    ),
    "gemex_plain": _Dialect(write_gemex_plain, read_gemex_plain, _PLAIN_FORM, _PLAIN_FORM, "<answer>"),
    "lvkc": _Dialect(write_lvkc, read_lvkc, _LVKC_FORM, _LVKC_FORM, "<ANSWER>"),
    "lvkc_released": _Dialect(write_lvkc_released, read_lvkc_released, _RELEASED_FORM, _RELEASED_FORM, "<CON>"),
    "medclm": _Dialect(
        write_medclm,
        read_medclm,
        'Please output the reasoning with boxes after "Reasoning:" and the final answer ({answer}) after "Answer:".',
        'Please output the final answer ({answer}) after "Answer:".',
        "Answer:",
    ),
    PLAIN: _Dialect(
        write_plain,
        read_plain,
        "Please output the thinking process in <think> </think> tags, then the final answer ({answer}) alone.",
        "Please output the final answer ({answer}) alone.",
        "",
    ),
}
_OF_LEVELS = _Dialect(write_levels, read_levels, LEVELS_FORM, LEVELS_FORM, ANSWER_MARK)

FREE = "free"
"""The dialect of replies without a grammar: it is read, never written."""
WRITTEN: tuple[str, ...] = tuple(_DIALECTS)
"""Dialects of the published systems, in the order in which `choose_dialect` tries them, and `PLAIN`, never tried."""
DIALECTS = (*WRITTEN, FREE)
"""What `read_reply` reads: the dialects that are written, and "free"."""
AUTO = "auto"
"""In place of a dialect: `evaluation.replies.choose_dialect` chooses one for each file of replies."""

_KINDS = {
    "open": ("an open-ended", "a short text"),
    "closed": ("a closed-ended", "Yes or No"),
    "single": ("a single-choice", "an option"),
    "multi": ("a multi-choice", "all correct options"),
}


def write_reply(record: Record, dialect: str) -> str:
    """Write a record as a reply: the target of fine-tuning.

    Args:
      record: its answer, boxes and reasoning.
      dialect: of `DIALECTS`, but "free".

    Raises:
      BadInput: the dialect is not written, or the record lacks a part that it needs.
    """
    return _find(dialect).write(record)


def list_writable(record: Record) -> list[str]:
    """Return the dialects that can write a record."""
    able = []
    for dialect in WRITTEN:
        with contextlib.suppress(BadInput):
            write_reply(record, dialect)
            able.append(dialect)
    return able


def read_reply(
    text: str,
    dialect: str,
    *,
    with_thinking: bool = True,
    in_any_space: bool = False,
    space: str = "",
    image_size: tuple[int, int] = (0, 0),
) -> Reply:
    """Read a reply; no text raises, `Reply.problems` says what is wrong with it.

    Args:
      text: what the model wrote.
      dialect: of `DIALECTS`; "free" for replies without a grammar.
      with_thinking: False for replies of "gemex" without thinking (GEMeX-200K), and of "medclm" without reasoning.
      in_any_space: whether boxes of "medclm" and "lvkc" may have coordinates beyond those of the dialect.
      space: how boxes are written, as "qwen" (see `box.find_space`); "" for the dialect's own way. The dialect's order,
        x or y first, stays.
      image_size: width and height in pixels of the picture that the record's boxes refer to; for "pixels" and "qwen".

    Raises:
      BadInput: the dialect or the space is unknown.
    """
    if space:
        reply, place = (
            read_reply(text, dialect, with_thinking=with_thinking, in_any_space=True),
            find_space(space, image_size),
        )
        y_first = reply.space is not None and reply.space.y_first
        return dataclasses.replace(reply, space=dataclasses.replace(place, y_first=y_first))
    if dialect == FREE:
        return dataclasses.replace(read_free(text), text=text)
    read: Callable[..., Reply] = _find(dialect).read
    if read in (read_gemex, read_medclm):
        read = functools.partial(read, with_thinking=with_thinking)
    if in_any_space and dialect in ("lvkc", "medclm"):
        read = functools.partial(read, in_any_space=True)
    reply = read(without_stop_tokens(text))
    plain = normalise(text)  # with ASCII for full-width brackets, commas and digits
    if reply.problems and plain != text:
        reply = min(reply, read(plain), key=lambda reply: len(reply.problems))
    thinking, behind, is_open = split_thoughts(plain)
    if is_open and not plain.endswith("</response>"):  # a draft; GEMeX's complete response only lacks a </think>
        problems, (ending, _) = (*reply.problems, UNCLOSED), find_ending(thinking)
        reply = Reply(dialect, answer=ending or None, thinking=thinking, problems=problems, space=reply.space)
    elif thinking and not is_open and reply.problems:
        problems, read_behind = reply.problems, read(behind)
        answer = read_behind.answer if behind.strip() else find_ending(thinking)[0] or None
        reply = dataclasses.replace(
            read_behind, answer=answer, thinking=thinking, regions=reply.regions, problems=problems
        )
    return dataclasses.replace(reply, text=text)


def interpret_answer(reply: Reply, record: Record) -> str | tuple[str, ...] | None:
    """Return the answer of a reply in the form of `record.answer`; None if it has none that can be read."""
    if reply.answer is None:
        return None
    if record.is_answered_in_words:
        return None if declines(reply.answer) else read_answer(reply.answer, record)
    return find_answer(reply.parts or (reply.answer,), record)


def answer_start(reply: str, dialect: str) -> int:
    """Return the position at which the answer of a written reply begins; "gemex_plain" begins with it."""
    if dialect == PLAIN:
        return start_of_plain(reply)
    return max(reply.rfind(_find(dialect).answer_mark), 0)


def write_question(record: Record, dialect: str, *, with_thinking: bool = True) -> str:
    """Write the prompt: picture where the record names it, question, choices, kind of question and form of the reply.

    Args:
      record: its question, kind and options, modality and organ.
      dialect: of `DIALECTS`, but "free"; names the form that is asked for.
      with_thinking: whether to ask for reasoning before the answer.

    Raises:
      BadInput: the dialect is unknown.
    """
    style = _find(dialect)
    kind, answer = _KINDS[record.kind]
    if record.kind == "closed" and record.is_answered_in_words:
        answer = "a word or a short text"
    form = (style.form if with_thinking else style.form_without_thinking).format(answer=answer)
    choices = [f"{letter}: {choice}" for letter, choice in zip(string.ascii_uppercase, record.options, strict=False)]
    picture = picture_of(record)
    lines = [f"This is {picture}."] if picture else []
    lines += [record.question.strip(), f"<choices>: [{', '.join(choices)}]" if choices else ""]
    return "\n".join([*filter(None, lines), f"This is {kind} question. {form}"])


def _find(dialect: str) -> _Dialect:
    if dialect == LEVELS:
        return _OF_LEVELS
    if dialect not in _DIALECTS:
        accepted = WRITTEN if dialect == FREE else DIALECTS
        raise BadInput(f"dialect must be one of {', '.join(accepted)}; got {dialect!r}")
    return _DIALECTS[dialect]
