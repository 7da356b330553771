"""Byte-pair merges (Sennrich et al., 2016) of the pieces of a closed vocabulary: frequent phrases become one token.

Templated replies repeat whole phrases. As single tokens they shorten replies severalfold, so that sampling and training
cost less and a reply has few decisions besides its facts. Numbers take no part, and tags merge with tags alone.
"""

import collections
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

Pair = tuple[str, str]

_ENDS = (".", "?", ",", ":", ";")
_KINDS = (
    ("number", re.compile(r"[ ,]*[0-9]+")),
    ("tag", re.compile(r"\s?</?[A-Za-z_]+>|\n")),
    ("mark", re.compile(r" ?[^\w\s.?,:;/-]")),
)


def _kind(piece: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(piece)), "text")


def split_segments(pieces: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the runs of pieces within which merges are allowed: tags, marks, or the words up to a mark or full stop.

    A number is a run of its own.

    >>> split_segments(["<box>", "[", "12", ", 3", "]", "</box>", "</location>"])
    [('<box>',), ('[',), ('12',), (', 3',), (']',), ('</box>', '</location>')]
    """
    segments: list[list[str]] = []
    before = ""
    for piece in pieces:
        kind = _kind(piece)
        if kind == before != "number":
            segments[-1].append(piece)
        else:
            segments.append([piece])
        before = "" if piece in _ENDS else kind
    return [tuple(segment) for segment in segments]


def learn_merges(texts: Iterable[Sequence[str]], *, most: int, least_count: int) -> list[Pair]:
    """Return pairs of neighbours to merge, most frequent first; ties in alphabetical order."""
    counts = collections.Counter(segment for pieces in texts for segment in split_segments(pieces))
    segments = [(list(segment), number) for segment, number in sorted(counts.items()) if len(segment) > 1]
    totals: collections.Counter[Pair] = collections.Counter()
    holders: dict[Pair, set[int]] = collections.defaultdict(set)
    for place, (segment, number) in enumerate(segments):
        _count_pairs(segment, number, totals, holders, place)
    merges: list[Pair] = []
    while totals and len(merges) < most:
        pair = min(totals, key=lambda each: (-totals[each], each))
        if totals[pair] < least_count:
            break
        merges.append(pair)
        for place in sorted(holders[pair]):
            segment, number = segments[place]
            _count_pairs(segment, -number, totals, holders, place)
            merged = merge_pair(segment, pair)
            segments[place] = (merged, number)
            _count_pairs(merged, number, totals, holders, place)
        del totals[pair]
    return merges


def _count_pairs(
    segment: Sequence[str], number: int, totals: collections.Counter[Pair], holders: dict[Pair, set[int]], place: int
) -> None:
    for pair in itertools.pairwise(segment):
        totals[pair] += number
        if number > 0:
            holders[pair].add(place)
        else:
            holders[pair].discard(place)


def merge_pair(segment: Sequence[str], pair: Pair) -> list[str]:
    """Return a segment with each occurrence of a pair, from the left, as one piece."""
    merged: list[str] = []
    place = 0
    while place < len(segment):
        if tuple(segment[place : place + 2]) == pair:
            merged.append(pair[0] + pair[1])
            place += 2
        else:
            merged.append(segment[place])
            place += 1
    return merged


def apply_merges(segment: Sequence[str], ranks: Mapping[Pair, int]) -> list[str]:
    """Return a segment after all merges, the earliest learnt first."""
    merged = list(segment)
    while len(merged) > 1:
        pair = min(itertools.pairwise(merged), key=lambda each: ranks.get(each, len(ranks)))
        if pair not in ranks:
            break
        merged = merge_pair(merged, pair)
    return merged
