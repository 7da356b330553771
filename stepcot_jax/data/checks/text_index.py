"""Finds the places of a text in a column of texts; takes 16 bytes a place where a dict takes a hundred and more."""

import array
import bisect
import hashlib
from collections.abc import Callable, Iterable

import numpy as np

from stepcot_jax.data.columns import TextColumn


class TextIndex:
    """Places by text.

    Args:
      column: the texts.
      places: those that can be found.
      key: what texts are found by; a text whose key is None cannot be found.

    >>> column = TextColumn()
    >>> for text in ("a", "b", "A"):
    ...     column.append(text)
    >>> TextIndex(column, range(3), key=str.casefold).find("a")
    [0, 2]
    """

    def __init__(
        self, column: TextColumn, places: Iterable[int], *, key: Callable[[str], str | None] = lambda text: text
    ) -> None:
        self._column, self._key = column, key
        digests, found = array.array("Q"), array.array("q")
        for place in places:
            text = key(column[place])
            if text is not None:
                digests.append(_digest(text))
                found.append(place)
        order = np.argsort(np.array(digests, np.uint64), kind="stable")
        # Python's arrays, since looking up single numbers in NumPy's is slow.
        self._digests = array.array("Q", np.array(digests, np.uint64)[order].tobytes())
        self._places = array.array("q", np.array(found, np.int64)[order].tobytes())

    def find(self, text: str) -> list[int]:
        """Places of the texts with the key `text`, in the order given."""
        digest = _digest(text)
        begin = bisect.bisect_left(self._digests, digest)
        end = bisect.bisect_right(self._digests, digest, lo=begin)
        return [place for place in self._places[begin:end] if self._key(self._column[place]) == text]


def _digest(text: str) -> int:
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
