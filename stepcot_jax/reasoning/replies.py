"""Replies as they are read: answer, boxes, stages, and violations of the dialect's grammar."""

import dataclasses
import functools
import html
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from stepcot_jax.box import Box, Corners, Point, Space, as_corners, convert, convert_rounded, pixels
from stepcot_jax.chain import fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

NOTHING: Mapping[str, str] = MappingProxyType({})

Missing = Literal["wrong", "stop", "skip"]
"""How a missing reply counts: as wrong, as a reason to refuse the file, or not at all."""

NO_REASONING = "no 'Reasoning:', which the hard stage alone leaves out"
"""A problem that costs the format alone: answer and boxes count as those of a well-formed reply."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """The parts of a reply as a dialect's reader returns them.

    Attributes:
      dialect: that it was read in.
      answer: None if no single answer part could be read.
      references: boxes of the answer, as written; None if missing or unreadable.
      points: points of the localisation, as written.
      regions: boxes named within the reasoning.
      thinking: reasoning before the answer.
      preamble: text before the first stage.
      stages: texts by `record.STAGE_NAMES`.
      problems: why the text violates the dialect's grammar, each a short phrase.
      space: coordinates of its boxes; None for pixels of the record's `image_size`.
      text: what was read.
      parts: where the answer to a question with options may stand, in order; () where `answer` is the only place.
    """

    dialect: str
    answer: str | None = None
    references: tuple[Box, ...] | None = None
    points: tuple[Point, ...] = ()
    regions: tuple[Box, ...] = ()
    thinking: str = ""
    preamble: str = ""
    stages: Mapping[str, str] = dataclasses.field(default_factory=lambda: NOTHING)
    problems: tuple[str, ...] = ()
    space: Space | None = None
    text: str = dataclasses.field(default="", compare=False, repr=False)
    parts: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    @property
    def is_well_formed(self) -> bool:
        """Whether the text follows the dialect's grammar."""
        return not self.problems

    @property
    def counts(self) -> bool:
        """Whether answer and boxes count where an ill-formed reply earns nothing."""
        return set(self.problems) <= {NO_REASONING}

    def boxes(self, image_size: Sequence[float]) -> Float64[np.ndarray, "box 4"]:
        """Return the references as corners in pixels of a picture of (width, height), x first; of (0, 0) as written."""
        written = [region.corners for region in self.references or ()]
        if not all(image_size):
            return as_corners(written)
        return convert(written, source=self.space or pixels(image_size), target=pixels(image_size))


def read_points(reply: Reply, image_size: Sequence[float]) -> tuple[Point, ...]:
    """Return a reply's points in pixels of a picture of (width, height)."""
    written = [point.at * 2 for point in reply.points]
    boxes = convert(written, source=reply.space or pixels(image_size), target=pixels(image_size)).tolist()
    return tuple(Point(point.label, (box[0], box[1])) for point, box in zip(reply.points, boxes, strict=True))


def scale_points(record: Record, target: Space, *, is_rounded: bool = False) -> tuple[Point, ...]:
    """Return a record's points in another space; x and y stand in the order of the space's boxes."""
    if not record.points:
        return ()
    change = convert_rounded if is_rounded else convert
    boxes = change([point.at * 2 for point in record.points], source=pixels(record.image_size), target=target).tolist()
    return tuple(Point(point.label, (box[0], box[1])) for point, box in zip(record.points, boxes, strict=True))


# Tags, numbers and boxes in text, read in time linear in its length.


MOST_BOXES = 10_000
LARGEST = 1e9
"""Coordinates of this size and beyond are refused."""

NUMBER = r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_BOX = r"\[\s*" + r"\s*,\s*".join([NUMBER] * 4) + r"\s*\]"
BOX = re.compile(_BOX)
IN_ROUND_BRACKETS = re.compile(rf"\(\s*{_BOX}\s*\)")
"""A box as thinking texts of GEMeX-RMCoT write it after a name: ([x1, y1, x2, y2])."""
BOX_AFTER_NAME = re.compile(rf"(?:\(\s*)?{_BOX}")

_MOST_TAGS = 64  # of tags that may occur once
_COMMA = re.compile(r"\s*,\s*")
_NAME_ENDS = re.compile(r"[\[\](){}*<>.,:;!?\n]")


