"""Rows of delimited text files, read strictly and one at a time.

Not pandas: `read_csv` pads short rows silently, knows no row numbers and needs the whole table in memory.
"""

import codecs
import csv
import dataclasses
import io
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_controls, write_csv
from stepcot_jax.host.untrusted import Meter, exceeds, open_untrusted, read_limits

_DELIMITERS = ",;\t"
_EXPECTED = "expected a UTF-8 table with a header, separated by comma, semicolon or tab"
_OTHER_SEPARATORS = "|^~"
_IN_NAMES = " :/.#&*_=+!\\-\x01\x1c\x1d\x1e\x1f\xa0"  # separators if they give more columns with known names
_LONGEST_HEADER = 2**16
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table: its number, where the header is row 1, and its texts without surrounding spaces."""

    number: int
    cells: tuple[str, ...]


def fold_column(name: str) -> str:
    """Return a column's name with letter case, spacing, "_" and "-" normalised."""
    return " ".join(name.replace("_", " ").replace("-", " ").split()).casefold()


def read_age(written: str, *, most: float) -> float | None:
    """Return the age in years from "58", or from "058Y", "011M", "003D" as in DICOM; None unless it is 0 to `most`."""
    unit = {"Y": 1.0, "M": 12.0, "D": 365.25}.get(written[-1:].upper())
    try:
        age = float(written[:-1] if unit else written) / (unit or 1.0)
    except ValueError:
        return None
    return age if 0 <= age <= most else None


def read_four_numbers(cells: Sequence[str]) -> tuple[float, float, float, float]:
    """Return four cells as numbers; four times NaN, which no range holds, if one of them is none."""
    try:
        first, second, third, fourth = map(float, cells)
    except ValueError:
        first = second = third = fourth = math.nan
    return first, second, third, fourth


def read_table(path: Path, *, known_columns: Collection[str]) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Read the header and the rows of a delimited text file; empty rows are skipped."""
    rows = read_rows(path, known_columns=known_columns)
    header = next(rows, None)
    if header is None:
        raise BadInput(f"{path}: is empty; {_EXPECTED}")
    return header.cells, rows


def read_columns(
    path: Path, names: Sequence[str], *, optional: Sequence[str] = ()
) -> Iterator[tuple[Row, list[str], str]]:
    """Yield each row, its cells in the named columns ("" where it has none), and what is wrong with their number."""
    folded = [fold_column(name) for name in (*names, *optional)]
    header, rows = read_table(path, known_columns=set(folded))
    columns = [fold_column(name) for name in header]
    if missing := [name for name in names if fold_column(name) not in columns]:
        raise BadInput(f"{path}: header {[name[:40] for name in header[:30]]} lacks {', '.join(missing)}")
    for row in rows:
        cells = dict(zip(columns, row.cells, strict=False))
        number = len(row.cells)
        problem = "" if number == len(columns) else f"has {number} cells; expected {len(columns)}"
        yield row, [cells.get(name, "") for name in folded], problem


def read_rows(path: Path, *, known_columns: Collection[str] = (), expected: str = _EXPECTED) -> Iterator[Row]:
    """Yield the header and the rows that are not empty, as `read_table`; `expected` ends the messages."""
    number, line = 0, 0
    try:
        with open_text(path) as file:
            delimiter, num_skipped = _find_delimiter(file, known_columns=known_columns, path=path)
            for number, (last_line, texts) in enumerate(
                iterate_rows(file, delimiter=delimiter, path=path), start=1 + num_skipped
            ):
                line = last_line + num_skipped
                if any(texts):
                    yield Row(number, tuple(texts))
    except UnicodeDecodeError as error:
        row = _find_undecodable(path)
        raise BadInput(f"{path}: row {row} is not UTF-8 (Windows-1252?); save as CSV UTF-8; {expected}") from error
    except csv.Error as error:
        raise BadInput(f"{path}: the row at line {line + 1} is malformed ({error}); {expected}") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {expected}") from error


def open_text(path: Path, *, errors: str = "strict") -> TextIO:
    """Open a text file in UTF-8, with or without a byte order mark."""
    file = open_untrusted(path, accepted="a table")
    start = file.read(64)
    if kind := "UTF-16 or UTF-32 text" if start.startswith(_OTHER_ENCODINGS) else name_content(start):
        file.close()
        raise BadInput(f"{path}: is {kind}; {_EXPECTED}")
    file.seek(0)
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="", errors=errors)


_CONTENTS = {
    b"PK\x03\x04": "a zip archive, as an .xlsx is",
    b"\xd0\xcf\x11\xe0": "an .xls of before 2007, another old Office file, or an .xlsx with a password",
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself with `git lfs pull`",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"\0": "no text: it begins with zeros, as a copy that was cut off does",
    b"SQLite format 3": "an SQLite database",
    b"{": "JSON",
    b"[{": "JSON",
    b"<?xml": "XML, such as a workbook saved as XML of 2003",
    b"\x1f\x8b": "compressed by gzip",
    b"<!doctype html": "an HTML page, such as a download's login page",
    b"<html": "an HTML page, such as a download's login page",
}


def name_content(start: bytes) -> str:
    """Return what a file is that begins with these bytes and is no text table; "" if it may be one."""
    lowered = start.removeprefix(codecs.BOM_UTF8).lstrip()
    return next(
        (kind for mark, kind in _CONTENTS.items() if start.startswith(mark) or lowered.lower().startswith(mark)), ""
    )


def _find_undecodable(path: Path) -> int:
    """Return the first row, as spreadsheets count, that is not UTF-8."""
    with open_text(path, errors="surrogateescape") as file:
        header = file.readline(_LONGEST_HEADER)
        file.seek(0)
        lines = _Lines(file, path=path, most=read_limits().text)
        rows = csv.reader(lines, delimiter=max(_DELIMITERS, key=header.count))
        for number, texts in enumerate(rows, start=1):
            lines.num_chars = 0
            if any("\udc80" <= letter <= "\udcff" for text in texts if not text.isascii() for letter in text):
                return number
    return 0


def iterate_rows(file: TextIO, *, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line, from 1, and the texts of each row, without surrounding spaces, within `Limits`."""
    most = read_limits().text
    # The limit is global: never lower it under another reader.
    csv.field_size_limit(max(csv.field_size_limit(), most))
    lines, meter = _Lines(file, path=path, most=most), Meter(path)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    for cells in reader:
        lines.num_chars = 0
        texts = [cell.strip() for cell in cells]
        meter.add_row(len(texts), blank=not any(texts))
        yield reader.line_num, texts


