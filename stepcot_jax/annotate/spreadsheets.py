"""CSV files that users edit in a spreadsheet."""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepcot_jax.data.sources import delimited
from stepcot_jax.host.text import write_csv


def encode_rows(rows: Iterable[Sequence[str]]) -> bytes:
    """Encode rows as a CSV that every spreadsheet opens, without formulas."""
    text = io.StringIO()
    write_csv(text, rows, end="\r\n")
    return text.getvalue().encode("utf-8-sig")  # spreadsheets recognise UTF-8 by the byte order mark


def is_same_cell(one: str, two: str) -> bool:
    """Return whether two cells are equal except for white space, a plus sign and the apostrophe of `defuse_formula`."""
    return " ".join(one.split()).lstrip("'+ ") == " ".join(two.split()).lstrip("'+ ")


def read_rows(path: Path) -> Iterator[list[str]]:
    """Return the rows of a CSV saved by a spreadsheet, without empty rows."""
    expected = "expected the form, saved as CSV in UTF-8"
    return (list(row.cells) for row in delimited.read_rows(path, expected=expected))