class Tag(NamedTuple):
    """A tag: "think" for <think>, "/think" for </think>, and the positions of its start and end."""

    mark: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a text between its tags; `texts` has each part that occurs exactly once and is not blank."""

    texts: Mapping[str, str] = dataclasses.field(default_factory=lambda: NOTHING)
    preamble: str = ""
    problems: tuple[str, ...] = ()


@functools.cache
def tag_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the opening and closing tags of these names, in exact case."""
    return re.compile(f"<(/?(?:{'|'.join(names)}))>")


def scan_tags(text: str, names: tuple[str, ...], *, most: int) -> list[Tag] | None:
    """Return the tags of these names in order; None if there are more than `most`."""
    matches = itertools.islice(tag_pattern(names).finditer(text), most + 1)
    tags = [Tag(match[1], *match.span()) for match in matches]
    return tags if len(tags) <= most else None


def read_parts(text: str, marks: tuple[str, ...], *, has_preamble: bool = False) -> Parts:
    """Split a text into the parts between `marks`, its tags in order; a part without a closing tag ends at the next."""
    tags = scan_tags(text, tuple(dict.fromkeys(mark.lstrip("/") for mark in marks)), most=_MOST_TAGS)
    if tags is None:
        return Parts(problems=("too many tags",))
    tags = [tag for tag in tags if tag.mark in marks]
    counts = Counter(tag.mark for tag in tags)
    pairs = list(zip(tags, [*tags[1:], Tag("", len(text), len(text))], strict=False))
    preamble = text[: tags[0].start].strip() if tags else ""
    problems = [f"<{mark}> is missing" for mark in marks if not counts[mark]]
    problems += [f"<{mark}> occurs more than once" for mark in marks if counts[mark] > 1]
    if not problems and tuple(tag.mark for tag in tags) != marks:
        problems.append("tags are out of order")
    if not problems:
        holders = [tag.mark.startswith("/") or f"/{tag.mark}" in {*marks} - {end.mark} for tag, end in pairs]
        gaps = [text[tag.end : end.start] for (tag, end), is_gap in zip(pairs, holders, strict=True) if is_gap]
        if any(gap.strip() for gap in gaps) or (preamble and not has_preamble):
            problems.append("text outside of the tags")
    texts = {}
    closings = {tag.mark[1:]: tag for tag in tags if tag.mark.startswith("/")}
    for tag, following in pairs:
        end = closings.get(tag.mark) if f"/{tag.mark}" in marks else following
        is_part = not tag.mark.startswith("/") and counts[tag.mark] == 1 and counts[f"/{tag.mark}"] <= 1
        if not is_part or end is None or end.start < tag.end:
            continue
        texts[tag.mark] = text[tag.end : end.start].strip()
    problems += [f"<{mark}> is empty" for mark, content in texts.items() if not content]
    return Parts({mark: content for mark, content in texts.items() if content}, preamble, tuple(problems))


def read_boxes(text: str) -> list[Corners] | None:
    """Return the boxes of a text of comma-separated boxes; None for any other text."""
    boxes: list[Corners] = []
    text, position = text.strip(), 0
    while (match := BOX.match(text, position)) and len(boxes) < MOST_BOXES:
        boxes.append(corners_of(match))
        if match.end() == len(text):
            return boxes
        comma = _COMMA.match(text, match.end())
        if not comma:
            return None
        position = comma.end()
    return None


def corners_of(match: re.Match[str]) -> Corners:
    """Return the four numbers of a box; a group "sized" marks one that is written as x, y, width and height."""
    first, second, third, fourth = (float(number) for number in match.groups() if number)
    is_sized = match.re.groupindex and match["sized"] is not None
    return (first, second, first + third, second + fourth) if is_sized else (first, second, third, fourth)


def find_named_boxes(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[Box, int, int]]:
    """Yield the boxes that match a pattern, named by the bold or last words before each, and their start and end."""
    last = 0
    for match in itertools.islice(pattern.finditer(text), MOST_BOXES):
        before = text[last : match.start()].rstrip()
        body = before.removesuffix("**")
        bold = body.rfind("**") if body != before else -1
        if bold >= 0:
            name, start = body[bold + 2 :], last + bold
        else:
            name = _NAME_ENDS.split(body)[-1].strip()
            start = last + len(before)
        yield Box(name, corners_of(match)), start, match.end()
        last = match.end()


