"""A CSV that goes out to a spreadsheet and comes back from it, with what spreadsheets do to cells on the way."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from stepcot_jax.host.errors import BadInput

# What spreadsheets take for the start of a formula, their full-width forms with them.
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def encode_rows(rows: Iterable[Sequence[str]]) -> bytes:
    r"""A CSV as every spreadsheet opens it, in which no cell is a formula.

    >>> encode_rows([["a", "=1+1"]]).decode("utf-8-sig")
    "a,'=1+1\r\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for row in rows:
        writer.writerow([f"'{cell}" if _FORMULA.match(cell) else cell for cell in row])
    # The mark at the start is what spreadsheets know UTF-8 by.
    return text.getvalue().encode("utf-8-sig")


def is_same_cell(one: str, two: str) -> bool:
    """Whether two cells say the same but for white space and the apostrophe that keeps a text from being a formula.

    >>> is_same_cell("'-  small mass", "- small mass ")
    True
    """
    return " ".join(one.split()).lstrip("' ") == " ".join(two.split()).lstrip("' ")


def read_rows(path: Path) -> Iterator[list[str]]:
    """The rows of a CSV that a spreadsheet may have saved, blank lines left out.

    Raises:
      BadInput: the file cannot be read or is no CSV in UTF-8; names the line.
    """
    accepted = "accepted is the form, saved as CSV in UTF-8"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}), {accepted}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: found bytes that are not UTF-8 (first at byte {error.start}), {accepted}") from None
    # Spreadsheets write semicolons where the comma is the decimal sign.
    separator = ";" if text.partition("\n")[0].count(";") > text.partition("\n")[0].count(",") else ","
    # A cell of ours may be longer than what the csv module takes by itself; the text is in memory anyway.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        yield from (row for row in reader if row)
    except csv.Error as error:
        raise BadInput(f"{path}: line {reader.line_num}: found what is not CSV ({error}), {accepted}") from None
