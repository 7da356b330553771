"""Compact columns for a million records: texts, digests and categories without an object per item."""

import array
import bisect
import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from jaxtyping import Int64, UInt64

_DIGEST_BYTES = 16
_MAX_NAMES, _MAX_CHARS = 1000, 300


def _encode(text: str) -> bytes:
    # A lone surrogate is not valid UTF-8, but a path may contain one.
    return text.encode("utf-8", "surrogatepass")


class TextColumn:
    """Texts by position; each takes its UTF-8 bytes and 8 more.

    >>> column = TextColumn(["Übersicht"])
    >>> column[0], len(column)
    ('Übersicht', 1)
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._content = bytearray()
        self._ends = array.array("q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Append a text."""
        self._content += _encode(text)
        self._ends.append(len(self._content))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._content[self._ends[place] : self._ends[place + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))


class DigestColumn:
    """Digests of 16 bytes by position, for finding equal contents."""

    def __init__(self) -> None:
        self._content = bytearray()

    def append(self, content: str | bytes) -> None:
        """Append the BLAKE2b digest of a content."""
        content = _encode(content) if isinstance(content, str) else content
        self._content += hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()

    def __len__(self) -> int:
        return len(self._content) // _DIGEST_BYTES

    @property
    def halves(self) -> UInt64[np.ndarray, "item 2"]:
        """Each digest as two numbers; the column cannot grow while this view exists."""
        return np.frombuffer(self._content, np.uint64).reshape(-1, 2)


class CategoryColumn:
    """Repeated texts by position: a number per item, and each distinct text once.

    Args:
      other: bounds the memory: texts are cut to 300 characters, and those beyond the first thousand become this one.
    """

    def __init__(self, *, other: str | None = None) -> None:
        self.names: list[str] = []
        self._number_of: dict[str, int] = {}
        self._numbers = array.array("i")
        self._other = other

    def append(self, name: str) -> None:
        """Append a text."""
        if self._other is not None:
            name = name[:_MAX_CHARS]
            if name not in self._number_of and len(self.names) >= _MAX_NAMES:
                name = self._other
        number = self._number_of.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        self._numbers.append(number)

    def __getitem__(self, place: int) -> str:
        return self.names[self._numbers[place]]

    @property
    def numbers(self) -> Int64[np.ndarray, " item"]:
        """Position of each item's text in `names`."""
        return np.array(self._numbers, np.int64)


class TextIndex:
    """Finds the positions of a text in a column; takes 16 bytes per item, a tenth of a dict.

    >>> TextIndex(TextColumn(["a", "b", "A"]), range(3), key=str.casefold).find("a")
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
                digests.append(_short_digest(text))
                found.append(place)
        order = np.argsort(digests, kind="stable")
        # Python arrays: looking up single numbers in NumPy arrays is slow.
        self._digests = array.array("Q", np.array(digests)[order].tobytes())
        self._places = array.array("q", np.array(found)[order].tobytes())

    def find(self, text: str) -> list[int]:
        """Return the positions of the texts whose key is `text`, in the order indexed."""
        digest = _short_digest(text)
        begin = bisect.bisect_left(self._digests, digest)
        end = bisect.bisect_right(self._digests, digest, lo=begin)
        return [place for place in self._places[begin:end] if self._key(self._column[place]) == text]


def _short_digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(_encode(text), digest_size=8).digest(), "little")


def find_first(halves: UInt64[np.ndarray, "item 2"]) -> Int64[np.ndarray, " item"]:
    """Return for each item the position of the first equal item, its own where it is the first.

    >>> find_first(np.array([[7, 1], [7, 2], [7, 1]], np.uint64)).tolist()
    [0, 1, 0]
    """
    order = np.lexsort(halves.T)  # stable: the first of equal items comes first
    differs = (halves[order] != np.roll(halves[order], 1, axis=0)).any(axis=1)
    first = np.empty_like(order)
    first[order] = order[np.maximum.accumulate(np.where(differs, np.arange(len(order)), 0))]
    return first
