"""Resolve the split tables of a data root, .xlsx or .csv, to cases, for a run and for `data check`."""

import collections
import dataclasses
import functools
import io
import logging
import posixpath
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from stepcot_jax.data.delimited import Row, fold_column, name_content, read_rows, read_table
from stepcot_jax.data.identities import fold_patient, normalise_image_path, read_patient
from stepcot_jax.data.record_table import RecordTable, as_table
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import exceeds, open_archive, open_untrusted, read_limits
from stepcot_jax.record import Record, SetAside

# The csv module, not pandas: messages need the row as spreadsheets count it, and a stray quote must stay an error.

_COLUMNS = ("patient_id", "image_path")
_EXPECTED = "expected a table whose first row has a column patient_id or image_path, or both"
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SplitRow:
    """One row of a split table."""

    file: str  # name of the table's file
    number: int  # row in the file, from 1, as spreadsheets count
    patient_id: str  # patient; "" if the cell is empty or the column missing
    image_path: str  # image; "" if the cell is empty or the column missing

    def __str__(self) -> str:
        cells = [f"{column} {getattr(self, column)!r}" for column in _COLUMNS if getattr(self, column)]
        return f"{self.file}: row {self.number} ({', '.join(cells)})"


def read_split_table(path: Path) -> Iterator[SplitRow]:
    """Yield the rows that name a patient or an image, from .xlsx (first sheet) or .csv (comma, semicolon, tab)."""
    columns, longest, num_uncomputed = list[int](), read_limits().name, 0
    for number, cells in iterate_sheet(path) if path.suffix == ".xlsx" else _read_csv(path):
        if not columns:
            columns = _find_columns(cells, path=path) if any(cells) else []
            continue
        texts = [cells[column] if 0 <= column < len(cells) else "" for column in columns]
        if UNCOMPUTED in texts:
            num_uncomputed += texts.count(UNCOMPUTED)
        elif any(texts):
            if max(map(len, texts)) > longest:
                raise exceeds(path, f"row {number} has a name of {max(map(len, texts))} characters", "name")
            try:
                texts[0] = read_patient(texts[0])
            except BadInput as error:
                raise BadInput(f"{path}: row {number}: {error}") from None
            if any(texts):
                yield SplitRow(path.name, number, *texts)
    if num_uncomputed:
        what = f"{num_uncomputed} cells have formulas without stored values"
        raise BadInput(f"{path}: {what}; open and save it in a spreadsheet program")
    if not columns:
        raise BadInput(f"{path}: the table is empty; {_EXPECTED}")


def _find_columns(header: list[str], *, path: Path) -> list[int]:
    folded = ["_".join(name.casefold().replace("_", " ").split()) for name in header]
    shown = [name[:40] for name in header[:20]]
    for column in _COLUMNS:
        if folded.count(column) > 1:
            raise BadInput(f"{path}: column {column} is there more than once in {shown}; {_EXPECTED}")
    if not set(_COLUMNS) & set(folded):
        raise BadInput(f"{path}: columns {shown} name no case; {_EXPECTED}")
    return [folded.index(column) if column in folded else -1 for column in _COLUMNS]


def _read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    rows = read_rows(path, known_columns={fold_column(name) for name in _COLUMNS}, expected=_EXPECTED)
    return ((row.number, list(row.cells)) for row in rows)


TABLE_SUFFIXES = (".xlsx", ".csv")


def read_splits(root: Path, cases: Iterable[Record], *, set_aside: Sequence[SetAside] = ()) -> Splits | None:
    """Return the splits of `train`, `val` and `test`, each .xlsx or .csv, below `root`, or those that records name."""
    paths, patients = [item.image_path for item in set_aside], [item.patient_id for item in set_aside]
    assignment = resolve_tables(Path(root), as_table(cases), set_aside_paths=paths, set_aside_patients=patients)
    if assignment is None:
        return None
    assignment.refuse(str(root))
    return assignment.as_splits()


