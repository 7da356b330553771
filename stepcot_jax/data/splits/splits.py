"""Train, validation and test splits, and the list of their problems.

A run stops at the first problem; `data check` lists all.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Bool, Int32

from stepcot_jax.data.identities import join_patients_of, normalise_image_path
from stepcot_jax.data.record_table import RecordTable, as_table, find_first
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.record import Record, SetAside

SPLIT_NAMES = ("train", "val", "test")
_NUM_EXAMPLES = 5
_MOST_NAMED = 1000


@dataclasses.dataclass(frozen=True)
class Splits:
    """Indices into the cases, ascending; no case and no patient is in two splits."""

    train: tuple[int, ...]
    val: tuple[int, ...]
    test: tuple[int, ...]

    def by_name(self) -> dict[str, tuple[int, ...]]:
        """Return the indices of each split by its name."""
        return {name: getattr(self, name) for name in SPLIT_NAMES}


@dataclasses.dataclass
class Problem:
    """A problem of records or splits: how often it occurs, and the first examples."""

    kind: str
    count: int = 0
    examples: list[Any] = dataclasses.field(default_factory=list)

    def add(self, example: Any, *, most: int) -> None:
        """Count an occurrence; keep it if there are fewer than `most` examples."""
        self.count += 1
        if len(self.examples) < most:
            self.examples.append(example)

    def __str__(self) -> str:
        more = f" and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        number = f"{self.count} " if self.count > 1 else ""
        return f"{number}{self.kind}: {'; '.join(self.examples)}{more}"


@dataclasses.dataclass
class Assignment:
    """The split or splits of each case, and the problems that would stop a run."""

    source: str
    rows: Int32[np.ndarray, "split case"]  # row of the split's table that names the case, from 1; 0 for none
    tables: dict[str, tuple[str, int | None, int | None]] = dataclasses.field(default_factory=dict)
    problems: dict[str, Problem] = dataclasses.field(default_factory=dict)  # by kind, in order of detection
    shared: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, splits: Splits, num_cases: int) -> "Assignment":
        """Return the assignment of splits that come without tables."""
        rows = np.zeros((len(SPLIT_NAMES), num_cases), np.int32)
        for row, indices in zip(rows, splits.by_name().values(), strict=True):
            row[list(indices)] = 1
        return cls("made", rows)

    @property
    def member(self) -> Bool[np.ndarray, "split case"]:
        """Whether a case is in a split."""
        return self.rows > 0

    def as_splits(self) -> Splits:
        """Return the indices of each split."""
        return Splits(*(tuple(np.flatnonzero(row).tolist()) for row in self.rows))

    def add_problem(self, kind: str, example: str) -> None:
        """Add a problem; only the first examples of a kind are kept."""
        self.problems.setdefault(kind, Problem(kind)).add(example, most=_NUM_EXAMPLES)

    def count(self, kind: str) -> int:
        """Return how often a problem occurs."""
        return self.problems[kind].count if kind in self.problems else 0

    def find_problems(self, table: RecordTable, good: Bool[np.ndarray, " case"] | None = None) -> None:
        """Add empty splits, patients in several splits, and those of the `good` cases that are in no split."""
        member, (table, _) = self.member, join_patients_of(table)
        for name, in_split in zip(SPLIT_NAMES, member, strict=True):
            if not in_split.any():
                self.add_problem("splits have no case", name)
        first = find_first(table.patient_ids)  # identifies a patient by their first case
        inside = np.zeros_like(member)
        for split, in_split in enumerate(member):
            inside[split, first[in_split]] = True
        for case in np.flatnonzero(inside.sum(axis=0) > 1).tolist():
            patient, splits = table.patient_ids[case], np.flatnonzero(inside[:, case])
            names = [SPLIT_NAMES[split] for split in splits]
            if len(self.shared) < _MOST_NAMED:
                self.shared[patient] = ", ".join(names)
                if self.tables:
                    rows = self.rows[:, first == case]
                    lowest = [rows[split][rows[split] > 0].min() for split in splits]
                    names = [f"{self.tables[name][0]} row {row}" for name, row in zip(names, lowest, strict=True)]
            self.add_problem("patients are in more than one split", f"{patient!r} ({', '.join(names)})")
        if good is not None:
            for case in np.flatnonzero(good & ~member.any(axis=0)).tolist():
                self.add_problem("cases are in no split", repr(table.image_paths[case][:80]))

    def refuse(self, source: str) -> None:
        """Raise the first problem, if any, as `BadInput`."""
        for problem in self.problems.values():
            raise BadInput(f"{source}: {problem}")


def count_shared(members: Iterable[tuple[str, str]]) -> int:
    """Count the patients in several splits among distinct pairs of patient and split."""
    return sum(number > 1 for number in collections.Counter(patient for patient, _ in members).values())


def check_splits(splits: Splits, cases: Iterable[Record], *, source: str) -> None:
    """Raise `BadInput`, which begins with `source`, if a split of `cases` is empty or shares a patient with another."""
    table = as_table(cases)
    assignment = Assignment.of(splits, len(table))
    assignment.find_problems(table)
    assignment.refuse(source)


# `splits.json`: the splits of a run, with checksums that tie them to the data.

_EXPECTED = "expected a manifest of splits that this project wrote"
_NUM_SHOWN = 80
_NUM_CHECKSUM_DIGITS = 16


class _Manifest(msgspec.Struct, kw_only=True):
    source: str
    splits: dict[str, tuple[str, ...]]
    checksums: dict[str, tuple[str, ...]]
    digest: str


def write_manifest(path: Path, splits: Splits, cases: Iterable[Record], *, source: str) -> None:
    """Write the images of each split as JSON; `source` describes where the splits come from."""
    table, members = as_table(cases), splits.by_name()
    checksums = _compute_checksums(table)
    manifest = _Manifest(
        source=source,
        splits={name: tuple(table.image_paths[index] for index in indices) for name, indices in members.items()},
        checksums={name: tuple(checksums[index] for index in indices) for name, indices in members.items()},
        digest="",
    )
    manifest.digest = _digest(manifest)
    save(path, manifest)


def check_manifest(path: Path, splits: Splits, cases: Iterable[Record], *, set_aside: Sequence[SetAside] = ()) -> None:
    """Raise `BadInput` if the splits of a run that resumes differ from a manifest's."""
    manifest, table = _decode(Path(path)), as_table(cases)
    checksums = dict(zip(table.image_paths, _compute_checksums(table), strict=True))
    aside = {normalise_image_path(item.image_path) for item in set_aside if item.image_path}
    split_of = {image: name for name in SPLIT_NAMES for image in manifest.splits[name]}
    written = {
        image: checksum
        for name in SPLIT_NAMES
        for image, checksum in zip(manifest.splits[name], manifest.checksums[name], strict=True)
    }
    differences = {
        "images are not in the data": [image for image in written if image not in checksums and image not in aside],
        f"of the data's {len(table)} images are missing": [image for image in checksums if image not in written],
        "images have another patient or other labels": [
            image for image in written if checksums.get(image, written[image]) != written[image]
        ],
    }
    problems = [
        f"{len(images)} {what} (first {images[0][:_NUM_SHOWN]!r})" for what, images in differences.items() if images
    ]
    if problems:
        raise BadInput(f"{path}: the splits do not match the data: {', '.join(problems)}; split these data anew")
    now = {table.image_paths[index]: name for name, indices in splits.by_name().items() for index in indices}
    moved = [image for image in checksums if now.get(image) != split_of[image]]
    if moved:
        first = moved[0]
        raise BadInput(
            f"{path}: {len(moved)} of {len(table)} images are in another split now (first {first[:_NUM_SHOWN]!r}: "
            f"{split_of[first]} there, {now.get(first, 'none')} now); use the same splits or a new workdir"
        )


def leave_unused_out(splits: Splits, cases: Iterable[Record]) -> tuple[Splits, list[Record]]:
    """Return the splits over their own cases alone, and these; a run of some origins has cases of no split."""
    table, members = as_table(cases), splits.by_name()
    used = sorted(index for indices in members.values() for index in indices)
    place = {index: number for number, index in enumerate(used)}
    kept = {name: tuple(place[index] for index in indices) for name, indices in members.items()}
    return Splits(**kept), [table[index] for index in used]


def read_members(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the image paths of each split of a manifest."""
    return dict(_decode(Path(path)).splits)


def _decode(path: Path) -> _Manifest:
    manifest = load(path, _Manifest, max_bytes=MAX_LISTING_BYTES)
    if manifest.digest != _digest(manifest):
        raise BadInput(f"{path}: the content does not match its digest: it was altered or damaged; {_EXPECTED}")
    return manifest


def _compute_checksums(table: RecordTable) -> list[str]:
    rows = zip(table.image_paths, table.patient_ids, table.labels.tolist(), strict=True)
    return [hashlib.sha256(json.dumps(row).encode()).hexdigest()[:_NUM_CHECKSUM_DIGITS] for row in rows]


def _digest(manifest: _Manifest) -> str:
    content = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
