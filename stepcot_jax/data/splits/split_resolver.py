"""Resolve the split tables of a data root to cases, for a run and for `data check`."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from stepcot_jax.data.columns import RecordTable, TextColumn, TextIndex, as_table
from stepcot_jax.data.identities import fold_patient, read_patient
from stepcot_jax.data.records.data_json import normalise_image_path
from stepcot_jax.data.sources.delimited import fold_column, read_rows
from stepcot_jax.data.splits.sheet_rows import UNCOMPUTED, iterate_sheet
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Assignment, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import exceeds, read_limits
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
    paths = TextColumn(item.image_path for item in set_aside)
    patients = TextColumn(item.patient_id for item in set_aside)
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
    set_aside_paths: TextColumn,
    set_aside_patients: TextColumn,
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
            shown = f"{table.splits[case] or 'none'} for {table.image_paths[case][:80]!r}"
            assignment.add_problem("records name another split than the tables", shown)
    assignment.find_problems(table, good)
    return assignment


def _read_records(table: RecordTable, good: Bool[np.ndarray, " case"]) -> Assignment | None:
    """Return the splits that the records themselves name."""
    numbers, names = table.splits.numbers, table.splits.names
    rows = [(numbers == names.index(name)) & good if name in names else np.zeros_like(good) for name in SPLIT_NAMES]
    member = np.stack(rows)
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

    def __init__(self, table: RecordTable, good: Sequence[int], aside_paths: TextColumn, aside: TextColumn) -> None:
        self._table = table
        self._by_path = TextIndex(table.image_paths, good)
        self._by_patient = TextIndex(table.patient_ids, good, key=fold_patient)
        self._paths_aside = TextIndex(
            aside_paths, range(len(aside_paths)), key=lambda path: normalise_image_path(path) if path else None
        )
        self._aside = TextIndex(aside, range(len(aside)), key=lambda patient: fold_patient(patient) or None)

    def find(self, row: SplitRow) -> list[int]:
        patient = fold_patient(row.patient_id)
        if row.image_path:
            path = normalise_image_path(row.image_path)
            cases = self._by_path.find(path)[-1:]
            if cases and patient and fold_patient(expected := self._table.patient_ids[cases[0]]) != patient:
                raise BadInput("another patient than the image's in data.json", f"expected {expected!r}")
            if not cases and not self._paths_aside.find(path):
                raise BadInput("an image_path that data.json does not have")
            return cases
        cases = self._by_patient.find(patient)
        if not cases and not self._aside.find(patient):
            raise BadInput("a patient_id that data.json does not have")
        return cases