def resolve_tables(
    root: Path,
    table: RecordTable,
    *,
    good: Bool[np.ndarray, " case"] | None = None,
    set_aside_paths: Sequence[str],
    set_aside_patients: Sequence[str],
) -> Assignment | None:
    """Return the splits of the three tables or of the records with all problems; None if neither names any."""
    good = np.ones(len(table), bool) if good is None else good
    of_records = _read_records(table, good)
    assignment = Assignment("tables", np.zeros((len(SPLIT_NAMES), len(table)), np.int32))
    try:
        tables = find_tables(root)
    except BadInput as error:
        assignment.add_problem("tables are missing", str(error))
        return assignment
    if tables is None:
        if of_records is not None:
            of_records.find_problems(table, good)
        return of_records
    names = _Names(table, np.flatnonzero(good).tolist(), set_aside_paths, set_aside_patients)
    for split, path in enumerate(tables.values()):
        try:
            _claim(assignment, split, path, names)
        except BadInput as error:
            assignment.add_problem("tables cannot be read", str(error))
    if of_records is not None:
        for case in np.flatnonzero((assignment.member != of_records.member).any(axis=0) & good).tolist():
            shown = f"{table[case].split or 'none'} for {table[case].image[:80]!r}"
            assignment.add_problem("records name another split than the tables", shown)
    assignment.find_problems(table, good)
    return assignment


def _read_records(table: RecordTable, good: Bool[np.ndarray, " case"]) -> Assignment | None:
    """Return the splits that the records themselves name."""
    member = np.array([[case.split == name for case in table] for name in SPLIT_NAMES]) & good
    return Assignment("records", member.astype(np.int32)) if member.any() else None


def find_tables(root: Path) -> dict[str, Path] | None:
    """Return the table of each split below `root`, None if there is none; `BadInput` if a split has none or two."""
    paths = [root / (name + suffix) for name in SPLIT_NAMES for suffix in TABLE_SUFFIXES]
    existing = [path for path in paths if path.is_file()]
    stems = [path.stem for path in existing]
    for name in SPLIT_NAMES if existing else ():
        if stems.count(name) != 1:
            present = [path.name for path in existing]
            raise BadInput(f"{root} has {present}; exactly one of {name}.xlsx and {name}.csv is required with them")
    return dict(zip(stems, existing, strict=True)) or None


def _claim(assignment: Assignment, split: int, path: Path, names: "_Names") -> None:
    """Enter the rows of a split's table into the assignment."""
    name, row_of = SPLIT_NAMES[split], assignment.rows[split]
    assignment.tables[name] = path.name, None, None
    by_path = np.zeros(len(row_of), bool)
    num_rows, first_row, last_row = 0, 0, -1
    for row in read_split_table(path):
        num_rows, first_row, last_row = num_rows + 1, first_row or row.number, row.number
        try:
            cases = names.find(row)
        except BadInput as error:
            kind, *details = error.args
            assignment.add_problem(f"rows name {kind}", ": ".join((str(row), *details)))
            continue
        has_path = bool(row.image_path)
        if any(row_of[case] and (has_path or by_path[case]) for case in cases):
            assignment.add_problem("rows name a case that an earlier row of the table names", str(row))
        for case in cases:
            row_of[case] = row_of[case] or row.number
        by_path[cases] |= has_path
    assignment.tables[name] = path.name, num_rows, last_row - first_row + 1 - num_rows if num_rows else 0


class _Names:
    """Finds the cases that a row names."""

    def __init__(self, table: RecordTable, good: Iterable[int], paths: Iterable[str], patients: Iterable[str]) -> None:
        self._table, self._by_path = table, dict[str, int]()
        self._by_patient = collections.defaultdict[str, list[int]](list)
        for case in good:
            self._by_path[table[case].image] = case
            self._by_patient[fold_patient(table[case].patient)].append(case)
        self._paths_aside = {normalise_image_path(path) for path in paths if path}
        self._patients_aside = set(map(fold_patient, patients)) - {""}

    def find(self, row: SplitRow) -> list[int]:
        patient = fold_patient(row.patient_id)
        if row.image_path:
            path = normalise_image_path(row.image_path)
            case = self._by_path.get(path)
            if case is None:
                if path not in self._paths_aside:
                    raise BadInput("an image_path that data.json does not have")
                return []
            if patient and fold_patient(expected := self._table[case].patient) != patient:
                raise BadInput("another patient than the image's in data.json", f"expected {expected!r}")
            return [case]
        if patient not in self._by_patient and patient not in self._patients_aside:
            raise BadInput("a patient_id that data.json does not have")
        return self._by_patient.get(patient, [])


# Rows of an .xlsx. The library builds a dense table in memory and says nothing of formulas without a value. So all is
# unpacked first, within the sizes that the archive states, and a look at the XML finds extent and formulas.

