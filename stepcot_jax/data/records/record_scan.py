"""Read the records of a data root once, for a run and for `data check`: cases in columns, and which take part.

Some checks need all records: the option set that most share, and images named twice.
"""

import array
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Bool

from stepcot_jax.chain import Chain, Step, fold
from stepcot_jax.data.columns import DigestColumn, find_first
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import CaseTable, SetAside
from stepcot_jax.data.records.record_reader import MissingImage, RecordReader
from stepcot_jax.host.errors import BadInput

_MOST_KEPT = 100_000_000
_COST_OF_STEPS = 2_000
_MOST_WORDINGS = 1000
_NUM_SHOWN = 80

Options = tuple[tuple[str, ...], ...]


class SetAsideSink(Protocol):
    """Collects records that take no part: a list, or counts of them."""

    def append(self, item: SetAside, /) -> None:
        """Add a record."""


@dataclasses.dataclass
class Scan:
    """The records of a data root. A place is a record's position among those that are valid by themselves.

    Attributes:
      root: folder that the image paths start from.
      file: the file with the records.
      table: the records that are valid by themselves.
      numbers: position in the file of each of them, from 0.
      set_aside: the records that take no part.
      good: which of `table` take part.
      chain: the chain of most records; None if no record is valid.
      reference: the first record with these options.
      questions: digest of each record's questions.
      num_wordings: for each step, the number of wordings of its question; 1000 stands for more.
      num_found: records whose image exists; None if not looked for.
      num_other_options: records whose options are not those of most.
      num_repeated: records whose image an earlier one has.
    """

    root: Path
    file: Path
    table: CaseTable
    numbers: Sequence[int]
    set_aside: SetAsideSink
    good: Bool[np.ndarray, " record"]
    chain: Chain | None = None
    reference: int = 0
    questions: DigestColumn = dataclasses.field(default_factory=DigestColumn)
    num_wordings: tuple[int, ...] = ()
    num_found: int | None = None
    num_missing: int = 0
    num_other_options: int = 0
    num_repeated: int = 0

    def drop(self, place: int, reason: str) -> None:
        """Set a valid record aside."""
        self.good[place] = False
        path, patient = self.table.image_paths[place], self.table.patient_ids[place]
        self.set_aside.append(SetAside(self.numbers[place], path, reason, patient))

    def count_other_wordings(self) -> int:
        """Count the good records whose questions differ from those of the first."""
        if not len(self.questions):
            return 0
        halves = self.questions.halves[self.good]
        return int((halves != halves[:1]).any(axis=1).sum())


def scan_records(
    root: Path,
    set_aside: SetAsideSink,
    *,
    step_names: Sequence[str],
    require_images: bool,
    with_texts: bool,
    visit: Callable[[int], None] | None = None,
) -> Scan:
    """Read `root/data.json` record by record.

    Letter prefixes, letter case and spacing make no difference between options.

    Args:
      set_aside: takes the records that take no part: first those invalid by themselves, then the others.
    """
    path = Path(root) / data_json.FILE_NAME
    reader = RecordReader(Path(root), step_names=step_names, require_images=require_images)
    kinds, images, numbers = _OptionKinds(path), DigestColumn(), array.array("q")
    scan = Scan(Path(root), path, CaseTable(with_texts=with_texts), numbers, set_aside, np.ones(0, bool))
    wordings: list[set[str]] = [set() for _ in step_names]
    last_steps: tuple[Step, ...] = ()
    for index, raw in enumerate(data_json.read_raw_records(path, visit=visit)):
        try:
            case, steps, real_path = reader.read(data_json.decode_record(raw))
        except BadInput as error:
            patient_id, image_path = data_json.identify(raw)
            set_aside.append(SetAside(index, image_path, str(error), patient_id))
            scan.num_missing += isinstance(error, MissingImage)
            continue
        kinds.append(steps, index)
        images.append(real_path)
        scan.table.append(case)
        numbers.append(index)
        scan.questions.append("\0".join([step.question for step in steps]))
        if steps != last_steps:
            last_steps = steps
            for seen, step in zip(wordings, steps, strict=True):
                if len(seen) < _MOST_WORDINGS:
                    seen.add(step.question)
    scan.good = np.ones(len(numbers), bool)
    scan.num_wordings = tuple(map(len, wordings))
    scan.num_found = len(numbers) if require_images else None
    if len(numbers):
        _compare(scan, kinds, images)
    return scan


class _OptionKinds:
    """The option sets of records, numbered in the order in which they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kinds = array.array("i")
        self._kind_of: dict[Options, int] = {}
        self._kind_of_folded: dict[Options, int] = {}
        self.steps: list[tuple[Step, ...]] = []
        self._num_kept = 0

    def append(self, steps: tuple[Step, ...], index: int) -> None:
        options = tuple([step.options for step in steps])
        kind = self._kind_of.get(options)
        if kind is None:
            self._num_kept += _COST_OF_STEPS + sum(len(option) for each in options for option in each)
            if self._num_kept > _MOST_KEPT:
                raise BadInput(
                    f"{self._path}: the first {index} records have {len(self._kind_of)} different lists of options; "
                    "all records must have the same"
                )
            kind = self._kind_of_folded.setdefault(_fold_options(steps), len(self.steps))
            self._kind_of[options] = kind
            if kind == len(self.steps):
                self.steps.append(steps)
        self.kinds.append(kind)


def _compare(scan: Scan, kinds: _OptionKinds, images: DigestColumn) -> None:
    """Set aside the records with other options than most, and those that repeat an image."""
    kind_of = np.array(kinds.kinds)
    usual = int(np.argmax(np.bincount(kind_of)))  # the first record's on a tie: kinds are numbered as they come
    agrees = kind_of == usual
    places = np.flatnonzero(agrees)
    original = np.arange(len(kind_of))
    original[places] = places[find_first(images.halves[places])]
    scan.chain, scan.reference = Chain(kinds.steps[usual]), int(places[0])
    for place in np.flatnonzero(~agrees | (original != np.arange(len(original)))).tolist():
        if agrees[place]:
            scan.num_repeated += 1
            known = int(original[place])
            reason = f"image_path: the image of record {scan.numbers[known]} ({_name(scan, known)}) is named again"
        else:
            scan.num_other_options += 1
            reason = _describe_difference(scan, kinds.steps[kind_of[place]], kinds.steps[usual])
        scan.drop(place, reason)


def _describe_difference(scan: Scan, steps: Sequence[Step], usual: Sequence[Step]) -> str:
    """Return which options of a record differ from those of most records."""
    pairs = enumerate(zip(_fold_options(steps), _fold_options(usual), strict=True))
    place = next(place for place, (found, expected) in pairs if found != expected)
    found, expected = ([option[:_NUM_SHOWN] for option in chain[place].options] for chain in (steps, usual))
    return (
        f"step {place + 1} ({steps[place].name}): options {found} differ from {expected} in record "
        f"{scan.numbers[scan.reference]} ({_name(scan, scan.reference)}); all records must have the same"
    )


def _fold_options(steps: Sequence[Step]) -> Options:
    return tuple(tuple(fold(option) for option in step.options) for step in steps)


def _name(scan: Scan, place: int) -> str:
    return f"image_path {scan.table.image_paths[place][:_NUM_SHOWN]!r}"
