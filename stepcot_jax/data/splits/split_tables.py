"""Rows of a split's table, train.xlsx or train.csv and the like: patient and image of each, as text."""

import csv
import dataclasses
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.host.errors import BadInput

_COLUMNS = ("patient_id", "image_path")
_MAX_UNPACKED = 500_000_000
_ACCEPTED = "accepted is a table whose first row has a column patient_id or image_path, or both"

_MAX_CELL = 131_072


@dataclasses.dataclass(frozen=True)
class SplitRow:
    """One row of a split's table.

    Attributes:
      file: name of the table's file.
      number: row in the file, from 1, as spreadsheets count.
      patient_id: patient; "" where the cell is empty or the column missing.
      image_path: image; "" where the cell is empty or the column missing.
    """

    file: str
    number: int
    patient_id: str
    image_path: str

    def __str__(self) -> str:
        cells = [f"{column} {getattr(self, column)!r}" for column in _COLUMNS if getattr(self, column)]
        return f"{self.file}: row {self.number} ({', '.join(cells)})"


def read_split_table(path: Path) -> list[SplitRow]:
    """Rows of a table that name a patient or an image; rows with neither are empty and passed over.

    Args:
      path: .xlsx (its first sheet) or .csv (UTF-8; comma, semicolon or tab).

    Raises:
      BadInput: the file cannot be read, or has neither of the two columns, or one of them twice.
    """
    try:
        rows = list(_read_xlsx(path) if path.suffix == ".xlsx" else _read_csv(path))
    except BadInput:
        raise
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: found bytes that are not UTF-8; accepted is CSV in UTF-8") from error
    # openpyxl raises a dozen kinds of error on broken files; each of them is the file's fault.
    except Exception as error:
        raise BadInput(f"{path}: cannot be read: {type(error).__name__}: {str(error)[:200]}; {_ACCEPTED}") from error
    filled = [(number, cells) for number, cells in rows if any(cells)]
    if not filled:
        raise BadInput(f"{path}: found an empty table; {_ACCEPTED}")
    places = _find_columns(filled[0][1], path=path)
    split_rows = []
    for number, cells in filled[1:]:
        texts = {column: cells[place] if place < len(cells) else "" for column, place in places.items()}
        if any(texts.values()):
            split_rows.append(SplitRow(path.name, number, texts.get("patient_id", ""), texts.get("image_path", "")))
    return split_rows


def _find_columns(header: list[str], *, path: Path) -> dict[str, int]:
    folded = ["_".join(name.casefold().replace("_", " ").split()) for name in header]
    shown = [name[:40] for name in header[:20]]
    for column in _COLUMNS:
        if folded.count(column) > 1:
            raise BadInput(f"{path}: found column {column} more than once in {shown}; {_ACCEPTED}")
    places = {column: folded.index(column) for column in _COLUMNS if column in folded}
    if not places:
        raise BadInput(f"{path}: found columns {shown}; {_ACCEPTED}")
    return places


def _read_xlsx(path: Path) -> Iterator[tuple[int, list[str]]]:
    import openpyxl  # here, because most runs have no spreadsheet

    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _MAX_UNPACKED:
        raise BadInput(f"{path}: found {unpacked} bytes when unpacked, accepted are at most {_MAX_UNPACKED}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and validation rules that openpyxl leaves out
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
        delimiter = max(",;\t", key=header.count)
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        for cells in rows:
            if max(map(len, cells), default=0) > _MAX_CELL:  # csv's own limit is the whole process's, and may be higher
                raise csv.Error(f"a cell of more than {_MAX_CELL} characters in line {rows.line_num}")
            yield rows.line_num, [cell.strip() for cell in cells]


def _as_text(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()
