"""The splits of a check: every row of the tables that fits nothing, not just the first, and who is in two splits."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from stepcot_jax.data.checks.check_records import Scan
from stepcot_jax.data.checks.check_tally import Tally
from stepcot_jax.data.checks.text_index import TextIndex
from stepcot_jax.data.columns import find_first
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.data.splits.split_tables import SplitRow, read_split_table
from stepcot_jax.data.splits.splits import SPLIT_NAMES, find_tables, make_splits
from stepcot_jax.host.errors import BadInput

_NUMBER = re.compile(r"0*([0-9]+?)(?:\.0+)?")
_NUM_EXAMPLES = 5
_MOST_NAMED = 1000


@dataclasses.dataclass
class Problem:
    """Something about splits that stops a run, with its first examples."""

    count: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, example: str) -> None:
        """Takes note of one more."""
        self.count += 1
        if len(self.examples) < _NUM_EXAMPLES:
            self.examples.append(example)


@dataclasses.dataclass
class SplitFacts:
    """What is known of the splits.

    Attributes:
      source: "tables", "made", or "" where there are none.
      member: which records are in which split.
      files: the table of each split.
      num_rows: rows of each table that name something.
      num_passed_over: rows between the first and the last that name nothing, as empty and merged cells leave them.
      problems: what stops a run, by what it is.
      shared: patients in more than one split, a thousand at most, and the splits of each.
    """

    source: str
    member: Bool[np.ndarray, "split record"]
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    num_rows: dict[str, int] = dataclasses.field(default_factory=dict)
    num_passed_over: dict[str, int] = dataclasses.field(default_factory=dict)
    problems: dict[str, Problem] = dataclasses.field(default_factory=lambda: collections.defaultdict(Problem))
    shared: dict[str, str] = dataclasses.field(default_factory=dict)

    def count(self, kind: str) -> int:
        """How often a problem was found."""
        return self.problems[kind].count if kind in self.problems else 0

    def names_of(self, place: int) -> tuple[str, ...]:
        """The splits that a record is in."""
        return tuple(itertools.compress(SPLIT_NAMES, self.member[:, place].tolist()))


class _Names:
    """Records by what a table may call them: as `splits.read_splits` has it, but without an object for each."""

    def __init__(self, scan: Scan) -> None:
        tally, aside = scan.tally, scan.reasons
        good = np.flatnonzero(scan.good).tolist()
        self._tally = tally
        self._by_path = TextIndex(tally.image_paths, good)
        self._by_patient = TextIndex(tally.patient_ids, good)
        self._by_number = TextIndex(tally.patient_ids, good, key=_as_number)
        self._aside = aside
        paths = (place for place in range(aside.count) if aside.image_paths[place])
        patients = [place for place in range(aside.count) if aside.patient_ids[place]]
        self._paths_aside = TextIndex(aside.image_paths, paths, key=normalise_image_path)
        self._patients_aside = TextIndex(aside.patient_ids, patients)
        self._numbers_aside = TextIndex(aside.patient_ids, patients, key=_as_number)

    def find(self, row: SplitRow) -> list[int]:
        """Places of the records that a row names.

        Raises:
          BadInput: it names none, or one that it contradicts.
        """
        patients = self._patients(row.patient_id)
        if row.image_path:
            path = normalise_image_path(row.image_path)
            places = self._by_path.find(path)
            if places:
                expected = self._tally.patient_ids[places[-1]]
                if row.patient_id and expected not in patients:
                    raise BadInput("another patient than the image's in data.json")
                return places[-1:]
            if self._paths_aside.find(path):
                return []
            raise BadInput("an image_path that data.json does not have")
        if not patients:
            raise BadInput("a patient_id that data.json does not have")
        if len(patients) > 1:
            raise BadInput("a number that may mean several patients")
        return self._by_patient.find(patients[0])

    def _patients(self, written: str) -> list[str]:
        if self._by_patient.find(written) or self._patients_aside.find(written):
            return [written]
        number = _NUMBER.fullmatch(written)
        if not number:
            return []
        aside = [self._aside.patient_ids[place] for place in self._numbers_aside.find(number[1])]
        found = [self._tally.patient_ids[place] for place in self._by_number.find(number[1])]
        return list(dict.fromkeys((*aside, *found)))


def _as_number(patient: str) -> str | None:
    return (patient.lstrip("0") or "0") if patient.isascii() and patient.isdigit() else None


def check_tables(scan: Scan, root: Path) -> SplitFacts | None:
    """Reads the tables of the three splits below the data root; None where there is none of them.

    Whatever `splits.read_splits` refuses is a problem here, and nothing else is.
    """
    facts = SplitFacts("tables", np.zeros((len(SPLIT_NAMES), len(scan.tally)), bool))
    try:
        tables = find_tables(root)
    except BadInput as error:
        facts.problems["tables are missing"].add(str(error))
        return facts
    if tables is None:
        return None
    names = _Names(scan)
    for number, (split, path) in enumerate(tables.items()):
        facts.files[split] = path.name
        try:
            rows = read_split_table(path)
        except BadInput as error:
            facts.problems["tables cannot be read"].add(str(error))
            continue
        facts.num_rows[split] = len(rows)
        facts.num_passed_over[split] = rows[-1].number - rows[0].number + 1 - len(rows) if rows else 0
        _claim(facts, rows, names=names, split=number)
    _check_members(facts, scan)
    return facts


def _claim(facts: SplitFacts, rows: Sequence[SplitRow], *, names: _Names, split: int) -> None:
    by_path = np.zeros(facts.member.shape[1], bool)
    for row in rows:
        try:
            places = names.find(row)
        except BadInput as error:
            facts.problems[f"rows name {error}"].add(str(row))
            continue
        has_path = bool(row.image_path)
        if any(facts.member[split, place] and (has_path or by_path[place]) for place in places):
            facts.problems["rows name a case that an earlier row of the table names"].add(str(row))
        facts.member[split, places] = True
        by_path[places] |= has_path


def _check_members(facts: SplitFacts, scan: Scan) -> None:
    for name, member in zip(SPLIT_NAMES, facts.member, strict=True):
        if not member.any():
            facts.problems["splits have no case"].add(name)
    for patient, places in _find_shared(facts, scan.tally):
        if len(facts.shared) < _MOST_NAMED:
            facts.shared[patient] = places
        facts.problems["patients are in more than one split"].add(f"{patient!r} ({places})")
    unlisted = np.flatnonzero(scan.good & ~facts.member.any(axis=0))
    if unlisted.size:
        paths = [repr(scan.tally.image_paths[place][:80]) for place in unlisted[:_NUM_EXAMPLES].tolist()]
        facts.problems["cases are in no split"] = Problem(int(unlisted.size), paths)


def _find_shared(facts: SplitFacts, tally: Tally) -> Iterator[tuple[str, str]]:
    """Patients in more than one split, each with the names of the splits."""
    first = find_first(tally.patients.halves)  # a patient is known by their first record
    inside = np.zeros_like(facts.member)
    for split, member in enumerate(facts.member):
        inside[split, first[member]] = True
    for place in np.flatnonzero(inside.sum(axis=0) > 1).tolist():
        yield tally.patient_ids[place], ", ".join(itertools.compress(SPLIT_NAMES, inside[:, place].tolist()))


def make_for(scan: Scan, *, seed: int, fractions: Sequence[float]) -> SplitFacts:
    """The splits that a run makes where there are no tables."""
    facts = SplitFacts("made", np.zeros((len(SPLIT_NAMES), len(scan.tally)), bool))
    cases = _Cases(scan)
    try:
        splits = make_splits(cases, seed=seed, fractions=fractions)  # type: ignore[arg-type]
    except BadInput as error:
        facts.problems["splits cannot be made"].add(str(error))
        return facts
    for member, indices in zip(facts.member, splits.by_name().values(), strict=True):
        member[cases.places[list(indices)]] = True
    return facts


class _Cases(Sequence[Case]):
    """The good records as cases without texts, each made when it is asked for."""

    def __init__(self, scan: Scan) -> None:
        self._tally = scan.tally
        self.places = np.flatnonzero(scan.good)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self._tally.case(int(self.places[index]))


def find_unannotated(facts: SplitFacts, scan: Scan) -> list[str]:
    """Those of the splits that a run learns from or chooses by in which nobody answered anything."""
    is_annotated = scan.tally.labels >= 0
    return [
        name
        for name, member in zip(SPLIT_NAMES, facts.member, strict=True)
        if name in ("train", "val") and member.any() and not is_annotated[member].any()
    ]


def find_leaks(facts: SplitFacts, original: Int64[np.ndarray, " record"], repeated: Sequence[int]) -> list[list[int]]:
    """Groups of records with one picture of which some are in one split and others in another.

    Args:
      facts: of the splits.
      original: for each record the first with the same picture.
      repeated: records with a picture that an earlier one has.
    """
    groups: dict[int, list[int]] = {}
    for place in repeated:
        first = int(original[place])
        groups.setdefault(first, [first]).append(place)
    return [group for group in groups.values() if len({name for place in group for name in facts.names_of(place)}) > 1]
