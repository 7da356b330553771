"""The JSON object of a model's answer, read where its meaning is plain; otherwise what is wrong and where.

Besides JSON: commas before a closing bracket, line breaks in strings, comments, the literals and strings of Python,
curly quotes as delimiters, and names without quotes. What is inside a string is left as it is.
"""

import json
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


_MAX_OBJECTS = 200
_COMMENT = r"//[^\n]*|#[^\n]*|/\*.{0,1000}?\*/|[^\S \t\r\n]|[\u200b\ufeff]"  # and spaces that JSON does not know
_TOKEN = re.compile(
    r'("[^"\\]*(?:\\.[^"\\]*)*"|\'[^\'\\]*(?:\\.[^\'\\]*)*\'|\u201c[^\u201c\u201d"]*\u201d)'
    rf"|({_COMMENT}|,(?=(?:\s|{_COMMENT})*+[}}\]]))|\b([^\W\d]\w*+)(?=\s*+:)|(True|False|None)\b|[{{}}\[\]]",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(')|(\\.)|\"", re.DOTALL)


def find_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the one object of a text with exactly these names, also if another object or a list holds it alone."""
    objects, where, excerpt = _read_objects(text)
    complete, other = [], "no JSON object"
    for candidate in (_unwrap(each, names) for each in objects):
        missing = [name for name in names if name not in candidate]
        more = [str(name)[:80] for name in candidate if name not in names]
        if missing:
            other = f"an object with the names {missing} missing"
        elif more:
            other = f"an object with more names: {more[:8]}"
        else:
            complete.append(candidate)
    if complete and all(candidate == complete[0] for candidate in complete):
        return complete[0]
    if complete:
        other = f"{len(complete)} objects that differ"
    elif where:
        other = f"an object that is no JSON{where} before {excerpt!r}"
    raise BadAnswer(f"found {other}, accepted is one JSON object with the names {', '.join(names)}", where=where)


def _read_objects(text: str) -> tuple[list[dict[str, Any]], str, str]:
    """Return the outermost objects; of a longer one that cannot be read, where it breaks off, and what stands there."""
    decoder = json.JSONDecoder(object_pairs_hook=_refuse_repetition, strict=False)
    objects, where, excerpt, longest, is_cut = [], "", "", 0, False
    start = text.find("{")
    # Bounded: a text of opening brackets would take quadratic time.
    for _ in range(_MAX_OBJECTS if start >= 0 else 0):
        end = start if is_cut else _find_end(text, start)
        is_cut = end == start
        piece = text[start:] if is_cut else _TOKEN.sub(_as_json, text[start:end])
        try:
            value, length = decoder.raw_decode(piece)
            end, problem = start + length if is_cut else end, ""
            objects.append(value)
        except (ValueError, RecursionError) as error:
            if isinstance(error, BadAnswer):
                raise
            # Go on where it breaks off: an object before that place is part of another one, not the answer.
            end, problem = start + getattr(error, "pos", 1), getattr(error, "msg", "too many levels or digits")
        if end - start > longest:
            line, column = text.count("\n", 0, end) + 1, end - text.rfind("\n", 0, end)
            where = f" (line {line}, column {column}: {problem})" if problem else ""
            excerpt, longest = text[end : end + 30], end - start
        if (start := text.find("{", end)) < 0:
            break
    return objects, where, excerpt


def _find_end(text: str, start: int) -> int:
    """Return the end of the object that opens at `start`; `start` if it does not close."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
        if not depth:
            return token.end()
    return start


def _as_json(token: re.Match[str]) -> str:
    """Return a part of an object as JSON writes it, of the same length unless it is a string with escapes."""
    string, empty, name, literal = token.groups()
    if string:
        return f'"{_ESCAPE.sub(lambda found: found[1] or found[2] or chr(92) + found[0], string[1:-1])}"'
    if empty:
        return re.sub(r"[^\n]", " ", empty)
    return f'"{name}"' if name else {"True": "true", "False": "false", "None": "null"}.get(literal, token[0])


def _unwrap(value: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    while len(value) == 1:
        ((name, inner),) = value.items()
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        if name in names or not isinstance(inner, dict):
            break
        value = inner
    return value


def _refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadAnswer("found a name twice in one object, accepted is each name once", where=" (a name twice)")
    return fields
