"""Read the elements of a JSON array from an untrusted file, chunk by chunk, without holding all of it in memory.

The splitter finds the cuts from quotes, backslashes, brackets and commas; msgspec checks that each element is JSON.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from jaxtyping import Bool, UInt8

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

SHORT_RECORD, MOST_SHORT_RECORDS = 16, 10_000
"""Fewest bytes of a record, and how many entries may have fewer: each costs as much time as a complete record."""

_MAX_RECORD_BYTES = 64_000_000  # largest accepted element: ten times the largest report tried
_CHUNK_BYTES = 2**18
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_WHITE = b" \t\n\r"
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,{}'
_LOWER_CASE = 0x20  # turns [ into { and ] into }
_TYPES = {b"{": "object", b'"': "str", b"t": "bool", b"f": "bool", b"n": "null"}
_INCOMPLETE = "Input data was truncated"
_POSITION = re.compile(r"\(byte (\d+)\)")


_NO_JSON = re.compile(rb'("(?:[^"\\]|\\.)*")(\s*:)?|(?<![\w.])([-+]?(?:NaN|nan|Infinity|inf))\b')


def find_no_json(content: bytes) -> tuple[str, str] | None:
    """Return the field and the fault of the first NaN or infinity in a text that is no JSON."""
    field = ""
    for match in _NO_JSON.finditer(content):
        if match[3]:
            return field, f"{match[3].decode()} is no number in JSON"
        field = match[1][1:-1].decode(errors="replace")[:80] if match[2] else field
    return None


def read_raw_records(path: Path, *, visit: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Yield the undecoded records of a `data.json`, so that one bad record leaves the others readable."""
    accepted = "a JSON array of records in UTF-8"
    num_records = num_short = 0
    try:
        with open_untrusted(path, accepted=accepted) as file:
            splitter = ArraySplitter(start=_skip_byte_order_mark(file))
            while chunk := file.read(_CHUNK_BYTES):
                records = splitter.feed(chunk)
                num_records += len(records)
                num_short += sum(len(record) < SHORT_RECORD for record in records)
                if num_short > MOST_SHORT_RECORDS:
                    shortest = min(records, key=len).decode(errors="replace")
                    raise BadInput(f"{num_short} entries such as {shortest!r} are too short to be records")
                yield from records
                if visit is not None:
                    visit(file.tell())
            splitter.close()
    except BadInput as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise BadInput(f"{path}: {error}; expected {accepted}") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected {accepted}") from error
    if not num_records:
        raise BadInput(f"{path}: the array has no records; expected {accepted}")


def _skip_byte_order_mark(file: BinaryIO) -> int:
    start = file.read(4)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            raise BadInput(f"the text is {encoding}")
    return file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)


class ArraySplitter:
    """Splits one JSON array, fed as chunks of any size, into its elements."""

    def __init__(self, *, start: int = 0, max_record_bytes: int = _MAX_RECORD_BYTES) -> None:
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
            message = ": ".join(find_no_json(content) or (message,))
            raise BadInput(f"not readable as JSON: {message} ({self._name(start)})") from None

    def _name(self, start: int) -> str:
        return f"record {self._num_elements}, from byte {start}"


def _malformed(what: str, position: int) -> BadInput:
    return BadInput(f"not readable as JSON: JSON is malformed: {what} (byte {position})")


def _not_utf8(position: int) -> BadInput:
    return BadInput(f"not UTF-8 (from byte {position})")
