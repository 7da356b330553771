"""Make splits for data without split tables: disjoint by patient, stratified by diagnosis and origin."""

import collections
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.identities import join_patients_of
from stepcot_jax.data.record_table import RecordTable, as_table
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

PUBLISHED_FRACTIONS = (0.7, 0.15, 0.15)
Stratum = tuple[int, str]  # diagnosis (the last step's label) and origin
Level = tuple[str, int | str]  # what images are counted by: all, a diagnosis or an origin, with its value
_EPSILON = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Patients that stay together: one, or several with near-duplicate images."""

    patients: tuple[str, ...]  # their identifiers, ascending; at least one
    cases: tuple[int, ...]  # indices of all their images, ascending
    stratum: Stratum  # the rarest diagnosis among the images, and the rarest origin


def make_splits(
    cases: Iterable[Record],
    *,
    seed: int,
    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS,
    joined: Any = (),
    chosen: Bool[np.ndarray, " case"] | None = None,
) -> Splits:
    """Split cases by patient, with each diagnosis of each origin spread over the splits in proportion.

    A patient counts for the rarest diagnosis among their images (the last step's label; "not annotated" only if the
    patient has no other) and for their rarest origin. In a stratum, that is a diagnosis of an origin, each split is off
    its share by less than the images of the stratum's largest patient. Patients that cannot be dealt evenly, hence all
    of a rare stratum, go to the splits that lack most images of the diagnosis, of the origin and in total. Each split
    gets at least one patient of every diagnosis that has as many patients as there are splits, even at the cost of a
    rare stratum's share.
    """
    if len(fractions) != 3 or not all(share > 0 for share in fractions) or not math.isclose(sum(fractions), 1.0):
        raise BadInput(f"split fractions: {fractions} are not three numbers above 0 with sum 1")
    table = as_table(cases)
    splits = Splits(*deal(table, seed=seed, fractions=fractions, joined=joined, chosen=chosen))
    check_splits(splits, table, source=f"splits made with seed {seed}")
    return splits


def deal(
    table: RecordTable,
    *,
    seed: int,
    fractions: Sequence[float],
    joined: Any,
    chosen: Bool[np.ndarray, " case"] | None = None,
) -> list[tuple[int, ...]]:
    """Deal the patients to parts, stratified as in `make_splits`."""
    groups = form_groups(table, joined, chosen=chosen)
    _check_joined(groups, table, fractions)
    if len(groups) < len(fractions):
        raise BadInput(f"{len(groups)} patients cannot fill {len(fractions)} splits")
    order = shuffle_groups(groups, seed=seed)
    dealer = _Dealer(table, fractions)
    for _, strata in itertools.groupby(_collect_strata(order), key=lambda stratum: stratum[0].stratum[0]):
        of_diagnosis = list(strata)
        for stratum in of_diagnosis:
            dealer.deal(stratum)
        dealer.fill_empty([group for stratum in of_diagnosis for group in stratum])
    dealer.fill_empty(order)
    members: list[list[int]] = [[] for _ in fractions]
    for group in groups:
        members[dealer.split_of[group.patients]] += group.cases
    return [tuple(sorted(indices)) for indices in members]


def _check_joined(groups: Sequence[Group], table: RecordTable, fractions: Sequence[float]) -> None:
    joined = [group for group in groups if len(group.patients) > 1]
    largest = max(joined, key=lambda group: len(group.cases), default=None)
    num_cases = sum(len(group.cases) for group in groups)
    if largest is not None and len(largest.cases) > (most := min(fractions) * num_cases):
        raise BadInput(
            f"near-duplicates join {len(largest.patients)} patients with {len(largest.cases)} images of {num_cases} "
            f"to one group (one is {table.image_paths[largest.cases[0]][:80]!r}); the smallest split holds "
            f"{int(most)}: a smaller radius joins fewer, 0 none"
        )


def form_groups(
    cases: Iterable[Record], joined: Any = (), *, chosen: Bool[np.ndarray, " case"] | None = None
) -> list[Group]:
    """Return the groups of patients; arguments and errors are those of `make_splits`."""
    table, _ = join_patients_of(as_table(cases))
    diagnosis_of = table.labels[:, -1].tolist() if len(table) else []
    images = collections.defaultdict(list)
    for index in range(len(table)) if chosen is None else np.flatnonzero(chosen).tolist():
        images[table.patient_ids[index]].append(index)
    members = join_patients(sorted(images), images, joined, num_cases=len(table))
    indices = [tuple(sorted(index for patient in patients for index in images[patient])) for patients in members]
    diagnoses = _choose_rarest([{diagnosis_of[index] for index in group} for group in indices])
    origins = _choose_rarest([{table[index].origin for index in group} for group in indices])
    strata = zip(diagnoses, origins, strict=True)
    return [Group(*parts) for parts in zip(members, indices, strata, strict=True)]


def join_patients(
    patients: Sequence[str], images: Mapping[str, Sequence[int]], joined: Any, *, num_cases: int
) -> list[tuple[str, ...]]:
    """Return the patients of each group that pairs of their images join, directly or through others."""
    pairs = np.asarray(joined, np.int64).reshape(-1, 2)
    if not len(pairs):
        return [(patient,) for patient in patients]
    from scipy.sparse import coo_array, csgraph  # slow to import, and rarely needed

    patient_of = np.zeros(num_cases, np.int64)
    for number, patient in enumerate(patients):
        patient_of[images[patient]] = number
    rows, columns = patient_of[pairs].T
    graph = coo_array((np.ones(len(pairs), bool), (rows, columns)), shape=(len(patients), len(patients)))
    members = collections.defaultdict(list)
    for patient, component in zip(patients, csgraph.connected_components(graph, directed=False)[1], strict=True):
        members[component].append(patient)
    return [tuple(group) for group in members.values()]


def _choose_rarest(values: Sequence[set]) -> list:
    """Return each group's rarest value, which fewest groups have; "not annotated" only if there is no other."""
    num_groups: Mapping = collections.Counter(value for group in values for value in group)
    return [min(group, key=lambda value: (value == NOT_ANNOTATED, num_groups[value], value)) for group in values]


