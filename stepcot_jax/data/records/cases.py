"""The core records: `Case`, `Box`, `SetAside`, and `CaseTable`, which holds cases as columns."""

import array
import copy
import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Bool, Int, Int8, Int64

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.columns import CategoryColumn, DigestColumn, TextColumn, find_first

OTHER_ORIGINS = "(further origins)"


@dataclasses.dataclass(frozen=True)
class Box:
    """A finding's location in the image.

    Attributes:
      x: left edge in pixels of the image file.
      sentence: the report's sentence about it; "" if the source has none.
    """

    label: str
    x: float
    y: float
    width: float
    height: float
    sentence: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One radiograph with its chain.

    Attributes:
      patient_id: patient, as in the file; splits are disjoint by it.
      image_path: image, relative to the data root, with "/" as separator.
      origin: collection that the image comes from; "" if unknown.
      report: radiologist's report; "" if there is none.
      labels: label of each step, `chain.NOT_ANNOTATED` where nobody answered or the answer is uncertain.
      reasoning: reason given for each step's answer; "" if there is none.
      sex: "F", "M" or "O"; "" if unknown.
      age: in years; None if unknown.
      view: projection, such as "PA" or "AP"; "" if unknown.
      provenance: how the answers were made, as names and values; empty for answers of the source itself.
      uncertain: label of each step's uncertain answer, `chain.NOT_ANNOTATED` at the other steps; () if there is none.
        An uncertain answer is never among `labels`, so that no figure takes it for the truth.
    """

    patient_id: str
    image_path: str
    origin: str
    report: str
    labels: tuple[int, ...]
    reasoning: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    sex: str = ""
    age: float | None = None
    view: str = ""
    provenance: tuple[tuple[str, str], ...] = ()
    uncertain: tuple[int, ...] = ()

    @property
    def stated(self) -> tuple[int, ...]:
        """Label of each step as the source states it, uncertain answers included.

        >>> Case("p", "a.png", "", "", (0, NOT_ANNOTATED), ("", ""), uncertain=(NOT_ANNOTATED, 3)).stated
        (0, 3)
        """
        pairs = zip(self.labels, self.uncertain or self.labels, strict=True)
        return tuple(label if label != NOT_ANNOTATED else possible for label, possible in pairs)

    def with_stated(self, stated: Sequence[int], uncertain: Sequence[bool]) -> "Case":
        """Return the case with other answers, of which some are uncertain; both are of all steps."""
        doubts = [doubt and label != NOT_ANNOTATED for label, doubt in zip(stated, uncertain, strict=True)]
        certain = tuple(NOT_ANNOTATED if doubt else label for label, doubt in zip(stated, doubts, strict=True))
        possible = tuple(label if doubt else NOT_ANNOTATED for label, doubt in zip(stated, doubts, strict=True))
        return dataclasses.replace(self, labels=certain, uncertain=possible if any(doubts) else ())


@dataclasses.dataclass(frozen=True)
class SetAside:
    """A record that takes no part.

    Attributes:
      record: its position in the file, from 0.
      image_path: its image as in the file; "" if unreadable.
      reason: the field, what it holds, and what is expected.
      patient_id: its patient, which lets split files resolve this patient; "" if unreadable.
    """

    record: int
    image_path: str
    reason: str
    patient_id: str = ""


class CaseTable(Sequence[Case]):
    """Cases as columns; indexing builds one `Case`.

    Args:
      with_texts: keep everything. Otherwise only labels, identifiers, origins and box counts are kept, in less than
        200 bytes a case, and origins beyond the first thousand are merged.

    Attributes:
      patients: digest of each case's patient.

    >>> table = CaseTable([Case("p", "a.png", "", "", (0, 1), ("", ""))])
    >>> table.labels.tolist(), table[0].patient_id
    ([[0, 1]], 'p')
    """

    def __init__(self, cases: Iterable[Case] = (), *, with_texts: bool = True) -> None:
        self.patient_ids, self.image_paths = TextColumn(), TextColumn()
        self.patients = DigestColumn()
        self.origins = CategoryColumn(other=None if with_texts else OTHER_ORIGINS)
        self._labels, self._uncertain = array.array("b"), array.array("b")
        self._num_boxes, self._num_box_labels = array.array("i"), array.array("i")
        self._rest: list[bytes] | None = [] if with_texts else None
        for case in cases:
            self.append(case)

    def append(self, case: Case) -> None:
        """Append a case."""
        self.patient_ids.append(case.patient_id)
        self.image_paths.append(case.image_path)
        self.patients.append(case.patient_id)
        self.origins.append(case.origin)
        self._labels.extend(case.labels)
        self._uncertain.extend(case.uncertain or (NOT_ANNOTATED,) * len(case.labels))
        self._num_boxes.append(len(case.boxes))
        self._num_box_labels.append(len({box.label for box in case.boxes}) if case.boxes else 0)
        if self._rest is not None:
            boxes = [dataclasses.astuple(box) for box in case.boxes]
            rest = (case.report, case.reasoning, boxes, case.sex, case.age, case.view, case.provenance)
            self._rest.append(msgspec.msgpack.encode(rest))

    def __len__(self) -> int:
        return len(self.patient_ids)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = operator.index(index)
        place += len(self) if place < 0 else 0
        identity = self.patient_ids[place], self.image_paths[place], self.origins[place]
        num_steps = len(self._labels) // len(self)
        own = slice(place * num_steps, (place + 1) * num_steps)
        labels, possible = tuple(self._labels[own]), tuple(self._uncertain[own])
        uncertain = possible if max(possible, default=NOT_ANNOTATED) >= 0 else ()
        if self._rest is None:
            return Case(*identity, "", labels, (), uncertain=uncertain)
        report, reasoning, boxes, sex, age, view, provenance = msgspec.msgpack.decode(self._rest[place])
        places = tuple(Box(*box) for box in boxes)
        made = tuple((name, value) for name, value in provenance)
        return Case(*identity, report, labels, tuple(reasoning), places, sex, age, view, made, uncertain)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CaseTable | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(own == each for own, each in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"CaseTable({len(self)} cases)"

    @property
    def labels(self) -> Int8[np.ndarray, "case step"]:
        """Certain labels, `chain.NOT_ANNOTATED` elsewhere; the table cannot grow while this view exists."""
        return self._by_case(self._labels)

    @property
    def uncertain(self) -> Int8[np.ndarray, "case step"]:
        """Labels of uncertain answers, `chain.NOT_ANNOTATED` elsewhere; a view, as `labels`."""
        return self._by_case(self._uncertain)

    def _by_case(self, column: "array.array[int]") -> Int8[np.ndarray, "case step"]:
        return np.frombuffer(column, np.int8).reshape(len(self), len(column) // max(len(self), 1))

    def with_labels(
        self, labels: Int[np.ndarray, "case step"], uncertain: Int[np.ndarray, "case step"] | None = None
    ) -> "CaseTable":
        """Return the same cases with other labels, and with other uncertain ones if given; the rest is shared."""
        changed = copy.copy(self)
        changed._labels = array.array("b", labels.astype(np.int8).tobytes())
        if uncertain is not None:
            changed._uncertain = array.array("b", uncertain.astype(np.int8).tobytes())
        return changed

    def count_patients(self, chosen: Bool[np.ndarray, " case"] | None = None) -> int:
        """Count the patients of the chosen cases (None: of all)."""
        halves = self.patients.halves
        first = find_first(halves if chosen is None else halves[chosen])
        return int((first == np.arange(len(first))).sum())

    def count_origins(self, chosen: Bool[np.ndarray, " case"]) -> dict[str, int]:
        """Count the chosen cases of each origin, the most frequent first."""
        names = self.origins.names
        counts = np.bincount(self.origins.numbers[chosen], minlength=len(names)).tolist()
        return {name: count for count, name in sorted(zip(counts, names, strict=True), reverse=True) if count}

    def count_boxes(self, chosen: Bool[np.ndarray, " case"]) -> tuple[int, int, int]:
        """Count the boxes of the chosen cases, the cases with boxes, and the cases whose boxes have one label."""
        num_boxes, num_labels = np.array(self._num_boxes)[chosen], np.array(self._num_box_labels)[chosen]
        return int(num_boxes.sum()), int((num_boxes > 0).sum()), int((num_labels == 1).sum())

    def count_answers(
        self, chosen: Bool[np.ndarray, " case"], *, step: int, num_answers: int
    ) -> Int64[np.ndarray, " answer"]:
        """Count each certain answer of a step among the chosen cases; other cases count nowhere."""
        labels = self.labels[chosen, step]
        return np.bincount(labels[labels >= 0], minlength=num_answers)

    def count_uncertain(self, chosen: Bool[np.ndarray, " case"]) -> Int64[np.ndarray, " step"]:
        """Count the chosen cases whose answer is uncertain, for each step."""
        return (self.uncertain[chosen] >= 0).sum(axis=0, dtype=np.int64)


def as_table(cases: Iterable[Case]) -> CaseTable:
    """Return the cases as a table, the same object if they are one."""
    return cases if isinstance(cases, CaseTable) else CaseTable(cases)
