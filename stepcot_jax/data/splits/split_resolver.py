"""Resolve the split tables of a data root, .xlsx or .csv, to cases, for a run and for `data check`."""

import collections
import dataclasses
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from jaxtyping import Bool

from stepcot_jax.data.delimited import fold_column, name_content, read_rows
from stepcot_jax.data.identities import fold_patient, read_patient
from stepcot_jax.data.record_table import RecordTable, as_table
from stepcot_jax.data.records.data_json import normalise_image_path
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import Meter, exceeds, open_archive, open_untrusted, read_limits
from stepcot_jax.record import Record, SetAside

# The csv module, not pandas: messages need the row as spreadsheets count it, and a stray quote must stay an error.

_COLUMNS = ("patient_id", "image_path")
_EXPECTED = "expected a table whose first row has a column patient_id or image_path, or both"


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
    try:
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
    except BadInput:
        raise
    # zipfile, zlib and expat raise a dozen kinds of error on broken files.
    except Exception as error:
        raise BadInput(f"{path}: cannot be read: {type(error).__name__}: {str(error)[:200]}; {_EXPECTED}") from error
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


# Rows of an .xlsx as a stream, within `Limits`. Not openpyxl: it holds rows, shared strings and styles in memory before
# anything can be counted.

_CHUNK_BYTES = 2**16
_DEEPEST = 64
_MOST_LISTED = 2**16  # sheets, relations and styles; Excel's limit of styles
_LONGEST_FORMAT = 255
_CELL = re.compile(r"([A-Z]{1,5})[0-9]*")
_INTEGER = re.compile(r"-?[0-9]{1,300}")
Attributes = dict[str, str]
UNCOMPUTED = "(formula without a stored value)"
"""Text of a cell with a formula that no spreadsheet program has computed."""


class _Part:
    """Reads one XML file of an archive; subclasses handle elements by their local names."""

    def __init__(self, path: Path) -> None:
        self.path, self.limits = path, read_limits()
        self.text, self.collects = "", False
        self._pieces: list[str] = []
        self._num_chars = self._depth = 0

    def begin(self, name: str, attributes: Attributes) -> None:
        """Handle the start of an element."""

    def end(self, name: str) -> None:
        """Handle the end of an element."""

    def read(self, archive: zipfile.ZipFile, member: str) -> Iterator[None]:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._begin, self._end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self._add_text, self._refuse_doctype
        num_read = 0
        with archive.open(member) as file:
            while chunk := file.read(_CHUNK_BYTES):
                parser.Parse(chunk, False)
                num_read += len(chunk)
                if num_read - parser.CurrentByteIndex > self.limits.text:
                    raise exceeds(self.path, f"{member} has an attribute or comment of more characters", "text")
                yield
            parser.Parse(b"", True)
        yield

    def read_all(self, archive: zipfile.ZipFile, member: str) -> None:
        for _ in self.read(archive, member):
            pass

    def check_count(self, number: int) -> None:
        if number > _MOST_LISTED:
            raise BadInput(f"{self.path}: more than {_MOST_LISTED} sheets, relations or styles")

    def _begin(self, name: str, attributes: Attributes) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadInput(f"{self.path}: elements are nested more than {_DEEPEST} deep")
        self.begin(name.rpartition(":")[2], attributes)

    def _end(self, name: str) -> None:
        self._depth -= 1
        self.text = "".join(self._pieces)
        self.end(name.rpartition(":")[2])

    def _add_text(self, text: str) -> None:
        if self.collects:
            self._num_chars += len(text)
            if self._num_chars > self.limits.text:
                raise exceeds(self.path, f"a cell of more than {self.limits.text} characters", "text")
            self._pieces.append(text)

    def clear(self) -> None:
        self._pieces.clear()
        self._num_chars, self.collects = 0, False

    def _refuse_doctype(self, *_: Any) -> None:
        raise BadInput(f"{self.path}: has a document type declaration; expected a spreadsheet")


class _Listed(_Part):
    """The elements of one name, as their attributes."""

    def __init__(self, path: Path, *names: str) -> None:
        super().__init__(path)
        self._names, self.elements = names, list[tuple[str, str, Attributes]]()
        self._parents: list[str] = []

    def begin(self, name: str, attributes: Attributes) -> None:
        if name in self._names:
            self.check_count(len(self.elements))
            self.elements.append((self._parents[-1] if self._parents else "", name, attributes))
        self._parents.append(name)

    def end(self, name: str) -> None:  # noqa: ARG002
        self._parents.pop()


