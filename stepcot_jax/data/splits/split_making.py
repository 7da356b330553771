"""Splits for data that come without: disjoint by patient, in proportion by diagnosis and origin, one for a seed."""

import collections
import itertools
import math
from collections.abc import Iterable, Sequence

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.splits.split_checks import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.data.splits.split_groups import Group, check_largest, collect_strata, form_groups, shuffle_groups
from stepcot_jax.host.errors import BadInput

PUBLISHED_FRACTIONS = (0.7, 0.15, 0.15)

Level = tuple[str, int | str]
"""What a count of images is of: all, a diagnosis or an origin, with its value."""

LevelCounts = list[tuple[Level, int]]

_EPSILON = 1e-6


def make_splits(
    cases: Sequence[Case],
    *,
    seed: int,
    fractions: tuple[float, float, float] = PUBLISHED_FRACTIONS,
    joined: Iterable[Sequence[int]] = (),
) -> Splits:
    """Splits cases by patient, with each diagnosis of each origin spread over the splits in proportion.

    A patient counts for the rarest diagnosis among their images (the last step's label; not annotated is a
    diagnosis of its own where the patient has no other) and for their rarest origin. In a stratum, that is a
    diagnosis of an origin, each split is off its share by less than the images of the stratum's largest
    patient; what cannot be dealt evenly, hence all of a rare stratum, goes where it serves the diagnosis,
    the origin and the size of the splits best. Each split gets at least one patient of every diagnosis that
    has as many patients as there are splits, even where that costs a rare stratum its share.

    Args:
      cases: the cases, in any order: the same cases give the same splits.
      seed: any integer.
      fractions: share of the cases for train, val and test; each > 0, sum 1.
      joined: pairs of indices into `cases`, such as near-duplicates, whose patients come into one split. What
        is said of patients above holds of all that are joined, directly or through others, as one.

    Returns:
      Every case in exactly one split.

    Raises:
      BadInput: the fractions cannot be used, there are fewer patients than splits, or so many patients are
        joined that they exceed the smallest split's share.
    """
    if len(fractions) != 3 or not all(share > 0 for share in fractions) or not math.isclose(sum(fractions), 1.0):
        raise BadInput(f"split fractions: found {fractions}, accepted are three numbers above 0 with sum 1")
    groups = form_groups(cases, joined)
    check_largest(groups, cases, smallest_share=min(fractions))
    if len(groups) < len(fractions):
        raise BadInput(f"found {len(groups)} patients, accepted are at least {len(fractions)} to fill the splits")
    order = shuffle_groups(groups, seed=seed)
    dealer = _Dealer(cases, fractions)
    for _, strata in itertools.groupby(collect_strata(order), key=lambda stratum: stratum[0].stratum[0]):
        of_diagnosis = list(strata)
        for stratum in of_diagnosis:
            dealer.deal(stratum)
        dealer.fill_empty([group for stratum in of_diagnosis for group in stratum])
    dealer.fill_empty(order)
    members: list[list[int]] = [[] for _ in SPLIT_NAMES]
    for group in groups:
        members[dealer.split_of[group.patients]].extend(group.cases)
    splits = Splits(*(tuple(sorted(indices)) for indices in members))
    check_splits(splits, cases, source=f"splits made with seed {seed}")
    return splits


class _Dealer:
    """Deals groups to the splits and keeps how many images each split is short of its share, at every level.

    The levels are the stratum at hand, each diagnosis, each origin and all images; but for the first they count
    each image by its own diagnosis and origin, whatever its patient counts for.
    """

    def __init__(self, cases: Sequence[Case], fractions: Sequence[float]) -> None:
        self._cases = cases
        self._fractions = fractions
        self._short: dict[Level, list[float]] = collections.defaultdict(lambda: [0.0] * len(fractions))
        self.split_of: dict[tuple[str, ...], int] = {}

    def deal(self, stratum: Sequence[Group]) -> None:
        """Deals one stratum, the groups with most images first, which fits best.

        Groups of one size are spread by the shares before smaller ones are, or else all large ones would be in
        the largest split. A group goes to a split that it does not give more than its share of the stratum; if
        there is none, to one that still lacks some of the stratum. Among these it is the split that is shortest
        over all levels, so that what rounding leaves of one stratum is made up in the others.
        """
        own: list[float] = [0.0] * len(self._fractions)
        for num_images, same_size in itertools.groupby(stratum, key=lambda group: group.num_images):
            groups = list(same_size)
            counts = [self._count_levels(group) for group in groups]
            own = [short + share * num_images * len(groups) for short, share in zip(own, self._fractions, strict=True)]
            self._claim_shares(counts)
            for group, levels in zip(groups, counts, strict=True):
                rows = [(self._short[level], number) for level, number in levels]
                split = _choose(rows, own, num_images=num_images)
                self.split_of[group.patients] = split
                own[split] -= num_images
                for short, number in rows:
                    short[split] -= number

    def _claim_shares(self, counts: Sequence[LevelCounts]) -> None:
        totals: dict[Level, int] = {}
        for levels in counts:
            for level, number in levels:
                totals[level] = totals.get(level, 0) + number
        for level, total in totals.items():
            self._short[level] = [
                short + share * total for short, share in zip(self._short[level], self._fractions, strict=True)
            ]

    def fill_empty(self, groups: Sequence[Group]) -> None:
        """Gives each split one of the groups, if there are enough; takes the last of the best provided."""
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

    def _count_levels(self, group: Group) -> LevelCounts:
        """How many images of the group each level has; in one order, on which sums of floats depend."""
        counts: dict[Level, int] = {("all", ""): group.num_images}
        for index in group.cases:
            case = self._cases[index]
            for level in (("diagnosis", case.labels[-1]), ("origin", case.origin)):
                counts[level] = counts.get(level, 0) + 1
        return sorted(counts.items())


def _choose(rows: Sequence[tuple[Sequence[float], int]], own: Sequence[float], *, num_images: int) -> int:
    """The split that lowers the sum over all levels of the squared shortages most, of those that may have the group.

    Args:
      rows: for each level that the group has images of, what the splits are short of there, and how many it has.
      own: what the splits are short of in the stratum.
      num_images: of the group.
    """
    splits = [split for split, short in enumerate(own) if short > num_images - _EPSILON]
    splits = splits or [split for split, short in enumerate(own) if short > _EPSILON]
    if len(splits) == 1:
        return splits[0]
    gains = [num_images * own[split] + sum([number * short[split] for short, number in rows]) for split in splits]
    return splits[gains.index(max(gains))]
