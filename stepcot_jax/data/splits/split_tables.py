"""Read the rows of a split table, such as train.xlsx or train.csv, as text.

The csv module, not pandas: messages need the row as spreadsheets count it, and a stray quote must stay an error.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.data.sources.delimited import iterate_rows, open_text
from stepcot_jax.data.splits.sheet_rows import iterate_sheet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import exceeds, read_limits

_COLUMNS = ("patient_id", "image_path")
_LONGEST_HEADER = 2**16
_EXPECTED = "expected a table whose first row has a column patient_id or image_path, or both"


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRow:
    """One row of a split table.

    Attributes:
      file: name of the table's file.
      number: row in the file, from 1, as spreadsheets count.
      patient_id: patient; "" if the cell is empty or the column missing.
      image_path: image; "" if the cell is empty or the column missing.
    """

    file: str
    number: int
    patient_id: str
    image_path: str

    def __str__(self) -> str:
        cells = [f"{column} {getattr(self, column)!r}" for column in _COLUMNS if getattr(self, column)]
        return f"{self.file}: row {self.number} ({', '.join(cells)})"


def read_split_table(path: Path) -> Iterator[SplitRow]:
    """Yield the rows that name a patient or an image, from .xlsx (its first sheet) or .csv (comma, semicolon or tab).

    Raises:
      BadInput: the file cannot be read, or has neither of the two columns, or one of them twice.
    """
    places, longest = list[int](), read_limits().name
    try:
        for number, cells in iterate_sheet(path) if path.suffix == ".xlsx" else _read_csv(path):
            if not places:
                places = _find_columns(cells, path=path) if any(cells) else []
                continue
            texts = [cells[place] if 0 <= place < len(cells) else "" for place in places]
            if any(texts):
                if max(map(len, texts)) > longest:
                    raise exceeds(path, f"row {number} has a name of {max(map(len, texts))} characters", "name")
                yield SplitRow(path.name, number, *texts)
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8; CSV tables must be UTF-8") from error
    # zipfile, zlib and expat raise a dozen kinds of error on broken files.
    except Exception as error:
        raise BadInput(f"{path}: cannot be read: {type(error).__name__}: {str(error)[:200]}; {_EXPECTED}") from error
    if not places:
        raise BadInput(f"{path}: the table is empty; {_EXPECTED}")


def _find_columns(header: list[str], *, path: Path) -> list[int]:
    """Return the position of each column, -1 if missing."""
    folded = ["_".join(name.casefold().replace("_", " ").split()) for name in header]
    shown = [name[:40] for name in header[:20]]
    for column in _COLUMNS:
        if folded.count(column) > 1:
            raise BadInput(f"{path}: column {column} is there more than once in {shown}; {_EXPECTED}")
    if not set(_COLUMNS) & set(folded):
        raise BadInput(f"{path}: columns {shown} name no case; {_EXPECTED}")
    return [folded.index(column) if column in folded else -1 for column in _COLUMNS]


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open_text(path, accepted="a table") as file:
        header = file.readline(_LONGEST_HEADER)
        file.seek(0)
        yield from iterate_rows(file, delimiter=max(",;\t", key=header.count), path=path)
