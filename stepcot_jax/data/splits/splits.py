"""Which cases train, validate and test: read from tables or made, written as a manifest and read back."""

import collections
import re
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.splits.split_checks import SPLIT_NAMES, Splits, check_listed, check_splits
from stepcot_jax.data.splits.split_making import PUBLISHED_FRACTIONS, make_splits
from stepcot_jax.data.splits.split_manifest import check_manifest, read_manifest, write_manifest
from stepcot_jax.data.splits.split_tables import SplitRow, read_split_table
from stepcot_jax.host.errors import BadInput

__all__ = [
    "PUBLISHED_FRACTIONS",
    "SPLIT_NAMES",
    "Splits",
    "check_manifest",
    "find_tables",
    "make_splits",
    "read_manifest",
    "read_splits",
    "write_manifest",
]

_TABLE_SUFFIXES = (".xlsx", ".csv")
_NUMBER = re.compile(r"0*([0-9]+?)(?:\.0+)?")
_NUM_SHOWN = 20


def read_splits(
    root: Path, cases: Sequence[Case], *, set_aside: Sequence[SetAside] = (), allow_unlisted: bool = False
) -> Splits | None:
    """Reads `train`, `val` and `test`, each .xlsx or .csv, below `root`.

    A row names an image by `image_path`, or all images of a patient by `patient_id`; given both, they must
    agree. A patient may be named again in the same table where the rows name no images. Spreadsheets turn a
    patient "00001613" into the number 1613: a number means the one patient whose identifier is that number
    with zeros before it. Rows that name only records that were set aside are passed over.

    Args:
      root: folder of the tables.
      cases: the cases that the rows name.
      set_aside: records that rows may name without a case being there.
      allow_unlisted: whether cases that no table names are left out (and counted in a warning).

    Returns:
      The splits, or None if there is none of the three tables.

    Raises:
      BadInput: a table is missing or unreadable, a row names nothing or something twice, a patient is in
        two splits, a split has no case, or a case is in no split; names file, row and value.
    """
    tables = find_tables(Path(root))
    if tables is None:
        return None
    names = _Names(cases, set_aside)
    rows: dict[tuple[str, int], SplitRow] = {}
    problems: list[str] = []
    for split, path in tables.items():
        for row in read_split_table(path):
            try:
                _claim(rows, split=split, row=row, indices=names.find(row))
            except BadInput as error:
                problems.append(f"{row}: {error}")
    if problems:
        others = f"; {len(problems) - 1} more rows are bad" if len(problems) > 1 else ""
        raise BadInput(f"{root}: {problems[0]}{others}")
    splits = Splits(*(tuple(sorted(index for split, index in rows if split == name)) for name in SPLIT_NAMES))
    check_splits(splits, cases, source=str(root), rows=rows)
    check_listed(splits, cases, source=str(root), allow_unlisted=allow_unlisted)
    return splits


def find_tables(root: Path) -> dict[str, Path] | None:
    """The table of each split below `root`, or None if there is none of the three.

    Raises:
      BadInput: some are there and others are missing, or one is there twice.
    """
    found = {
        name: [path for path in (root / (name + suffix) for suffix in _TABLE_SUFFIXES) if path.is_file()]
        for name in SPLIT_NAMES
    }
    if not any(found.values()):
        return None
    for name, paths in found.items():
        if len(paths) != 1:
            present = [path.name for others in found.values() for path in others]
            raise BadInput(
                f"{root}: found {present}, accepted is one of {name}.xlsx and {name}.csv, or no table at all"
            )
    return {name: paths[0] for name, paths in found.items()}


def _claim(rows: dict[tuple[str, int], SplitRow], *, split: str, row: SplitRow, indices: Sequence[int]) -> None:
    for index in indices:
        earlier = rows.setdefault((split, index), row)
        if earlier is not row and (row.image_path or earlier.image_path):
            raise BadInput(f"found a case that row {earlier.number} names already, accepted is each case once")


class _Names:
    """Cases by what a table may call them."""

    def __init__(self, cases: Sequence[Case], set_aside: Sequence[SetAside]) -> None:
        self._cases = cases
        self._by_path = {case.image_path: index for index, case in enumerate(cases)}
        self._by_patient: dict[str, list[int]] = {item.patient_id: [] for item in set_aside if item.patient_id}
        for index, case in enumerate(cases):
            self._by_patient.setdefault(case.patient_id, []).append(index)
        self._by_number: dict[str, list[str]] = collections.defaultdict(list)
        for patient in self._by_patient:
            if patient.isascii() and patient.isdigit():
                self._by_number[patient.lstrip("0") or "0"].append(patient)
        self._paths_aside = {normalise_image_path(item.image_path) for item in set_aside if item.image_path}

    def find(self, row: SplitRow) -> list[int]:
        patients = self._patients(row.patient_id)
        if row.image_path:
            path = normalise_image_path(row.image_path)
            if path in self._by_path:
                index = self._by_path[path]
                expected = self._cases[index].patient_id
                if row.patient_id and expected not in patients:
                    raise BadInput(f"found another patient than the image's in data.json, accepted is {expected!r}")
                return [index]
            if path in self._paths_aside:
                return []
            raise BadInput("found no such image_path in data.json, accepted are those of its records")
        if not patients:
            raise BadInput("found no such patient_id in data.json, accepted are those of its records")
        if len(patients) > 1:
            raise BadInput(
                f"found a number that may mean any of the patients {patients[:_NUM_SHOWN]}, "
                "accepted is a patient_id as text, exactly as in data.json, or a column image_path"
            )
        return self._by_patient[patients[0]]

    def _patients(self, written: str) -> list[str]:
        """Patients that a cell may mean: the one of this name, or else those of this number."""
        if written in self._by_patient:
            return [written]
        number = _NUMBER.fullmatch(written)
        return self._by_number.get(number[1], []) if number else []
