"""The test split out of reach: what fits, counts, calibrates or chooses takes data without its labels and pictures."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from stepcot_jax.data.images.pixels import CompactPixels, PixelCache

Whole = TypeVar("Whole")


class TestSplitClosed(RuntimeError):
    """A picture or feature of the test split was asked for before the last evaluation."""

    __test__ = False


@dataclasses.dataclass(frozen=True)
class HeldOut(Generic[Whole]):
    """Data with their test split; `hold_out` returns it beside the view that all before the last evaluation takes.

    `tests/data/test_held_out.py` lists the functions that open it.
    """

    _whole: Whole = dataclasses.field(repr=False)

    def open_test(self) -> Whole:
        """Return the data with the test split."""
        return self._whole


def _refuse(index: int, closed: frozenset[int]) -> None:
    if index in closed:
        raise TestSplitClosed(f"image {index} is of the test split, which the last evaluation alone opens")


class ClosedPixels(PixelCache):
    """The pixels of another cache, without those of closed images."""

    def __init__(self, whole: PixelCache, closed: Iterable[int]) -> None:
        self._whole, self._closed = whole, frozenset(closed)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClosedPixels, (self._whole, self._closed)

    def put(self, index: int, pixels: CompactPixels) -> None:
        """Cache the pixels of an image."""
        self._whole.put(index, pixels)

    def select(self, indices: Sequence[int], read: Callable[[int], CompactPixels]) -> PixelCache:
        """Return a cache of some of the images, none of them closed."""
        for index in indices:
            _refuse(index, self._closed)
        return self._whole.select(indices, read)

    def compact(self, index: int) -> CompactPixels:
        """Return the pixels of an image that is not closed."""
        _refuse(index, self._closed)
        return self._whole.compact(index)


class ClosedFeatures:
    """Features [case, width] by case index, without those of closed cases."""

    def __init__(self, whole: Any, closed: Iterable[int]) -> None:
        self._whole, self._closed = whole, frozenset(closed)
        self.shape, self.dtype = whole.shape, whole.dtype

    def __len__(self) -> int:
        return len(self._whole)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Return features for an index, a slice or an array of indices."""
        for place in np.arange(len(self))[index].ravel().tolist():
            _refuse(place, self._closed)
        found: np.ndarray = self._whole[index]
        return found
