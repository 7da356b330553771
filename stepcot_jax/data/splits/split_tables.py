"""Read the rows of a split table, such as train.xlsx or train.csv, as text.

The csv module, not pandas: messages need the row as spreadsheets count it, and a stray quote must stay an error.
"""

import csv
import dataclasses
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.host.errors import BadInput

_COLUMNS = ("patient_id", "image_path")
_MAX_UNPACKED = 500_000_000
_MAX_CELL = 131_072
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
    places: list[int] = []
    try:
        for number, cells in _read_xlsx(path) if path.suffix == ".xlsx" else _read_csv(path):
            if not places:
                places = _find_columns(cells, path=path) if any(cells) else []
                continue
            texts = [cells[place] if 0 <= place < len(cells) else "" for place in places]
            if any(texts):
                yield SplitRow(path.name, number, *texts)
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8; CSV tables must be UTF-8") from error
    # openpyxl raises a dozen kinds of error on broken files.
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


def _read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    import openpyxl  # slow to import, and most runs read no spreadsheet

    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _MAX_UNPACKED:
        raise BadInput(f"{path}: {unpacked} bytes when unpacked; at most {_MAX_UNPACKED} are accepted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and validation rules, which do not matter here
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # writers other than Excel state sizes that hide columns
        for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
            yield number, [_as_text(cell) for cell in cells]
    finally:
        book.close()


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
        for cells in rows:
            if max(map(len, cells), default=0) > _MAX_CELL:  # csv's own limit is global and may be higher
                raise csv.Error(f"a cell of more than {_MAX_CELL} characters in line {rows.line_num}")
            yield rows.line_num, [cell.strip() for cell in cells]


def _as_text(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()