def shuffle_groups(groups: Iterable[Group], *, seed: int) -> list[Group]:
    """Hash-based shuffle, independent of NumPy's generators; groups with more images come first."""

    def rank(group: Group) -> bytes:
        return hashlib.sha256(f"{seed}:{group.patients[0]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(groups, key=lambda group: (-len(group.cases), rank(group)))


def _collect_strata(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each diagnosis and origin: the rarest diagnosis first, its rarest origin first."""
    strata: dict[Stratum, list[Group]] = collections.defaultdict(list)
    for group in groups:
        strata[group.stratum].append(group)
    num_groups = collections.Counter(group.stratum[0] for group in groups)
    order = sorted(strata, key=lambda key: (num_groups[key[0]], key[0], len(strata[key]), key[1]))
    return [strata[key] for key in order]


class _Dealer:
    """Deals groups to the splits and tracks how many images each split is short of its share, at every level."""

    def __init__(self, table: RecordTable, fractions: Sequence[float]) -> None:
        self._diagnoses, self._origins = table.labels[:, -1].tolist(), [case.origin for case in table]
        self._fractions = fractions
        self._short: dict[Level, list[float]] = collections.defaultdict(lambda: [0.0] * len(fractions))
        self.split_of: dict[tuple[str, ...], int] = {}

    def deal(self, stratum: Sequence[Group]) -> None:
        """Deal one stratum, size by size, so that large groups do not all go to the largest split."""
        lacking: list[float] = [0.0] * len(self._fractions)
        for num_images, same_size in itertools.groupby(stratum, key=lambda group: len(group.cases)):
            groups = list(same_size)
            lacking = [
                short + share * num_images * len(groups) for short, share in zip(lacking, self._fractions, strict=True)
            ]
            counts = [self._count_levels(group) for group in groups]
            totals: collections.Counter[Level] = collections.Counter()
            for levels in counts:
                totals.update(dict(levels))
            for level, total in totals.items():
                short = self._short[level]
                short[:] = [value + share * total for value, share in zip(short, self._fractions, strict=True)]
            for group, levels in zip(groups, counts, strict=True):
                rows = [(self._short[level], number) for level, number in levels]
                split = _choose(rows, lacking, num_images=num_images)
                self.split_of[group.patients] = split
                lacking[split] -= num_images
                for short, number in rows:
                    short[split] -= number

    def _count_levels(self, group: Group) -> list[tuple[Level, int]]:
        """Count the group's images at each level, sorted since sums of floats depend on the order."""
        counts: collections.Counter[Level] = collections.Counter({("all", ""): len(group.cases)})
        counts.update(("diagnosis", self._diagnoses[index]) for index in group.cases)
        counts.update(("origin", self._origins[index]) for index in group.cases)
        return sorted(counts.items())

    def fill_empty(self, groups: Sequence[Group]) -> None:
        """Move a group to each split without one, if there are enough; the split with most groups loses its last."""
        held: list[list[Group]] = [[] for _ in self._fractions]
        for group in groups:
            held[self.split_of[group.patients]].append(group)
        if len(groups) < len(held):
            return
        for split in range(len(held)):
            if not held[split]:
                donor = max(range(len(held)), key=lambda other: len(held[other]))
                group = held[donor].pop()
                held[split].append(group)
                self.split_of[group.patients] = split
                for level, number in self._count_levels(group):
                    self._short[level][donor] += number
                    self._short[level][split] -= number


def _choose(rows: Sequence[tuple[Sequence[float], int]], lacking: Sequence[float], *, num_images: int) -> int:
    """Return the allowed split that most reduces the squared shortages, summed over all levels."""
    splits = [split for split, short in enumerate(lacking) if short > num_images - _EPSILON]
    splits = splits or [split for split, short in enumerate(lacking) if short > _EPSILON]
    gains = []
    for split in splits:
        others = 0.0
        for short, number in rows:  # not `sum`, which rounds in another way from Python 3.12 on
            others += number * short[split]
        gains.append(num_images * lacking[split] + others)
    return splits[gains.index(max(gains))]


# Folds of a cross-validation by patient.

NUM_FOLDS = 5  # number of folds of the table `folds`


def list_folds() -> list[str]:
    """Return the values of `config.data.fold` for all folds."""
    return [f"{fold}/{NUM_FOLDS}" for fold in range(1, NUM_FOLDS + 1)]


def make_fold(
    cases: Iterable[Record],
    *,
    fold: str,
    seed: int,
    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS,
    joined: Any = (),
) -> Splits:
    """Make the splits of one fold of a cross-validation by patient."""
    table = as_table(cases)
    number, num_folds = map(int, fold.split("/"))
    test = deal(table, seed=seed, fractions=(1 / num_folds,) * num_folds, joined=joined)[number - 1]
    chosen = np.ones(len(table), bool)
    chosen[list(test)] = False
    train, val, _ = fractions
    shares = (train / (train + val), val / (train + val))
    train_cases, val_cases = deal(table, seed=seed, fractions=shares, joined=joined, chosen=chosen)
    splits = Splits(train=train_cases, val=val_cases, test=test)
    check_splits(splits, table, source=f"fold {fold} made with seed {seed}")
    return splits


def split_by_patient(
    images: Sequence[Record],
    strata: Sequence[str],
    *,
    seed: int,
    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS,
    names: Sequence[str] = SPLIT_NAMES,
) -> list[str]:
    """Return the split of each image, by patient, stratified by `strata` and origin."""
    numbers = {name: min(number, 127) for number, name in enumerate(sorted(set(strata)))}
    table = RecordTable(
        Record(
            patient=image.patient, image=image.image, origin=image.origin, answers=(numbers[stratum],), reasoning=("",)
        )
        for image, stratum in zip(images, strata, strict=True)
    )
    parts = deal(table, seed=seed, fractions=fractions, joined=())
    split_of = {index: name for name, indices in zip(names, parts, strict=True) for index in indices}
    return [split_of[index] for index in range(len(table))]
