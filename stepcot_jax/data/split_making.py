"""Splits for data that come without: disjoint by patient, in proportion by diagnosis, the same for a seed."""

import collections
import hashlib
import math
from collections.abc import Mapping, Sequence

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.cases import Case
from stepcot_jax.data.split_checks import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.errors import BadInput

PUBLISHED_FRACTIONS = (0.7, 0.15, 0.15)


def make_splits(
    cases: Sequence[Case], *, seed: int, fractions: tuple[float, float, float] = PUBLISHED_FRACTIONS
) -> Splits:
    """Splits cases by patient, with each diagnosis spread over the splits in proportion.

    A patient belongs to the rarest diagnosis among their images (the last step's label; not annotated is a
    diagnosis of its own where the patient has no other). Each split gets at least one patient of every
    diagnosis that has as many patients as there are splits.

    Args:
      cases: the cases, in any order: the same cases give the same splits.
      seed: any integer.
      fractions: share of the cases for train, val and test; each > 0, sum 1.

    Returns:
      Every case in exactly one split.

    Raises:
      BadInput: the fractions cannot be used, or there are fewer patients than splits.
    """
    if len(fractions) != 3 or not all(share > 0 for share in fractions) or not math.isclose(sum(fractions), 1.0):
        raise BadInput(f"split fractions: found {fractions}, accepted are three numbers above 0 with sum 1")
    images = collections.defaultdict(list)
    for index, case in enumerate(cases):
        images[case.patient_id].append(index)
    if len(images) < len(fractions):
        raise BadInput(f"found {len(images)} patients, accepted are at least {len(fractions)} to fill the splits")
    num_images = {patient: len(indices) for patient, indices in images.items()}
    order = sorted(images, key=lambda patient: (-num_images[patient], _shuffled_rank(patient, seed=seed)))
    dealer = _Dealer(num_images, fractions)
    labels = {patient: {cases[index].labels[-1] for index in images[patient]} for patient in order}
    for stratum in _group_by_diagnosis(labels):
        dealer.deal(stratum)
    dealer.fill_empty(order)
    members: list[list[int]] = [[] for _ in SPLIT_NAMES]
    for patient, split in dealer.split_of.items():
        members[split].extend(images[patient])
    splits = Splits(*(tuple(sorted(indices)) for indices in members))
    check_splits(splits, cases, source=f"splits made with seed {seed}")
    return splits


class _Dealer:
    """Deals patients to the splits; `missing` holds how many images each split is short of its share."""

    def __init__(self, num_images: Mapping[str, int], fractions: Sequence[float]) -> None:
        self._num_images = num_images
        self._fractions = fractions
        self.missing = [0.0] * len(fractions)
        self.split_of: dict[str, int] = {}

    def deal(self, stratum: Sequence[str]) -> None:
        """Deals one diagnosis, each patient to the split that is shortest; large patients first fit best.

        What rounding leaves over is carried to the next diagnosis, so that the splits' sizes come out right.
        """
        total = sum(self._num_images[patient] for patient in stratum)
        self.missing = [short + share * total for short, share in zip(self.missing, self._fractions, strict=True)]
        for patient in stratum:
            shortest = max(range(len(self.missing)), key=self.missing.__getitem__)
            self.split_of[patient] = shortest
            self.missing[shortest] -= self._num_images[patient]
        self.fill_empty(stratum)

    def fill_empty(self, patients: Sequence[str]) -> None:
        """Gives each split one of the patients, if there are enough; takes the last of the best provided."""
        held: list[list[str]] = [[] for _ in self._fractions]
        for patient in patients:
            held[self.split_of[patient]].append(patient)
        if len(patients) < len(held):
            return
        for split in range(len(held)):
            if not held[split]:
                donor = max(range(len(held)), key=lambda other: len(held[other]))
                patient = held[donor].pop()
                held[split].append(patient)
                self.split_of[patient] = split
                self.missing[donor] += self._num_images[patient]
                self.missing[split] -= self._num_images[patient]


def _group_by_diagnosis(labels: Mapping[str, set[int]]) -> list[list[str]]:
    """Patients of each diagnosis in the order given, the rarest diagnosis first.

    Args:
      labels: the diagnoses of each patient.
    """
    num_patients = collections.Counter(label for found in labels.values() for label in found)
    strata = collections.defaultdict(list)
    for patient, found in labels.items():
        rarest = min(found, key=lambda label: (label == NOT_ANNOTATED, num_patients[label], label))
        strata[rarest].append(patient)
    return [strata[label] for label in sorted(strata, key=lambda label: (len(strata[label]), label))]


def _shuffled_rank(patient: str, *, seed: int) -> bytes:
    # A hash of each patient, unlike a shuffle, depends neither on the others nor on a library's generator.
    return hashlib.sha256(f"{seed}:{patient}".encode("utf-8", "surrogatepass")).digest()
