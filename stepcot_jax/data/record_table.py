"""Records with the answers of one chain, and what of them is needed as lists, arrays and counts."""

import collections
import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, overload

import msgspec
import numpy as np
from jaxtyping import Bool, Int, Int8, Int64

from stepcot_jax.box import Box
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.record import Record


def find_first(items: Iterable[Hashable]) -> Int64[np.ndarray, " item"]:
    """Return for each item the position of the first equal item, which may be the item itself."""
    first: dict[Hashable, int] = {}
    return np.array([first.setdefault(item, index) for index, item in enumerate(items)], np.int64)


def count_boxes(boxes: Iterable[tuple[Box, ...]]) -> tuple[int, int, int]:
    """Count boxes by the boxes of each record, the records with some, and those whose boxes have one label."""
    some = list(filter(None, boxes))
    return sum(map(len, some)), len(some), sum(len({box.label for box in own}) == 1 for own in some)


class RecordTable(Sequence[Record]):
    """Records of one chain; does not change."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = tuple(records)
        self.has_one_spelling = False  # whether each patient is known to be written in one way

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __eq__(self, other: object) -> bool:
        return self._records == tuple(other) if isinstance(other, RecordTable | tuple | list) else NotImplemented

    def __repr__(self) -> str:
        return f"RecordTable({len(self)} cases)"

    @functools.cached_property
    def image_paths(self) -> list[str]:
        """The image of each case."""
        return [record.image for record in self._records]

    @functools.cached_property
    def patient_ids(self) -> list[str]:
        """The patient of each case."""
        return [record.patient for record in self._records]

    @functools.cached_property
    def labels(self) -> Int8[np.ndarray, "case step"]:
        """Certain labels, `chain.NOT_ANNOTATED` elsewhere."""
        return self._as_array([record.answers for record in self._records])

    @functools.cached_property
    def uncertain(self) -> Int8[np.ndarray, "case step"]:
        """Labels of uncertain answers, `chain.NOT_ANNOTATED` elsewhere."""
        nothing = (NOT_ANNOTATED,) * self.labels.shape[1]
        return self._as_array([record.uncertain or nothing for record in self._records])

    def _as_array(self, rows: list[tuple[int, ...]]) -> Int8[np.ndarray, "case step"]:
        return np.array(rows, np.int8).reshape(len(rows), len(rows[0]) if rows else 0)

    def with_labels(
        self, labels: Int[np.ndarray, "case step"], uncertain: Int[np.ndarray, "case step"]
    ) -> "RecordTable":
        """Return the same cases with other labels."""
        rows = zip(self._records, labels.tolist(), uncertain.tolist(), strict=True)
        return RecordTable(
            msgspec.structs.replace(
                record,
                answers=tuple(answers),
                uncertain=tuple(possible) if max(possible, default=NOT_ANNOTATED) >= 0 else (),
            )
            for record, answers, possible in rows
        )

    def with_patients(self, names: Mapping[str, str]) -> "RecordTable":
        """Return the same cases, with other names for some patients."""
        return RecordTable(
            msgspec.structs.replace(record, patient=names[record.patient]) if record.patient in names else record
            for record in self._records
        )

    def without_answers(self, indices: Iterable[int]) -> "RecordTable":
        """Return the same cases, some of them without answers, reports, reasons and boxes."""
        records = list(self._records)
        for index in indices:
            num_steps = len(records[index].answers)
            answers, reasoning = (NOT_ANNOTATED,) * num_steps, ("",) * len(records[index].reasoning)
            nothing: dict[str, Any] = {"answers": answers, "uncertain": (), "reasoning": reasoning, "boxes": ()}
            records[index] = msgspec.structs.replace(records[index], report="", **nothing)
        return RecordTable(records)

    def count_patients(self, chosen: Bool[np.ndarray, " case"] | None = None) -> int:
        """Count the patients of the chosen cases (None: of all)."""
        return len(set(self.patient_ids if chosen is None else itertools.compress(self.patient_ids, chosen)))

    def count_origins(self, chosen: Bool[np.ndarray, " case"]) -> dict[str, int]:
        """Count the chosen cases of each origin, the most frequent first."""
        counts = collections.Counter(record.origin for record in itertools.compress(self._records, chosen))
        return dict(sorted(counts.items(), key=lambda pair: (pair[1], pair[0]), reverse=True))

    def count_answers(
        self, chosen: Bool[np.ndarray, " case"], *, step: int, num_answers: int
    ) -> Int64[np.ndarray, " answer"]:
        """Count each certain answer of a step among the chosen cases; other cases count nowhere."""
        labels = self.labels[chosen, step]
        return np.bincount(labels[labels >= 0], minlength=num_answers)

    def count_uncertain(self, chosen: Bool[np.ndarray, " case"]) -> Int64[np.ndarray, " step"]:
        """Count the chosen cases whose answer is uncertain, for each step."""
        return (self.uncertain[chosen] >= 0).sum(axis=0, dtype=np.int64)


def as_table(cases: Iterable[Record]) -> RecordTable:
    """Return the cases as a table, the same object if they are one."""
    return cases if isinstance(cases, RecordTable) else RecordTable(cases)
