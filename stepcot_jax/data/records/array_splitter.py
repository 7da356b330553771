"""Split a JSON array into its elements chunk by chunk, without holding the whole file in memory.

The splitter finds the cuts from quotes, backslashes, brackets and commas; msgspec checks that each element is JSON.
"""

import codecs
import re

import msgspec
import numpy as np
from jaxtyping import Bool, UInt8

from stepcot_jax.host.errors import BadInput

MAX_RECORD_BYTES = 64_000_000  # largest accepted element: ten times the largest report tried
_WHITE = b" \t\n\r"
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,{}'
_LOWER_CASE = 0x20  # turns [ into { and ] into }
_TYPES = {b"{": "object", b'"': "str", b"t": "bool", b"f": "bool", b"n": "null"}
_INCOMPLETE = "Input data was truncated"
_POSITION = re.compile(r"\(byte (\d+)\)")


class ArraySplitter:
    """Splits one JSON array, fed as chunks of any size, into its elements."""

    def __init__(self, *, start: int = 0, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
        self._position = start
        self._max = max_record_bytes
        self._half_character = b""
        self._parts: list[bytes] = []
        self._num_kept = 0
        self._num_elements = 0
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._has_ended = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the elements that end in this chunk, each valid JSON without surrounding white space."""
        self._check_text(chunk)
        begin, elements = 0, []
        if not self._depth and not self._has_ended:
            begin = self._find_array(chunk)
        if self._depth:
            for cut in self._find_cuts(chunk, begin):
                elements += self._cut_element(chunk, begin, cut)
                begin = cut + 1
        if self._depth:
            self._keep(chunk, begin, len(chunk))
        elif self._has_ended and (rest := chunk[begin:].lstrip(_WHITE)):
            raise _malformed("trailing characters", self._position + len(chunk) - len(rest))
        self._position += len(chunk)
        return elements

    def close(self) -> None:
        """Raise `BadInput` if there was no array, or it has not ended."""
        if self._half_character:
            raise _not_utf8(self._position - len(self._half_character))
        if self._has_ended:
            return
        if not self._depth:
            raise BadInput("the file is empty")
        rest = b"".join(self._parts)
        if rest.strip(_WHITE):
            self._check_json(rest, self._position - len(rest))  # may find a fault before the missing end
        raise BadInput(f"not readable as JSON: {_INCOMPLETE} ({self._name(self._position - len(rest))})")

    def _check_text(self, chunk: bytes) -> None:
        text = self._half_character + chunk
        try:
            _, num_read = codecs.utf_8_decode(text, "strict", False)
        except UnicodeDecodeError as error:
            raise _not_utf8(self._position - len(self._half_character) + error.start) from None
        self._half_character = text[num_read:]

    def _find_array(self, chunk: bytes) -> int:
        """Return the position after the opening bracket, or the end of a chunk that is all white space."""
        rest = chunk.lstrip(_WHITE)
        if not rest:
            return len(chunk)
        offset, first = len(chunk) - len(rest), rest[:1]
        if first != b"[":
            if first in _TYPES or first in b"-0123456789":
                raise BadInput(f"Expected `array`, got `{_TYPES.get(first, 'number')}`")
            raise _malformed("invalid character", self._position + offset)
        self._depth = 1
        return offset + 1

    def _find_cuts(self, chunk: bytes, begin: int) -> list[int]:
        """Return the positions of the commas between elements and of the closing bracket."""
        data = np.frombuffer(chunk, np.uint8)[begin:]
        if not data.size:
            return []
        quotes = np.flatnonzero(self._mark_quotes(data))
        lower = data | _LOWER_CASE
        marks = np.flatnonzero((lower == _OPEN) | (lower == _CLOSE) | (data == _COMMA))
        in_string = (np.searchsorted(quotes, marks) + self._is_in_string) % 2 == 1
        self._is_in_string = bool((quotes.size + self._is_in_string) % 2)
        marks = marks[~in_string]
        kinds = lower[marks]
        depths = self._depth + np.cumsum((kinds == _OPEN).astype(np.int64) - (kinds == _CLOSE))
        ends = np.flatnonzero(depths == 0)
        if ends.size:  # `feed` checks what follows the array
            marks, kinds, depths = marks[: ends[0] + 1], kinds[: ends[0] + 1], depths[: ends[0] + 1]
        self._depth = int(depths[-1]) if depths.size else self._depth
        is_cut = ((kinds == _COMMA) & (depths == 1)) | (depths == 0)
        return (begin + marks[is_cut]).tolist()

    def _mark_quotes(self, data: UInt8[np.ndarray, " byte"]) -> Bool[np.ndarray, " byte"]:
        """Mark the quotes that begin or end a string: those after an even number of backslashes."""
        is_quote = data == _QUOTE
        backslashes = np.flatnonzero(data == _BACKSLASH)
        if self._is_escaped:
            is_quote[0] = False
            backslashes = backslashes[backslashes > 0]
        self._is_escaped = False
        if backslashes.size:
            gaps = np.flatnonzero(np.diff(backslashes) > 1)
            starts = backslashes[np.concatenate(([0], gaps + 1))]
            ends = backslashes[np.concatenate((gaps, [-1]))]
            escaped = ends[(ends - starts) % 2 == 0] + 1
            self._is_escaped = bool(escaped.size and escaped[-1] == data.size)
            is_quote[escaped[: -1 if self._is_escaped else None]] = False
        return is_quote

    def _cut_element(self, chunk: bytes, begin: int, cut: int) -> list[bytes]:
        """Return the element that ends before `cut`; none if an empty array ends there."""
        self._keep(chunk, begin, cut)
        position = self._position + cut
        content = b"".join(self._parts) if len(self._parts) > 1 else self._parts[0]
        self._parts, self._num_kept = [], 0
        element = content.strip(_WHITE)
        closing = chunk[cut : cut + 1]
        self._has_ended = closing != b","
        if element:
            self._check_json(content, position - len(content))
        elif self._num_elements or not self._has_ended:
            raise _malformed("no value between commas", position)
        if closing not in (b",", b"]"):
            raise _malformed("expected ',' or ']'", position)
        self._num_elements += 1
        return [element] if element else []

    def _keep(self, chunk: bytes, begin: int, end: int) -> None:
        self._num_kept += end - begin
        self._parts.append(chunk[begin:end])
        if self._num_kept > self._max:
            start = self._position + end - self._num_kept
            raise BadInput(f"{self._name(start)}: larger than the accepted {self._max} bytes")

    def _check_json(self, content: bytes, start: int) -> None:
        try:
            msgspec.json.decode(content, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError) as error:
            message = _POSITION.sub(lambda match: f"(byte {start + int(match[1])})", str(error))
            raise BadInput(f"not readable as JSON: {message} ({self._name(start)})") from None

    def _name(self, start: int) -> str:
        return f"record {self._num_elements}, from byte {start}"


def _malformed(what: str, position: int) -> BadInput:
    return BadInput(f"not readable as JSON: JSON is malformed: {what} (byte {position})")


def _not_utf8(position: int) -> BadInput:
    return BadInput(f"not UTF-8 (from byte {position})")
