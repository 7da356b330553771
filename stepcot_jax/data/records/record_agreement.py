"""What can be said of records only together: which have the options of most, and which repeat an image.

A run and a check ask the same code, and a check may ask it of a million records: what is kept of each is small.
"""

import array
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from stepcot_jax.chain import Step, fold
from stepcot_jax.data.columns import DigestColumn, find_first
from stepcot_jax.data.records.record_reader import ReadRecord
from stepcot_jax.host.errors import BadInput

_MOST_KEPT = 100_000_000
_COST_OF_STEPS = 2_000
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What becomes of records, by their place among those that were added.

    Attributes:
      reference: the first record with the options of most; the chain is its.
      agrees: whether a record has the options of most.
      original: of those that do, the first with the same image: a record's own place where it is this one.
    """

    reference: int
    agrees: Bool[np.ndarray, " record"]
    original: Int64[np.ndarray, " record"]

    @property
    def good(self) -> Bool[np.ndarray, " record"]:
        """Which records take part."""
        return self.agrees & (self.original == np.arange(len(self.original)))


class Agreement:
    """Takes note of records that are fine by themselves, and judges them when all have been seen.

    Letter prefixes, letter case and spacing make no difference between options.

    Args:
      path: the file of the records, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._images = DigestColumn()
        self._kinds = array.array("i")
        self._kind_of: dict[tuple[tuple[str, ...], ...], int] = {}
        self._kind_of_folded: dict[tuple[tuple[str, ...], ...], int] = {}
        self._steps_of_kind: list[tuple[Step, ...]] = []
        self._num_kept = 0

    def add(self, item: ReadRecord) -> None:
        """Takes note of a record.

        Raises:
          BadInput: the records so far have so many different options that they cannot be one collection.
        """
        options = tuple([step.options for step in item.steps])
        kind = self._kind_of.get(options)
        if kind is None:
            kind = self._add_kind(item, options)
        self._kinds.append(kind)
        self._images.append(item.real_path)

    def _add_kind(self, item: ReadRecord, options: tuple[tuple[str, ...], ...]) -> int:
        self._num_kept += _COST_OF_STEPS + sum(len(option) for each in options for option in each)
        if self._num_kept > _MOST_KEPT:
            raise BadInput(
                f"{self._path}: found {len(self._kind_of)} different lists of options in the first {item.record} "
                "records, accepted are the same options in every record"
            )
        folded = tuple(tuple(fold(option) for option in each) for each in options)
        if folded not in self._kind_of_folded:
            self._kind_of_folded[folded] = len(self._steps_of_kind)
            self._steps_of_kind.append(item.steps)
        self._kind_of[options] = self._kind_of_folded[folded]
        return self._kind_of[options]

    def steps(self, place: int) -> tuple[Step, ...]:
        """The steps of a record, as the first record with these options writes them."""
        return self._steps_of_kind[self._kinds[place]]

    def judge(self) -> Verdicts:
        """The verdicts on all records, of which there must be at least one."""
        kinds = np.array(self._kinds)
        counts = np.bincount(kinds)
        usual = int(np.argmax(counts))  # the first record's, if as many have others: kinds are counted as they come
        agrees = kinds == usual
        places = np.flatnonzero(agrees)
        original = np.arange(len(kinds))
        original[places] = places[find_first(self._images.halves[places])]
        return Verdicts(int(places[0]), agrees, original)


def describe_disagreement(
    steps: Sequence[Step], expected_steps: Sequence[Step], *, record: int, image_path: str
) -> str:
    """Why a record's options are not acceptable.

    Args:
      steps: the record's.
      expected_steps: those of the reference.
      record: number of the reference.
      image_path: of the reference.
    """
    for number, (found, expected) in enumerate(zip(steps, expected_steps, strict=True), start=1):
        if [fold(option) for option in found.options] != [fold(option) for option in expected.options]:
            return (
                f"step {number} ({found.name}): its options differ from those of record {record} "
                f"(image_path {image_path[:_NUM_SHOWN]!r}): found {_shown(found.options)}, "
                f"there {_shown(expected.options)}; accepted are the same options in every record"
            )
    raise AssertionError("records with the same options were taken to disagree")


def describe_repetition(*, record: int, known_record: int, known_image_path: str) -> str:
    """Why a record whose image an earlier one has is not acceptable."""
    return (
        f"found the image of record {known_record} (image_path {known_image_path[:_NUM_SHOWN]!r}) again, "
        f"accepted is one record an image - at `$[{record}].image_path`"
    )


def _shown(options: Sequence[str]) -> list[str]:
    return [option[:_NUM_SHOWN] for option in options]