class _Lines:
    """The lines of a file for the csv module, which would read a row of any length; `num_chars` counts the row's."""

    def __init__(self, file: TextIO, *, path: Path, most: int) -> None:
        self._file, self._path, self._most = file, path, most
        self.num_chars = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._file.readline(self._most + 1)
        self.num_chars += len(line)
        if self.num_chars > self._most:
            raise exceeds(self._path, f"a row of more than {self._most} characters, or a quotation without end", "text")
        if not line:
            raise StopIteration
        return line


def _find_delimiter(file: TextIO, *, known_columns: Collection[str], path: Path) -> tuple[str, int]:
    """Return the separator and the number of lines before the header; leave the file at the header."""
    first = file.readline(len("sep=;\r\n")).rstrip("\r\n")
    if first.startswith("sep=") and len(first) == 5 and first[4] in _DELIMITERS:
        return first[4], 1
    num_known = {}
    for delimiter in _DELIMITERS + _OTHER_SEPARATORS + _IN_NAMES:
        file.seek(0)
        try:
            _, header = next(iterate_rows(file, delimiter=delimiter, path=path), (0, []))
        except csv.Error:
            header = []
        num_known[delimiter] = (sum(fold_column(name) in known_columns for name in header), len(header))
    file.seek(0)
    best, other = max(_DELIMITERS, key=num_known.__getitem__), max(_OTHER_SEPARATORS, key=num_known.__getitem__)
    odd = max(_IN_NAMES, key=num_known.__getitem__)
    if num_known[odd][0] > num_known[best][0]:
        other = max(other, odd, key=num_known.__getitem__)
    if num_known[best][1] == 1 < num_known[other][1] and num_known[other][0] >= num_known[best][0]:
        raise BadInput(f"{path}: the columns are separated by {other!r}; {_EXPECTED}")
    return best, 0


def encode_rows(rows: Iterable[Sequence[str]]) -> bytes:
    """Encode rows as a CSV that every spreadsheet opens, without formulas."""
    text = io.StringIO()
    write_csv(text, rows, end="\r\n")
    return text.getvalue().encode("utf-8-sig")  # spreadsheets recognise UTF-8 by the byte order mark


def is_same_cell(one: str, two: str) -> bool:
    """Return whether two cells are equal except for white space, a plus sign and what `write_csv` makes safe."""
    one, two = (" ".join(escape_controls(cell).split()).lstrip("'+ ") for cell in (one, two))
    return one == two


def read_sheet_rows(path: Path) -> Iterator[list[str]]:
    """Return the rows of a CSV saved by a spreadsheet, without empty rows."""
    expected = "expected the form, saved as CSV in UTF-8"
    return (list(row.cells) for row in read_rows(path, expected=expected))
