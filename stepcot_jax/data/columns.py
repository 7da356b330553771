"""Compact columns for a million records: `RecordTable`, and texts, digests and categories by position."""

import array
import bisect
import copy
import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec
import numpy as np
from jaxtyping import Bool, Int, Int8, Int64, UInt64

from stepcot_jax.box import Box
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.record import Record

OTHER_ORIGINS = "(further origins)"
_DIGEST_BYTES = 16
_MAX_NAMES, _MAX_CHARS = 1000, 300


def _encode(text: str) -> bytes:
    # A lone surrogate is not valid UTF-8, but a path may contain one.
    return text.encode("utf-8", "surrogatepass")


class TextColumn:
    """Texts by position; a text needs its UTF-8 bytes and 8 more."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._content = bytearray()
        self._ends = array.array("q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Append a text."""
        self._content += _encode(text)
        self._ends.append(len(self._content))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._content[self._ends[index] : self._ends[index + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


class DigestColumn:
    """Digests of 16 bytes by position, for finding equal contents."""

    def __init__(self, contents: Iterable[str | bytes] = ()) -> None:
        self._content = bytearray()
        for content in contents:
            self.append(content)

    def append(self, content: str | bytes) -> None:
        """Append the BLAKE2b digest of a content."""
        content = _encode(content) if isinstance(content, str) else content
        self._content += hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()

    def __len__(self) -> int:
        return len(self._content) // _DIGEST_BYTES

    @property
    def halves(self) -> UInt64[np.ndarray, "item 2"]:
        """Each digest as two numbers; the column cannot grow while this view exists."""
        return np.frombuffer(self._content, np.uint64).reshape(-1, 2)


class CategoryColumn:
    """Repeated texts by position: a number per item, and every distinct text once."""

    def __init__(self, *, other: str | None = None) -> None:
        self.names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._numbers = array.array("i")
        self._other = other

    def append(self, name: str) -> None:
        """Append a text."""
        if self._other is not None:
            name = name[:_MAX_CHARS]
            if name not in self._number_of and len(self.names) >= _MAX_NAMES:
                name = self._other
        number = self._number_of.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        self._numbers.append(number)

    def __getitem__(self, index: int) -> str:
        return self.names[self._numbers[index]]

    @property
    def numbers(self) -> Int64[np.ndarray, " item"]:
        """Position of each item's text in `names`."""
        return np.array(self._numbers, np.int64)


class TextIndex:
    """Finds the positions of a text in a column; needs 16 bytes per item, a tenth of a dict."""

    def __init__(
        self, column: TextColumn, indices: Iterable[int], *, key: Callable[[str], str | None] = lambda text: text
    ) -> None:
        self._column, self._key = column, key
        digests, kept = array.array("Q"), array.array("q")
        for index in indices:
            text = key(column[index])
            if text is not None:
                digests.append(_short_digest(text))
                kept.append(index)
        order = np.argsort(digests, kind="stable")
        # Python arrays: looking up single numbers in NumPy arrays is slow.
        self._digests = array.array("Q", np.array(digests)[order].tobytes())
        self._indices = array.array("q", np.array(kept)[order].tobytes())

    def find(self, text: str) -> list[int]:
        """Return the positions of the texts whose key is `text`, in the order indexed."""
        digest = _short_digest(text)
        begin = bisect.bisect_left(self._digests, digest)
        end = bisect.bisect_right(self._digests, digest, lo=begin)
        return [index for index in self._indices[begin:end] if self._key(self._column[index]) == text]


def _short_digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(_encode(text), digest_size=8).digest(), "little")


def find_first(halves: UInt64[np.ndarray, "item 2"]) -> Int64[np.ndarray, " item"]:
    """Return for each item the position of the first equal item, which may be the item itself."""
    order = np.lexsort(halves.T)  # stable: the first of equal items comes first
    differs = (halves[order] != np.roll(halves[order], 1, axis=0)).any(axis=1)
    first = np.empty_like(order)
    first[order] = order[np.maximum.accumulate(np.where(differs, np.arange(len(order)), 0))]
    return first


_Numbers = tuple[int | float, ...]  # 54 stays 54


class _Rest(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a record that a table has no column for."""

    report: str
    reasoning: tuple[str, ...]
    boxes: tuple[tuple[str, _Numbers, str, str, None, _Numbers | None], ...]
    sex: str
    age: int | float | None
    view: str
    provenance: dict[str, str]


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Rest)


class RecordTable(Sequence[Record]):
    """The pictures and answers of records as columns; indexing builds one `Record`, without a question."""

    def __init__(self, cases: Iterable[Record] = (), *, with_texts: bool = True) -> None:
        self.patient_ids, self.image_paths = TextColumn(), TextColumn()
        self.patients = DigestColumn()
        self.origins = CategoryColumn(other=None if with_texts else OTHER_ORIGINS)
        self.splits = CategoryColumn()
        self.has_one_spelling = False  # whether each patient is known to be written in one way
        self._labels, self._uncertain = array.array("b"), array.array("b")
        self._num_boxes, self._num_box_labels = array.array("i"), array.array("i")
        self._rest: list[bytes] | None = [] if with_texts else None
        for case in cases:
            self.append(case)

    def append(self, case: Record) -> None:
        """Append a case."""
        self.has_one_spelling = False
        self.patient_ids.append(case.patient)
        self.image_paths.append(case.image)
        self.patients.append(case.patient)
        self.origins.append(case.origin)
        self.splits.append(case.split)
        self._labels.extend(case.answers)
        self._uncertain.extend(case.uncertain or (NOT_ANNOTATED,) * len(case.answers))
        self._num_boxes.append(len(case.boxes))
        self._num_box_labels.append(len({box.label for box in case.boxes}) if case.boxes else 0)
        if self._rest is not None:
            boxes = tuple([msgspec.structs.astuple(box) for box in case.boxes])
            rest = _Rest(case.report, case.reasoning, boxes, case.sex, case.age, case.view, case.provenance)
            self._rest.append(_ENCODER.encode(rest))

    def __len__(self) -> int:
        return len(self.patient_ids)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = operator.index(index)
        number += len(self) if number < 0 else 0
        patient = self.patient_ids[number]  # or IndexError
        num_steps = len(self._labels) // len(self)
        row = slice(number * num_steps, (number + 1) * num_steps)
        possible = tuple(self._uncertain[row])
        columns: dict[str, Any] = {
            "patient": patient,
            "image": self.image_paths[number],
            "origin": self.origins[number],
            "split": self.splits[number],
            "answers": tuple(self._labels[row]),
            "uncertain": possible if max(possible, default=NOT_ANNOTATED) >= 0 else (),
        }
        if self._rest is None:
            return Record(**columns)
        rest = msgspec.structs.asdict(_DECODER.decode(self._rest[number]))
        return Record(**columns, **rest | {"boxes": tuple([Box(*box) for box in rest["boxes"]])})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordTable | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"RecordTable({len(self)} cases)"

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
    ) -> "RecordTable":
        """Return the same cases with other labels, and with other uncertain ones if given; the rest is shared."""
        changed = copy.copy(self)
        changed._labels = array.array("b", labels.astype(np.int8).tobytes())
        if uncertain is not None:
            changed._uncertain = array.array("b", uncertain.astype(np.int8).tobytes())
        return changed

    def with_patients(self, names: Mapping[str, str]) -> "RecordTable":
        """Return the same cases, with other names for some patients; the rest is shared."""
        changed = copy.copy(self)
        changed.patient_ids = TextColumn(names.get(patient, patient) for patient in self.patient_ids)
        changed.patients = DigestColumn(changed.patient_ids)
        return changed

    def without_answers(self, indices: Iterable[int]) -> "RecordTable":
        """Return the same cases, some of them without answers, reports, reasons and boxes; the rest is shared."""
        hidden = list(indices)
        labels, uncertain = self.labels.copy(), self.uncertain.copy()
        labels[hidden] = uncertain[hidden] = NOT_ANNOTATED
        changed = self.with_labels(labels, uncertain)
        changed._num_boxes, changed._num_box_labels = self._num_boxes[:], self._num_box_labels[:]
        changed._rest = None if self._rest is None else list(self._rest)
        for index in hidden:
            changed._num_boxes[index] = changed._num_box_labels[index] = 0
            if changed._rest is not None:
                rest = _DECODER.decode(changed._rest[index])
                nothing = msgspec.structs.replace(rest, report="", reasoning=("",) * len(rest.reasoning), boxes=())
                changed._rest[index] = _ENCODER.encode(nothing)
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


def as_table(cases: Iterable[Record]) -> RecordTable:
    """Return the cases as a table, the same object if they are one."""
    return cases if isinstance(cases, RecordTable) else RecordTable(cases)
