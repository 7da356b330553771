"""Near-duplicate images: perceptual hashes, and pairs whose hashes differ in few bits.

A copy in another split makes the test score too high. Patients look alike too: `docs/data.md` has measurements.
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, UInt8, UInt64
from PIL import Image

from stepcot_jax.host.errors import BadInput

MAX_RADIUS = 16  # in bits; beyond it all radiographs are neighbours
MAX_PAIRS = 5_000_000  # more pairs mean that the radius is too large
_NUM_BITS = 64
_SIDE = 32
_FREQUENCIES = np.arange(1, 9)[:, None]
_COSINES = np.cos(np.pi * _FREQUENCIES * (2 * np.arange(_SIDE) + 1) / (2 * _SIDE)) * math.sqrt(2 / _SIDE)


def perceptual_hash(pixels: UInt8[np.ndarray, "height width *channel"]) -> np.uint64:
    """Return a 64-bit hash that is nearly equal for copies that differ in size, encoding or brightness.

    The image is averaged to 32 x 32 grey pixels and transformed by DCT-II. The bits mark which of the 8 x 8
    coefficients of frequencies 1 to 8 in both directions are above their median. Frequency 0 is omitted: the mean is
    brightness, and single rows or columns barely distinguish chests.
    """
    picture = Image.fromarray(pixels).convert("L").convert("F")
    small = np.asarray(picture.resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float64)
    # Rounding keeps differences in the last bit out of the hash.
    coefficients = np.round(_COSINES @ small @ _COSINES.T, 6).ravel()
    return np.packbits(coefficients > np.median(coefficients)).view(">u8")[0].astype(np.uint64)


def find_near_duplicates(hashes: UInt64[np.ndarray, " case"], *, radius: int) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of cases whose hashes differ in at most `radius` bits, without comparing all pairs."""
    if not 0 <= radius <= MAX_RADIUS:
        raise BadInput(f"near-duplicate radius: {radius} is not 0 to {MAX_RADIUS} bits")
    hashes = np.asarray(hashes, np.uint64)
    values, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[inverse] != np.arange(len(hashes)))
    pairs = [np.stack([first[inverse[repeated]], repeated], axis=1)]
    num_pairs = len(repeated)
    for near in _near_values(values, radius=radius) if radius else ():
        num_pairs += len(near)
        if num_pairs > MAX_PAIRS:
            raise BadInput(
                f"near-duplicate radius: {radius} gives more than {MAX_PAIRS} pairs of {len(hashes)} images; choose a "
                "smaller one"
            )
        pairs.append(np.sort(first[near], axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def _near_values(values: UInt64[np.ndarray, " value"], *, radius: int) -> Iterator[Int64[np.ndarray, "pair 2"]]:
    """Yield the pairs of different values within the radius in parts, each pair once."""
    num_bands = _choose_num_bands(len(values), radius=radius)
    edges = np.linspace(0, _NUM_BITS, num_bands + 1).astype(int).tolist()
    bands = [(1 << end) - (1 << start) for start, end in itertools.pairwise(edges)]
    earlier: list[np.uint64] = []
    for chosen in itertools.combinations(bands, num_bands - radius):
        key = np.uint64(sum(chosen))
        order = np.argsort(values & key, kind="stable")
        ordered = values[order]
        for left, right in _equal_neighbours(ordered & key):
            differing = ordered[left] ^ ordered[right]
            near = np.bitwise_count(differing) <= radius
            left, right, differing = left[near], right[near], differing[near]
            new = np.ones(len(left), bool)
            for other in earlier:
                new &= (differing & other) != 0
            if new.any():
                yield np.stack([order[left[new]], order[right[new]]], axis=1)
        earlier.append(key)


def _equal_neighbours(
    keys: UInt64[np.ndarray, " value"],
) -> Iterator[tuple[Int64[np.ndarray, " pair"], Int64[np.ndarray, " pair"]]]:
    """Yield the positions of all pairs of equal sorted keys, grouped by distance."""
    left = np.arange(len(keys))
    for distance in itertools.count(1):
        left = left[: np.searchsorted(left, len(keys) - distance)]
        left = left[keys[left] == keys[left + distance]]
        if not len(left):
            return
        yield left, left + distance


def _choose_num_bands(num_values: int, *, radius: int) -> int:
    """Return the cheapest number of bands; `radius` itself means comparing all pairs."""

    def cost(num_bands: int) -> float:
        num_pairs = num_values**2 / 2 ** (1 + _NUM_BITS / 2 * (num_bands - radius) / num_bands)
        return math.comb(num_bands, radius) * (num_values * math.log2(num_values + 1) + num_pairs)

    return min(range(radius, _NUM_BITS), key=cost)