UNCOMPUTED = "formula without a stored value"
"""Text of a cell with a formula that no spreadsheet program has computed."""
_ERROR = "#N/A"
_PLACE = re.compile(rb"""\sr\s*=\s*["']\s*([A-Za-z]{0,9})([0-9]*)""")
_ERROR_KIND, _TEXT_KIND = (re.compile(rb"""\st\s*=\s*["']%b["']""" % kind) for kind in (b"e", b"str"))
_ROW = re.compile(rb"<(?:[\w.-]+:)?row\b")
_CELL = re.compile(
    rb"<(?:[\w.-]+:)?c\b([^<>]*)>"
    rb"(\s*<(?:[\w.-]+:)?f\b[^<>]*(?:/>|>[^<]*</(?:[\w.-]+:)?f\s*>)\s*"  # a formula, and no value behind it
    rb"(?:<(?:[\w.-]+:)?v\s*/>|<(?:[\w.-]+:)?v\s*>\s*</|(?=</)))?"
)
_SHEET_ID = re.compile(rb"""<(?:[\w.-]+:)?sheet\b[^<>]*?\w+:id\s*=\s*["']([^"']+)""")
_MERGED = re.compile(rb"""<(?:[\w.-]+:)?mergeCell\b[^<>]*?\sref\s*=\s*["']([A-Za-z0-9:$]{1,40})""")
_VALUE = re.compile(rb"<(?:[\w.-]+:)?(?:v|is)\b")
_RELATION = re.compile(rb"<(?:[\w.-]+:)?Relationship\b([^<>]*)>")
_TAGS_OF_CELL, _EXTENT_OF_CELL = 8, 5  # so many tags, and so many places of the dense table, a cell


def read_sheet(path: Path, *, known_columns: Collection[str] = ()) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Read the header and the rows that are not empty, from .xlsx (first sheet) or as `delimited.read_table`.

    Merged cells are refused: the file has their text once, and the other rows would lose it in silence.
    """
    if path.suffix.lower() != ".xlsx":
        return read_table(path, known_columns=known_columns)
    rows = ((number, texts) for number, texts in iterate_sheet(path, may_merge=False) if any(texts))
    _, header = next(rows, (0, []))
    if not header:
        raise BadInput(f"{path}: is empty; expected a header and rows in the first sheet")
    filled = (Row(number, (*texts, *[""] * (len(header) - len(texts)))) for number, texts in rows)
    return tuple(header), filled


def iterate_sheet(path: Path, *, may_merge: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yield the number, from 1, and the texts of each row of the first sheet; integers have no decimal point.

    Of merged cells, if there may be any, the first has the text. A warning counts the other sheets that have cells.
    """
    try:
        yield from _iterate_sheet(path, may_merge=may_merge)
    except (BadInput, ImportError):  # of the library: the command says how to install it
        raise
    # zipfile, zlib and calamine raise a dozen kinds of error on broken files.
    except Exception as error:
        what = f"cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise BadInput(f"{path}: {what}; expected a workbook saved as .xlsx") from error


def _iterate_sheet(path: Path, *, may_merge: bool) -> Iterator[tuple[int, list[str]]]:
    import python_calamine  # of tables alone

    with open_untrusted(path, accepted="an .xlsx") as file:
        if not (start := file.read(64)).startswith(b"PK"):
            what = name_content(start) or "not an .xlsx: no zip archive (a CSV?)"
            raise BadInput(f"{path}: is {what}; expected a workbook saved as .xlsx, or a table named .csv")
    with open_archive(path, accepted="an .xlsx", most_unpacked=read_limits().unpacked_bytes) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name.endswith((".xml", ".rels"))}
    if "_rels/.rels" not in parts:
        kind = "an OpenDocument spreadsheet (.ods)" if "content.xml" in parts else "a zip archive, but no .xlsx"
        raise BadInput(f"{path}: is {kind}; expected a workbook saved as .xlsx, or a table named .csv")
    _check_parts(parts, path=path)
    part, *others = _list_sheets(parts, path=path)
    num_others = sum(_VALUE.search(other) is not None for other in others)
    del others
    if not may_merge and (merged := _MERGED.search(part)):
        what = f"the cells {merged[1].decode()} are merged, so that only the first has their text"
        raise BadInput(f"{path}: {what}; unmerge all cells and fill each")
    unwritten = _look(part, path=path)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        for name in list(parts):
            archive.writestr(name, parts.pop(name))
    stored.seek(0)
    kinds = python_calamine.SheetTypeEnum
    with python_calamine.load_workbook(stored) as book:
        first = next(number for number, sheet in enumerate(book.sheets_metadata) if sheet.typ == kinds.WorkSheet)
        sheet = book.get_sheet_by_index(first)
        _, left = sheet.start or (0, 0)
        for number, values in enumerate(sheet.iter_rows(), 1):
            texts = [""] * left + [_write_cell(value) for value in values]
            for column, text in unwritten.pop(number, {}).items():
                texts += [""] * (column - len(texts))
                texts[column - 1] = text
            yield number, texts
        for number, cells in sorted(unwritten.items()):
            yield number, [cells.get(column, "") for column in range(1, max(cells) + 1)]
    if num_others:
        _LOG.warning("%s: only the first sheet is read; %d more with cells", path, num_others)