class _Strings(_Part):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.strings: list[str] = []
        self._meter, self._is_phonetic = Meter(path, sheet=True), False

    def begin(self, name: str, attributes: Attributes) -> None:  # noqa: ARG002
        if name == "rPh":
            self._is_phonetic = True
        self.collects = name == "t" and not self._is_phonetic

    def end(self, name: str) -> None:
        self.collects = False
        if name == "rPh":
            self._is_phonetic = False
        elif name == "si":
            self._meter.add_cells(1)
            self.strings.append(self.text.strip())
            self.clear()


class _Sheet(_Part):
    """The rows of a sheet; `rows` holds the complete ones until the caller clears it."""

    def __init__(self, path: Path, *, strings: list[str], dates: "_Dates") -> None:
        super().__init__(path)
        self.rows: list[tuple[int, list[str]]] = []
        self._strings, self._dates, self._meter = strings, dates, Meter(path, sheet=True)
        self._number = self._column = 0
        self._cells: dict[int, str] = {}
        self._kind, self._style, self._is_phonetic = "n", "0", False
        self._is_formula = False

    def begin(self, name: str, attributes: Attributes) -> None:
        if name == "row":
            self._number, self._column, self._cells = self._read_number(attributes), 0, {}
        elif name == "c":
            self._meter.add_cells(1)
            self._column = self._read_column(attributes)
            self._kind, self._style = attributes.get("t", "n"), attributes.get("s", "0")
            self._is_formula = False
            self.clear()
        elif name == "rPh":
            self._is_phonetic = True
        elif name == "f":
            self._is_formula = True
        self.collects = name == ("t" if self._kind == "inlineStr" else "v") and not self._is_phonetic

    def end(self, name: str) -> None:
        self.collects = False
        if name == "rPh":
            self._is_phonetic = False
        elif name == "c":
            text = self._read_text(self.text)
            if self._is_formula and not text and self._kind != "str":  # a stored empty text has the kind "str"
                text = UNCOMPUTED
            if text:
                self._cells[self._column] = text
            self.clear()
        elif name == "row":
            cells = [""] * max(self._cells, default=0)
            for column, text in self._cells.items():
                cells[column - 1] = text
            self._meter.add_row(len(cells), blank=not cells)
            self.rows.append((self._number, cells))

    def _read_number(self, attributes: Attributes) -> int:
        written = attributes.get("r", str(self._number + 1)).lstrip("0")
        if not (written.isascii() and written.isdigit()) or len(written) > 15 or int(written) > self.limits.rows:
            raise exceeds(self.path, f"a row is numbered {written[:40]!r}", "rows")
        return int(written)

    def _read_column(self, attributes: Attributes) -> int:
        column = self._column + 1
        if "r" in attributes:
            match = _CELL.fullmatch(attributes["r"])
            if match is None:
                raise BadInput(f"{self.path}: {attributes['r'][:40]!r} is not the place of a cell")
            column = 0
            for letter in match[1]:
                column = 26 * column + ord(letter) - ord("A") + 1
        if column > self.limits.columns:
            raise exceeds(self.path, f"row {self._number} has a cell in column {column}", "columns")
        return column

    def _read_text(self, value: str) -> str:
        if self._kind == "s" and value:
            index = int(value[:20])
            if not 0 <= index < len(self._strings):
                raise BadInput(f"{self.path}: row {self._number} names shared string {index} of {len(self._strings)}")
            return self._strings[index]
        if self._kind == "b" and value:
            return str(value.strip() != "0")
        if self._kind != "n" or not value.strip():
            return value.strip()
        number = int(value) if _INTEGER.fullmatch(value.strip()) else float(value)
        if self._style in self._dates.styles:
            return self._dates.write(number)
        # Above 2**53 a floating-point number has lost digits: it must not pass as an identifier.
        is_exact = isinstance(number, int) or (number.is_integer() and abs(number) <= 2**53)
        return str(int(number)) if is_exact else str(number)


