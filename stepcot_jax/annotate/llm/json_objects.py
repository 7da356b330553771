"""The JSON object of a model's answer, read where its meaning is plain; otherwise what is wrong and where.

Besides JSON: commas before a closing bracket, line breaks in strings, comments, the literals and strings of Python,
curly quotes as delimiters, and names without quotes. What is inside a string is left as it is.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from stepcot_jax.annotate.annotation import Reason

# The wording of `BadAnswer` is sent back to the model and is part of the ledger's request digest: changing it makes
# resumed runs pay for repairs again.


class BadAnswer(ValueError):
    """An answer that violates the schema: the message tells the model what to correct, `field` quotes no answer."""

    def __init__(self, message: str, *, field: str = "", where: str = "", reason: Reason = Reason.NO_ANSWER) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field or f"the JSON object{where}"  # name of the part that is wrong
        self.reason = reason  # why the item is set aside if no repair helps


class _Broken(ValueError):
    def __init__(self, text: str, at: int, expected: str) -> None:
        self.at, self.expected = at, expected
        if text[at : at + 1] in ("'", '"', "\u201c") and not _STRING.match(text, at):
            self.expected = "the quotation mark that closes this text"


_DEEPEST = 20
_SPACE = re.compile(r"(?:[\s\u200b\ufeff]|//[^\n]*|#[^\n]*|/\*.{0,1000}?\*/)*", re.DOTALL)
_STRING = re.compile(
    r'"([^"\\]*(?:\\.[^"\\]*)*)"|\'([^\'\\]*(?:\\.[^\'\\]*)*)\'|\u201c([^\u201c\u201d"]*)\u201d', re.DOTALL
)
_ESCAPE = re.compile(
    r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\(?:x([0-9a-fA-F]{2})|U(000[0-9a-fA-F]{5}))|\\(.)|"', re.DOTALL
)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,99})(?:\.\d{1,99})?(?:[eE][+-]?\d{1,3})?(?![\w.])", re.ASCII)
_WORD = re.compile(r"[^\W\d]\w*")
_LITERALS = {"true": True, "false": False, "null": None, "NaN": math.nan, "Infinity": math.inf}
_LITERALS |= {"True": True, "False": False, "None": None}


def find_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the one object of a text with exactly these names, also if another object or a list wraps it."""
    objects, broken = read_objects(text)
    complete: list[dict[str, Any]] = []
    other, where = "no JSON object", ""
    for candidate in (unwrap(each, names) for each in objects):
        missing = [name for name in names if name not in candidate]
        more = [str(name)[:80] for name in candidate if name not in names]
        if missing:
            other, where = f"an object with the names {missing} missing", ", which lacks names"
        elif more:
            other, where = f"an object with more names: {more[:8]}", ", which has more names"
        else:
            complete.append(candidate)
    if complete and all(candidate == complete[0] for candidate in complete):
        return complete[0]
    if complete:
        other, where = f"{len(complete)} objects that differ", ", of which there are several"
    elif broken is not None:
        line, column = text.count("\n", 0, broken.at) + 1, broken.at - text.rfind("\n", 0, broken.at)
        where = f" (line {line}, column {column}: expected {broken.expected})"
        other = f"an object that is no JSON{where}, before {text[broken.at : broken.at + 30] or 'the end'!r}"
    raise BadAnswer(f"found {other}, accepted is one JSON object with the names {', '.join(names)}", where=where)


def read_objects(text: str) -> tuple[list[dict[str, Any]], _Broken | None]:
    """Return the outermost objects of a text, and what is wrong with the longest part that is none, if it is longer."""
    objects, broken, longest = [], None, 0
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _read_members(text, start, 0)
            objects.append(value)
            if end - start >= longest:
                broken, longest = None, end - start
        except _Broken as error:
            # Not from behind the bracket: an object within one that breaks off later may not be the answer.
            end = error.at
            if end - start > longest:
                broken, longest = error, end - start
        start = text.find("{", end)
    return objects, broken


def unwrap(value: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the object that alone is in another one, or in a list of it."""
    while len(value) == 1:
        ((name, inner),) = value.items()
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        if name in names or not isinstance(inner, dict):
            break
        value = inner
    return value


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    at = _skip(text, at)
    if text[at : at + 1] in ("{", "["):
        return _read_members(text, at, depth)
    if found := _STRING.match(text, at):
        return _read_string(found), found.end()
    if found := _NUMBER.match(text, at):
        return json.loads(found[0]), found.end()
    if (found := _WORD.match(text, at)) and found[0] in _LITERALS:
        return _LITERALS[found[0]], found.end()
    raise _Broken(text, at, "a value")


def _read_members(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the object or list that opens at a place, and its end."""
    if depth > _DEEPEST:
        raise _Broken(text, at, f"at most {_DEEPEST} levels")
    is_object = text[at] == "{"
    closing, fields, entries = "}" if is_object else "]", dict[str, Any](), list[Any]()
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        if is_object:
            found = _STRING.match(text, at) or _WORD.match(text, at)
            if found is None:
                raise _Broken(text, at, "a name in quotes")
            name, at = _read_string(found) if found.lastindex else found[0], _skip(text, found.end())
            if text[at : at + 1] not in (":", "\uff1a"):
                raise _Broken(text, at, "':'")
            if name in fields:
                raise BadAnswer("found a name twice in one object, accepted is each name once", where=", a name twice")
            fields[name], at = _read_value(text, at + 1, depth + 1)
        else:
            entry, at = _read_value(text, at, depth + 1)
            entries.append(entry)
        at = _skip(text, at)
        if text[at : at + 1] in (",", "\uff0c"):
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise _Broken(text, at, f"',' or '{closing}'")
    return (fields if is_object else entries), at + 1


def _read_string(found: re.Match[str]) -> str:
    content: str = json.loads(f'"{_ESCAPE.sub(_as_json, found[found.lastindex or 0])}"', strict=False)
    return content


def _as_json(found: re.Match[str]) -> str:
    """Return an escape of a string as JSON writes it; one that neither JSON nor Python has stays as it is."""
    if code := found[1] or found[2]:
        return json.dumps(chr(int(code, 16)))[1:-1]
    if found[3]:
        return {"'": "'", "\n": ""}.get(found[3], f"\\\\{found[3]}")
    return '\\"' if found[0] == '"' else found[0]