def _write_cell(value: Any) -> str:
    """Return the text of a value."""
    # Above 2**53 a floating-point number has lost digits: it must not pass as an identifier.
    is_exact = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    return str(int(value) if is_exact else value).strip()


def _check_parts(parts: Mapping[str, bytes], *, path: Path) -> None:
    if any(b"<!DOCTYPE" in part for part in parts.values()):
        raise BadInput(f"{path}: has a document type declaration; expected a spreadsheet")
    longest, most = read_limits().text, read_limits().sheet_cells
    if sum(part.count(b"<") for part in parts.values()) > _TAGS_OF_CELL * most:
        raise exceeds(path, f"more than {most} cells of {_TAGS_OF_CELL} XML tags", "sheet_cells")
    for part in parts.values():
        if any(part.find(b"<", start, start + longest) < 0 for start in range(0, len(part) - longest, longest)):
            raise exceeds(path, f"a cell of more than {longest} characters", "text")


def _list_sheets(parts: Mapping[str, bytes], *, path: Path) -> list[bytes]:
    """Return the XML of the sheets, in their order."""
    found = list[bytes]()
    for book in _list_related(parts, "", "officeDocument").values():
        sheets = _list_related(parts, book, "worksheet")
        named = (sheets.get(match[1].decode(), "") for match in _SHEET_ID.finditer(parts.get(book, b"")))
        found += [parts[sheet] for sheet in named if sheet in parts]
    if not found:
        raise BadInput(f"{path}: has no sheet")
    return found


def _list_related(parts: Mapping[str, bytes], part: str, kind: str) -> dict[str, str]:
    """Return by id the names of the parts of a kind that a part names; "" for the archive itself."""
    folder, _, name = part.rpartition("/")
    related = {}
    for relation in _RELATION.findall(parts.get(posixpath.join(folder, "_rels", f"{name}.rels"), b"")):
        target, what, key = (
            found[1].decode() if (found := re.search(rb"""\b%b\s*=\s*["']([^"']*)""" % attribute, relation)) else ""
            for attribute in (b"Target", b"Type", b"Id")
        )
        if what.endswith(f"/{kind}"):
            related[key] = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
    return related


def _read_place(attributes: bytes) -> tuple[int, int]:
    """Return column and row of a cell, from 1, or the row of a row; 0 where none is written."""
    place = _PLACE.search(attributes)
    if place is None:
        return 0, 0
    column = functools.reduce(lambda before, letter: 26 * before + letter - 64, place[1].upper(), 0)
    return column, int(place[2] or 0)


def _look(part: bytes, *, path: Path) -> dict[int, dict[int, str]]:
    """Return by row and column the cells that have a formula and no value, or an error; refuse a sheet too large."""
    limits, unwritten = read_limits(), dict[int, dict[int, str]]()
    num_rows = num_columns = 0
    for row in _ROW.split(part):
        _, number = _read_place(row.partition(b">")[0])
        cells = _CELL.findall(row)
        num_rows, num_columns = max(num_rows + 1, number), max(num_columns, len(cells))
        for attributes, formula in cells:
            column, number = _read_place(attributes)
            num_rows, num_columns = max(num_rows, number), max(num_columns, column)
            text = _ERROR if _ERROR_KIND.search(attributes) else ""
            if formula and not _TEXT_KIND.search(attributes):  # a stored empty text has the kind "str"
                text = UNCOMPUTED
            if text and column and number:
                unwritten.setdefault(number, {})[column] = text
    if num_columns > limits.columns:
        raise exceeds(path, f"a row has {num_columns} columns", "columns")
    if num_rows > limits.rows:
        raise exceeds(path, f"a row is numbered {num_rows}", "rows")
    if num_rows * num_columns > _EXTENT_OF_CELL * limits.sheet_cells:
        raise exceeds(path, f"{num_rows} rows of {num_columns} columns", "sheet_cells")
    return unwritten
