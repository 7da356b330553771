"""Patients that must not be parted, with what they count as when splits are made."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.records.cases import Case
from stepcot_jax.host.errors import BadInput

Stratum = tuple[int, str]
"""Diagnosis (the last step's label) and origin."""

_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Patients that stay together: one, or several whose images are nearly the same.

    Attributes:
      patients: their identifiers, ascending; at least one.
      cases: indices of all their images, ascending.
      stratum: the rarest diagnosis among the images, and the rarest origin.
    """

    patients: tuple[str, ...]
    cases: tuple[int, ...]
    stratum: Stratum

    @property
    def num_images(self) -> int:
        """Number of images."""
        return len(self.cases)


def form_groups(cases: Sequence[Case], joined: Iterable[Sequence[int]] = ()) -> list[Group]:
    """Groups of patients, each patient in one of them.

    Args:
      cases: the cases, in any order: the same cases give the same groups.
      joined: pairs of indices into `cases` whose patients stay together, directly or through others.

    Raises:
      BadInput: a pair names a case that is not there.
    """
    images = collections.defaultdict(list)
    for index, case in enumerate(cases):
        images[case.patient_id].append(index)
    members = _join_patients(sorted(images), cases, joined)
    indices = [tuple(sorted(index for patient in patients for index in images[patient])) for patients in members]
    diagnoses = _choose_rarest([{cases[index].labels[-1] for index in found} for found in indices])
    origins = _choose_rarest([{cases[index].origin for index in found} for found in indices])
    return [Group(*parts) for parts in zip(members, indices, zip(diagnoses, origins, strict=True), strict=True)]


def shuffle_groups(groups: Iterable[Group], *, seed: int) -> list[Group]:
    """The groups with most images first and in an order of the seed's among equals.

    The order is that of a hash of each group, which unlike a shuffle depends neither on the others nor on a library's
    generator.
    """

    def rank(group: Group) -> bytes:
        return hashlib.sha256(f"{seed}:{group.patients[0]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(groups, key=lambda group: (-group.num_images, rank(group)))


def collect_strata(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups of each diagnosis and origin in the order given: the rarest diagnosis first, its rarest origin first."""
    strata: dict[Stratum, list[Group]] = collections.defaultdict(list)
    num_groups: collections.Counter[int] = collections.Counter()
    for group in groups:
        strata[group.stratum].append(group)
        num_groups[group.stratum[0]] += 1
    order = sorted(strata, key=lambda key: (num_groups[key[0]], key[0], len(strata[key]), key[1]))
    return [strata[key] for key in order]


def check_largest(groups: Sequence[Group], cases: Sequence[Case], *, smallest_share: float) -> None:
    """Refuses patients that were joined to a group which the smallest split could not hold.

    Args:
      groups: the groups.
      cases: what they index.
      smallest_share: the smallest split's share of the cases.

    Raises:
      BadInput: a group of several patients has more images than the share; says how many, and the way on.
    """
    largest = max(
        (group for group in groups if len(group.patients) > 1), key=lambda group: group.num_images, default=None
    )
    most = smallest_share * len(cases)
    if largest is not None and largest.num_images > most:
        raise BadInput(
            f"near-duplicates: found {len(largest.patients)} patients with {largest.num_images} images of {len(cases)} "
            f"joined to one group (one is {cases[largest.cases[0]].image_path[:_NUM_SHOWN]!r}), accepted are at most "
            f"{int(most)} images a group, the smallest split's share: a smaller radius joins fewer, 0 none"
        )


def _join_patients(
    patients: Sequence[str], cases: Sequence[Case], joined: Iterable[Sequence[int]]
) -> list[tuple[str, ...]]:
    """Connected components of the patients, each ascending, in the order of their first."""
    root = {patient: patient for patient in patients}

    def find(patient: str) -> str:
        while root[patient] != patient:
            root[patient] = patient = root[root[patient]]
        return patient

    pairs = joined.tolist() if isinstance(joined, np.ndarray) else joined
    for one, other in pairs:
        if not (0 <= one < len(cases) and 0 <= other < len(cases)):
            raise BadInput(f"joined cases: found the pair ({one}, {other}), accepted are indices below {len(cases)}")
        first, second = sorted((find(cases[one].patient_id), find(cases[other].patient_id)))
        root[second] = first
    members = collections.defaultdict(list)
    for patient in patients:
        members[find(patient)].append(patient)
    return [tuple(found) for found in members.values()]


def _choose_rarest(values: Sequence[set]) -> list:
    """Of each group's values the one that fewest groups have; not annotated only where there is no other."""
    num_groups: Mapping = collections.Counter(value for found in values for value in found)
    return [min(found, key=lambda value: (value == NOT_ANNOTATED, num_groups[value], value)) for found in values]
