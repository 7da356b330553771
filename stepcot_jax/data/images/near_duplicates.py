"""Images that are nearly the same: a perceptual hash of each, and the pairs whose hashes differ in few bits.

The same radiograph comes more than once in collections that were merged: encoded anew, at another size, a little
brighter. If one copy trains and another tests, the test says too much. Radiographs of different patients look
alike too, so the radius has to be small; `docs/data.md` has what was measured.
"""

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64, Int64, UInt8, UInt64
from PIL import Image

from stepcot_jax.host.errors import BadInput

MAX_RADIUS = 16
"""Largest radius in bits: far beyond it every radiograph is the next one's neighbour."""

MAX_PAIRS = 5_000_000
"""More pairs than these are not near-duplicates but a radius that is too large."""

_NUM_BITS = 64
_SIDE = 32
_NUM_FREQUENCIES = 8


def perceptual_hash(pixels: UInt8[np.ndarray, "height width *channel"]) -> np.uint64:
    """64 bits of how an image looks from afar; nearly the same for copies that differ in size, encoding or brightness.

    The image is averaged to 32 x 32 grey pixels and transformed to cosines (DCT-II). The bits say which of the
    8 x 8 coefficients of the frequencies 1 to 8 in both directions are above their median. Frequency 0 is left
    out: the mean says how bright an image is, and rows or columns alone hardly tell one chest from another.

    Args:
      pixels: uint8 [height, width] or [height, width, 3].

    >>> image = np.add.outer(np.arange(64), np.arange(64) ** 2 // 60).astype(np.uint8)
    >>> int(np.bitwise_count(perceptual_hash(image) ^ perceptual_hash(image[::2, ::2] + 9)))
    0
    """
    picture = Image.fromarray(pixels).convert("L").convert("F")
    small = np.asarray(picture.resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float64)
    cosines = _cosines()
    # Rounded, since coefficients that are equal but for the last bit would make bits of noise.
    coefficients = np.round(cosines @ small @ cosines.T, 6).ravel()
    return np.packbits(coefficients > np.median(coefficients)).view(">u8")[0].astype(np.uint64)


@functools.cache
def _cosines() -> Float64[np.ndarray, "frequency pixel"]:
    frequencies = np.arange(1, _NUM_FREQUENCIES + 1)[:, None]
    return np.cos(np.pi * frequencies * (2 * np.arange(_SIDE) + 1) / (2 * _SIDE)) * math.sqrt(2 / _SIDE)


def find_near_duplicates(hashes: UInt64[np.ndarray, " case"], *, radius: int) -> Int64[np.ndarray, "pair 2"]:
    """Pairs of cases whose hashes differ in at most `radius` bits, without comparing all with all.

    The bits are cut into bands, more than `radius` of them: two hashes so near each other agree in the other
    bands wholly, whichever these are. Sorted by each choice of bands, neighbours of one key are the only ones
    that have to be counted.

    Args:
      hashes: uint64 [case].
      radius: in bits, 0 to 16; 0 finds equal hashes alone.

    Returns:
      int64 [pair, 2], indices into `hashes`, the smaller one first, ascending. Cases of one hash are paired with
      the first of them only, and other pairs name the first case of each hash: the groups that the pairs join
      are those of all pairs within the radius.

    Raises:
      BadInput: the radius is out of range, or finds more than five million pairs.
    """
    if not 0 <= radius <= MAX_RADIUS:
        raise BadInput(f"near-duplicate radius: found {radius}, accepted are 0 to {MAX_RADIUS} bits")
    hashes = np.asarray(hashes, np.uint64)
    values, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[inverse] != np.arange(len(hashes)))
    pairs = [np.stack([first[inverse[repeated]], repeated], axis=1)]
    num_found = len(repeated)
    for found in _near_values(values, radius=radius) if radius else ():
        num_found += len(found)
        if num_found > MAX_PAIRS:
            raise BadInput(
                f"near-duplicate radius: found more than {MAX_PAIRS} pairs of {len(hashes)} images with {radius}, "
                "accepted is a smaller one: radiographs that look alike are not all the same"
            )
        pairs.append(np.sort(first[found], axis=1))
    return np.unique(np.concatenate(pairs), axis=0)


def _near_values(values: UInt64[np.ndarray, " value"], *, radius: int) -> Iterator[Int64[np.ndarray, "pair 2"]]:
    """Pairs of different values within the radius, in parts; none twice."""
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
    """Positions of all pairs of equal keys among sorted ones, in parts of pairs that are equally far apart."""
    left = np.arange(len(keys))
    for distance in itertools.count(1):
        left = left[: np.searchsorted(left, len(keys) - distance)]
        left = left[keys[left] == keys[left + distance]]
        if not len(left):
            return
        yield left, left + distance


def _choose_num_bands(num_values: int, *, radius: int) -> int:
    """The number of bands that costs least; `radius` itself means to compare all with all.

    Of the bits of a band half are counted on, since those of radiographs depend on each other.
    """

    def cost(num_bands: int) -> float:
        num_pairs = num_values**2 / 2 ** (1 + _NUM_BITS / 2 * (num_bands - radius) / num_bands)
        return math.comb(num_bands, radius) * (num_values * math.log2(num_values + 1) + num_pairs)

    return min(range(radius, _NUM_BITS), key=cost)
