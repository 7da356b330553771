"""Hold out the test split: fitting, counting, calibration and model choice get data without its labels and pictures."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from stepcot_jax.data.images.pixels import CompactPixels, PixelCache

Data = TypeVar("Data")


class TestSplitClosed(RuntimeError):
    """A picture or feature of the test split was requested before the last evaluation."""

    __test__ = False


@dataclasses.dataclass(frozen=True)
class HeldOut(Generic[Data]):
    """Data with their test split, for the last evaluation; `hold_out` also returns the view for everything before it.

    `tests/data/test_held_out.py` lists the functions that open it.
    """

    _data: Data = dataclasses.field(repr=False)

    def open_test(self) -> Data:
        """Return the data with the test split."""
        return self._data


def _refuse(index: int, closed: frozenset[int]) -> None:
    if index in closed:
        raise TestSplitClosed(f"image {index} is of the test split, which the last evaluation alone opens")


class ClosedPixels(PixelCache):
    """The pixels of another cache, without those of closed images."""

    def __init__(self, cache: PixelCache, closed: Iterable[int]) -> None:
        self._cache, self._closed = cache, frozenset(closed)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClosedPixels, (self._cache, self._closed)

    def put(self, index: int, pixels: CompactPixels) -> None:
        """Cache the pixels of an image."""
        self._cache.put(index, pixels)

    def select(self, indices: Sequence[int], read: Callable[[int], CompactPixels]) -> PixelCache:
        """Return a cache of some of the images, none of them closed."""
        for index in indices:
            _refuse(index, self._closed)
        return self._cache.select(indices, read)

    def compact(self, index: int) -> CompactPixels:
        """Return the pixels of an image that is not closed."""
        _refuse(index, self._closed)
        return self._cache.compact(index)


class ClosedFeatures:
    """Features [case, width] by case index, without those of closed cases."""

    def __init__(self, features: Any, closed: Iterable[int]) -> None:
        self._features, self._closed = features, frozenset(closed)
        self.shape, self.dtype = features.shape, features.dtype

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, index: Any) -> np.ndarray:
        for case in np.arange(len(self))[index].ravel().tolist():
            _refuse(case, self._closed)
        rows: np.ndarray = self._features[index]
        return rows
