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
    """Return the boxes of a text, x and y as written; those of JSON objects alone, where there are any."""
    text = _POLYGON.sub(" ", _TOKEN.sub(" ", text))
    found = [
        Box(label[1] if (label := _LABEL.search(match[0])) else "", box.corners)
        for match in _OBJECT.finditer(text)
        if _KEY.search(match[0])
        for box, _, _ in find_named_boxes(match[0], _BOXES)
    ]
    return found or [Box(box.label[:200], box.corners) for box, _, _ in find_named_boxes(text, _BOXES)]


def without_boxes(text: str) -> str:
    """Return a text without boxes and the JSON around them; "" if it holds nothing else."""
    text = _OBJECT.sub(lambda match: " " if _KEY.search(match[0]) else match[0], text)
    text = _FENCE.sub(" ", _BOXES.sub(" ", _POLYGON.sub(" ", _TOKEN.sub(" ", text))))
    return text if re.search(r"\w", text) else ""
