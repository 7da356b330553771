"""Boxes in texts of any form: brackets, two points, keys and strings, with scores, units and names."""

import re

from stepcot_jax.box import Box
from stepcot_jax.reasoning.replies import NUMBER, find_named_boxes

_NUMBER = rf"[\"']?{NUMBER}\s?(?:px|pixels?)?[\"']?"
_GAP = r"(?:\s{0,9}[,;]\s{0,9}|\s{1,9})"
_SCORE = rf"(?:{_GAP}[\"']?(?:0?\.[0-9]{{1,9}}|1(?:\.0{{1,9}})?)[\"']?)?"
_OPENS, _CLOSES = r"[\[(<{]\s{0,9}", r"\s{0,9}[\])>}]"
_QUAD = _GAP.join([_NUMBER] * 4)


def _keyed(*keys: str) -> str:
    return r"[\s,;]{0,9}".join(rf"(?<![a-z])[\"']?(?:{key})[\"']?\s?[:=]\s?{_NUMBER}" for key in keys)


_X, _Y = (rf"(?:[\"']?{name}[\"']?\s?[:=]\s?)?{_NUMBER}" for name in "xy")
_POINT = rf"{_OPENS}{_X}\s{{0,9}},\s{{0,9}}{_Y}{_CLOSES}"
_BOXES = re.compile(
    "|".join(
        (
            _keyed("x_?1|x_?min|left", "y_?1|y_?min|top", "x_?2|x_?max|right", "y_?2|y_?max|bottom"),
            _keyed("x|left", "y|top", "w(?:idth)?", "h(?:eight)?") + "(?P<sized>)",
            rf"{_OPENS}{_QUAD}{_SCORE}{_CLOSES}",
            rf"(?<=box[\"'>:=])[\s:=]{{0,3}}[\"']?\s{{0,9}}{_QUAD}{_SCORE}(?=\s{{0,9}}[\"'<])",  # a string, a tag
            rf"(?<=box_2d\"): ?\"\s{{0,9}}{_QUAD}{_SCORE}(?=\s{{0,9}}\")",
            rf"{_POINT}\s{{0,9}}(?:,|-|\u2013|to|and)?\s{{0,9}}(?:[\"']?\w{{1,20}}[\"']?\s?:\s?)?{_POINT}",
            r"\{" + r"\s?".join([rf"<{NUMBER}>"] * 4) + r"\}",
        )
    ),
    re.IGNORECASE,
)
_POLYGON = re.compile(
    rf"{_POINT}(?:(?:\s{{0,9}},\s{{0,9}}|){_POINT}){{2,}}".replace(NUMBER, f"(?:{NUMBER[1:-1]})"), re.IGNORECASE
)
"""Three points or more in a row, which are no box."""

_KEY = re.compile(r"[\"'](?:b?box(?:_2d)?|bounding_?box|coordinates)[\"']\s?:", re.IGNORECASE)
_OBJECT = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*){0,9}\}")
_LABEL = re.compile(r"[\"'](?:label|name|sub_label|finding|region)[\"']\s?:\s?[\"']([^\"']{0,200})[\"']")
_TOKEN = re.compile(r"<\|\w{1,20}\|>")
_FENCE = re.compile(r"```\w{0,10}")


def find_boxes(text: str) -> list[Box]:
    """Return the boxes of a text, x and y as written; those of JSON objects alone, else those not in round brackets."""
    text = _POLYGON.sub(" ", _TOKEN.sub(" ", text))
    found = [
        Box(label[1] if (label := _LABEL.search(match[0])) else "", box.corners)
        for match in _OBJECT.finditer(text)
        if _KEY.search(match[0])
        for box, _, _ in find_named_boxes(match[0], _BOXES)
    ]
    written = [(Box(box.label[:200], box.corners), text[end - 1]) for box, _, end in find_named_boxes(text, _BOXES)]
    # In prose round brackets may hold any numbers, such as those of ribs.
    return found or [box for box, last in written if last != ")"] or [box for box, _ in written]


_AROUND = re.compile(
    r"(?:\b(?:at|in|bounding|b?box(?:es)?|bbox_2d|location|coordinates)\b[\s:=\"']{0,5}){0,4}\0", re.IGNORECASE
)
_EMPTY = re.compile(r"[\[({][\s,;]*[\])}]")


def without_boxes(text: str) -> str:
    """Return a text without boxes, the words and JSON around them; "" if it holds nothing else."""
    marked = _OBJECT.sub(lambda match: "\0" if _KEY.search(match[0]) else match[0], text)
    marked = _BOXES.sub("\0", _POLYGON.sub("\0", _TOKEN.sub(" ", marked)))
    rest = _FENCE.sub(" ", _AROUND.sub(" ", marked))
    while "\0" in marked and rest != (rest := _EMPTY.sub(" ", rest)):
        pass  # lists of what was left out
    return rest if re.search(r"\w", rest) else ""
