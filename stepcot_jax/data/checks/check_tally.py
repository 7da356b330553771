"""What a check keeps of each record: its labels and identifiers in columns, and nothing of its texts."""

import array
import collections
import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int8

from stepcot_jax.chain import Step
from stepcot_jax.data.columns import DigestColumn, TextColumn, find_first
from stepcot_jax.data.records.cases import Case

OTHER_ORIGINS = "(further origins)"

_MOST_ORIGINS = 1000
_MOST_WORDINGS = 1000
_MOST_KINDS = 100
_NUM_EXAMPLES = 3
_NUM_SHOWN = 300
_PARTICULAR = re.compile(
    r"^(?:row \d+|\S*[\d/]\S*)(?=: )"  # the place that a reason begins with
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # what was found
    r"|(?<=\$\[)\d+(?=\])|(?<=of record )\d+|\d+ x \d+|(?<=starts with bytes )[0-9a-f ]+(?=;)"
)


@dataclasses.dataclass
class Reason:
    """Records that are set aside for the same reason.

    Attributes:
      kind: the reason with "…" for what is particular to each record.
      count: how many they are.
      examples: the first few: record, image path, and the reason in full.
    """

    kind: str
    count: int = 0
    examples: list[tuple[int, str, str]] = dataclasses.field(default_factory=list)


class Reasons:
    """Records that are set aside, by reason; remembers who they are, so that a split may name them."""

    def __init__(self) -> None:
        self._reasons: dict[str, Reason] = {}
        self.count = 0
        self.image_paths = TextColumn()
        self.patient_ids = TextColumn()

    def add(self, reason: str, *, record: int, image_path: str, patient_id: str) -> None:
        """Takes note of a record and why it takes no part."""
        kind = _PARTICULAR.sub("…", reason)[:_NUM_SHOWN]
        if kind not in self._reasons and len(self._reasons) >= _MOST_KINDS:
            kind = "further reasons"
        found = self._reasons.setdefault(kind, Reason(kind))
        found.count += 1
        if len(found.examples) < _NUM_EXAMPLES:
            found.examples.append((record, image_path[:_NUM_SHOWN], reason[:_NUM_SHOWN]))
        self.count += 1
        self.image_paths.append(image_path)
        self.patient_ids.append(patient_id)

    def listed(self) -> list[Reason]:
        """The reasons, the most frequent first."""
        return sorted(self._reasons.values(), key=lambda reason: -reason.count)


class Tally:
    """Readable records in columns; a place is the number of a record among them.

    Attributes:
      num_wordings: for each step, how many different wordings its question has (1000 stands for more).
    """

    def __init__(self) -> None:
        self.records = array.array("q")
        self.image_paths = TextColumn()
        self.patient_ids = TextColumn()
        self.patients = DigestColumn()
        self.questions = DigestColumn()
        self._labels = array.array("b")
        self._origins = array.array("i")
        self._origin_names: dict[str, int] = {}
        self._names_of_origins: list[str] = []
        self._num_boxes = array.array("i")
        self._num_box_labels = array.array("i")
        self._wordings: list[set[str]] = []
        self._last_questions: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def add(self, case: Case, steps: Sequence[Step], *, record: int) -> None:
        """Takes note of a record.

        Args:
          case: what it says.
          steps: its chain.
          record: its position in the file, from 0.
        """
        self.records.append(record)
        self.image_paths.append(case.image_path)
        self.patient_ids.append(case.patient_id)
        self.patients.append(case.patient_id)
        self._labels.extend(case.labels)
        self._origins.append(self._number_origin(case.origin))
        self._num_boxes.append(len(case.boxes))
        self._num_box_labels.append(len({box.label for box in case.boxes}) if case.boxes else 0)
        self._take_questions(tuple([step.question for step in steps]))

    def _number_origin(self, origin: str) -> int:
        name = origin[:_NUM_SHOWN]
        if name not in self._origin_names and len(self._origin_names) >= _MOST_ORIGINS:
            name = OTHER_ORIGINS
        if name not in self._origin_names:
            self._origin_names[name] = len(self._origin_names)
            self._names_of_origins.append(name)
        return self._origin_names[name]

    def _take_questions(self, questions: tuple[str, ...]) -> None:
        self.questions.append("\0".join(questions))
        if questions == self._last_questions:
            return
        self._last_questions = questions
        self._wordings = self._wordings or [set() for _ in questions]
        for wordings, question in zip(self._wordings, questions, strict=True):
            if len(wordings) < _MOST_WORDINGS:
                wordings.add(question[:_NUM_SHOWN])

    def case(self, place: int) -> Case:
        """What is kept of a record; without report, reasoning and boxes."""
        labels = tuple(self.labels[place].tolist())
        origin = self._names_of_origins[self._origins[place]]
        return Case(self.patient_ids[place], self.image_paths[place], origin, "", labels, ())

    @property
    def num_wordings(self) -> list[int]:
        """For each step, how many wordings of its question were seen; 1000 stands for more."""
        return [len(wordings) for wordings in self._wordings]

    @property
    def labels(self) -> Int8[np.ndarray, "record step"]:
        """Labels of all readable records."""
        return np.frombuffer(self._labels, np.int8).reshape(len(self), -1)

    def count_other_wordings(self, good: Bool[np.ndarray, " record"]) -> int:
        """Good records that word a question differently than the first of them."""
        halves = self.questions.halves[good]
        return int((halves != halves[:1]).any(axis=1).sum())

    def count_patients(self, chosen: Bool[np.ndarray, " record"]) -> int:
        """Patients of the chosen records."""
        first = find_first(self.patients.halves[chosen])
        return int((first == np.arange(len(first))).sum())

    def count_origins(self, chosen: Bool[np.ndarray, " record"]) -> dict[str, int]:
        """Chosen records of each origin, the most frequent first."""
        names = self._names_of_origins
        counts = np.bincount(np.array(self._origins)[chosen], minlength=len(names)).tolist()
        return {name: count for count, name in sorted(zip(counts, names, strict=True), reverse=True) if count}

    def count_boxes(self, chosen: Bool[np.ndarray, " record"]) -> tuple[int, int, int]:
        """Boxes of the chosen records, records with boxes, and records with exactly one distinct label of boxes."""
        num_boxes, num_labels = np.array(self._num_boxes)[chosen], np.array(self._num_box_labels)[chosen]
        return int(num_boxes.sum()), int((num_boxes > 0).sum()), int((num_labels == 1).sum())

    def count_answers(self, chosen: Bool[np.ndarray, " record"], *, step: int, num_answers: int) -> list[int]:
        """How often each answer of a step is given in the chosen records."""
        labels = self.labels[chosen, step]
        found: collections.Counter[int] = collections.Counter()
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            found[int(label)] = int(count)
        return [found[label] for label in range(num_answers)]
