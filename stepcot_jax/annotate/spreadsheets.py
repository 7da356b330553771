"""CSV files that go through a spreadsheet and come back."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import defuse_formula


def encode_rows(rows: Iterable[Sequence[str]]) -> bytes:
    r"""Encode rows as a CSV that every spreadsheet opens, without formulas.

    >>> encode_rows([["a", "=1+1"]]).decode("utf-8-sig")
    "a,'=1+1\r\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows(map(defuse_formula, row) for row in rows)
    return text.getvalue().encode("utf-8-sig")  # spreadsheets recognise UTF-8 by the byte order mark


def is_same_cell(one: str, two: str) -> bool:
    """Whether two cells are equal except for white space, a plus sign and the apostrophe that defuses a formula.

    >>> is_same_cell("'-  small mass", "- small mass ")
    True
    """
    return " ".join(one.split()).lstrip("'+ ") == " ".join(two.split()).lstrip("'+ ")


def read_rows(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a CSV saved by a spreadsheet, without blank lines.

    Raises:
      BadInput: the file cannot be read or is not CSV in UTF-8; names the line.
    """
    expected = "expected the form, saved as CSV in UTF-8"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {expected}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}, byte {error.start} is not UTF-8; {expected}") from None
    # Spreadsheets write semicolons where the comma is the decimal separator.
    separator = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a report may exceed the module's default
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        yield from filter(None, reader)
    except csv.Error as error:
        raise BadInput(f"{path}, line {reader.line_num} is not CSV ({error}); {expected}") from None