class _Dates:
    """The styles of dates, and their numbers as text."""

    def __init__(self, archive: zipfile.ZipFile, member: str | None, *, path: Path, since_1904: bool) -> None:
        self._since_1904, self.styles = since_1904, set[str]()
        if member is None:
            return
        listed = _Listed(path, "xf", "numFmt")
        listed.read_all(archive, member)
        custom = {
            attributes.get("numFmtId"): attributes.get("formatCode", "")
            for _, name, attributes in listed.elements
            if name != "xf"
        }
        used = [
            attributes.get("numFmtId", "0")
            for parent, name, attributes in listed.elements
            if (parent, name) == ("cellXfs", "xf")
        ]
        if set(used) <= {"0", "49"}:  # without any format; openpyxl is slow to import
            return
        from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format

        formats = {**{str(number): code for number, code in BUILTIN_FORMATS.items()}, **custom}
        dates = {format_id for format_id in set(used) if is_date_format(formats.get(format_id, "")[:_LONGEST_FORMAT])}
        self.styles = {str(index) for index, format_id in enumerate(used) if format_id in dates}

    def write(self, number: float) -> str:
        from openpyxl.utils.datetime import CALENDAR_MAC_1904, CALENDAR_WINDOWS_1900, from_excel

        try:
            return str(from_excel(number, CALENDAR_MAC_1904 if self._since_1904 else CALENDAR_WINDOWS_1900))
        except (OverflowError, ValueError):
            return "#VALUE!"


def iterate_sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number, from 1, and the texts of each row of the first sheet; integers have no decimal point."""
    with open_untrusted(path, accepted="an .xlsx") as file:
        if not (start := file.read(64)).startswith(b"PK"):
            what = name_content(start) or "not an .xlsx: no zip archive (a CSV?)"
            raise BadInput(f"{path}: is {what}; expected a workbook saved as .xlsx, or a table named .csv")
    with open_archive(path, accepted="an .xlsx", most_unpacked=read_limits().unpacked_bytes) as archive:
        members = set(archive.namelist())
        if "_rels/.rels" not in members:
            kind = "an OpenDocument spreadsheet (.ods)" if "content.xml" in members else "a zip archive, but no .xlsx"
            raise BadInput(f"{path}: is {kind}; expected a workbook saved as .xlsx, or a table named .csv")
        book = _follow(archive, "_rels/.rels", "", path=path).get("officeDocument", ("xl/workbook.xml",))[0]
        folder, _, name = book.rpartition("/")
        parts = _follow(archive, f"{folder}/_rels/{name}.rels", folder, path=path)
        listed = _Listed(path, "sheet", "workbookPr")
        listed.read_all(archive, book)
        ids = [_find_id(attributes) for _, name, attributes in listed.elements if name == "sheet"]
        sheets = [parts[sheet_id][0] for sheet_id in ids if parts.get(sheet_id, ("", ""))[1] == "worksheet"]
        if not sheets:
            raise BadInput(f"{path}: has no sheet")
        since_1904 = any(attributes.get("date1904") in ("1", "true") for _, _, attributes in listed.elements)
        strings = _Strings(path)
        if (member := parts.get("sharedStrings", ("",))[0]) in members:
            strings.read_all(archive, member)
        member = parts.get("styles", ("",))[0]
        dates = _Dates(archive, member if member in members else None, path=path, since_1904=since_1904)
        sheet = _Sheet(path, strings=strings.strings, dates=dates)
        for _ in sheet.read(archive, sheets[0]):
            yield from sheet.rows
            sheet.rows.clear()


def _follow(archive: zipfile.ZipFile, member: str, folder: str, *, path: Path) -> dict[str, tuple[str, str]]:
    listed = _Listed(path, "Relationship")
    listed.read_all(archive, member)
    targets: dict[str, tuple[str, str]] = {}
    for _, _, relation in listed.elements:
        target, kind = relation.get("Target", ""), relation.get("Type", "").rpartition("/")[2]
        resolved = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
        targets.setdefault(kind, (resolved, kind))
        targets[relation.get("Id", "")] = resolved, kind
    return targets


def _find_id(attributes: Attributes) -> str:
    return next((value for name, value in attributes.items() if name.rpartition(":")[1:] == (":", "id")), "")