def write_boxes(record: Record, space: Space | None = None) -> list[str]:
    """Return the references' boxes in the notation of a space (None: whole pixels), rounded half up."""
    if not record.references:
        return []
    size = pixels(record.image_size)
    target = space or size
    rounded = convert_rounded([reference.corners for reference in record.references], source=size, target=target)
    return [f"[{', '.join(f'{number:.{target.decimals}f}' for number in box)}]" for box in rounded.tolist()]


def write_answer(record: Record) -> str:
    """Return a record's answer as text; letters of several choices are separated by commas."""
    return record.answer.strip() if isinstance(record.answer, str) else ", ".join(record.answer)


def check_text(field: str, text: str, names: Sequence[str]) -> str:
    """Return a text without surrounding white space; refuse a blank text and one with a tag of `names`."""
    if not text.strip():
        raise BadInput(f"{field}: blank; this dialect requires a text")
    if match := tag_pattern(tuple(names)).search(text):
        raise BadInput(f"{field}: contains {match[0]}, a tag of this dialect; a text without its tags is required")
    return text.strip()


# Answers as models write them, read by the kind of question.


_STOP_TOKEN = re.compile(
    r"(?:<\|[\w ]{1,40}\|>|<\uff5c[^\uff5c<>]{1,40}\uff5c>|</?s>|<eos>|<pad>|<end_of_turn>|\[end of text\])\Z"
)
_LONGEST_STOP = 64
_PLAIN = dict(zip((0x3002, 0x3001, 0x3010, 0x3011), map(ord, ".,[]"), strict=True))
_PLAIN |= {start + place: ord("A") + place for start in (0x1F150, 0x1F170) for place in range(26)}  # white on black
_FORMAT = re.compile(r"[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
"""Characters that are not seen: zero-width and soft breaks, marks of direction, variation selectors."""
_AROUND = "*_`#$\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb\u2039\u203a\u300c\u300d\u300e\u300f"
_CLOSING = ".,;:!"
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def without_stop_tokens(text: str) -> str:
    """Return a text without the stop tokens and white space at its end."""
    end = len(text)
    while end:
        tail = text[max(0, end - _LONGEST_STOP) : end]
        match = _STOP_TOKEN.search(tail)
        cut = len(match[0]) if match else len(tail) - len(tail.rstrip())
        if not cut:
            break
        end -= cut
    return text[:end]


def normalise(text: str) -> str:
    r"""Return a text without stop tokens at its end, format characters and HTML's entities.

    Full-width, mathematical, circled and decomposed letters become plain ones (Unicode's form NFKC).

    >>> normalise("\N{FULLWIDTH LATIN CAPITAL LETTER B}<|im_end|>")
    'B'
    """
    text = html.unescape(without_stop_tokens(text))
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _FORMAT.sub("", text).translate(_PLAIN))
    return text


def tidy(text: str) -> str:
    """Return an answer without Markdown, quotes, brackets and closing punctuation around it.

    >>> tidy(' **"B."** ')
    'B'
    """
    before = None
    while text != before:
        before = text
        text = text.lstrip(_AROUND + _SPACES).rstrip(_AROUND + _SPACES + _CLOSING)
        if text and _BRACKETS.get(text[0]) == text[-1] and not any(mark in text[1:-1] for mark in "()[]{}"):
            text = text[1:-1]
    return text


_TOKEN = re.compile(r"\w+")


def token_f1(first: str, second: str) -> float:
    """Return the F1 of the words that two texts share, case folded, without punctuation, repeated words counted.

    >>> round(token_f1("Left pleural effusion.", "pleural effusion"), 4)
    0.8
    """
    counts, others = Counter(_TOKEN.findall(fold(first))), Counter(_TOKEN.findall(fold(second)))
    if not counts or not others:
        return float(fold(first) == fold(second))
    return 2 * (counts & others).total() / (counts.total() + others.total())


@dataclasses.dataclass(frozen=True)
class Judged:
    """A judge's scores of an open answer, from 1 to 10; any other score is unusable.

    Attributes:
      reference: score of the record's answer.
      reply: score of the reply's answer.
    """

    reference: float
    reply: float
