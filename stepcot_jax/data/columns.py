"""Columns of texts and digests for a million records: bytes side by side instead of an object for each."""

import array
import hashlib

import numpy as np
from jaxtyping import Int64, UInt64

_DIGEST_BYTES = 16


class TextColumn:
    """Texts by their place; takes their UTF-8 bytes and 8 more each.

    >>> column = TextColumn()
    >>> column.append("Übersicht")
    >>> column[0], len(column)
    ('Übersicht', 1)
    """

    def __init__(self) -> None:
        self._content = bytearray()
        self._ends = array.array("q", [0])

    def append(self, text: str) -> None:
        """Adds a text."""
        # Half of a surrogate pair is no character, but JSON can write it and a path may have it.
        self._content += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._content))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        if not 0 <= place < len(self):
            raise IndexError(place)
        begin, end = self._ends[place], self._ends[place + 1]
        return self._content[begin:end].decode("utf-8", "surrogatepass")


class DigestColumn:
    """What tells contents apart, by their place: 16 bytes each, by which equal contents are found."""

    def __init__(self) -> None:
        self._content = bytearray()

    def append(self, *parts: bytes | str) -> None:
        """Adds the digest of a content that is given in parts; equal contents must be given in equal parts."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        self.append_digest(digest.digest())

    def append_digest(self, digest: bytes) -> None:
        """Adds a digest of 16 bytes that was made elsewhere."""
        if len(digest) != _DIGEST_BYTES:
            raise ValueError(f"found a digest of {len(digest)} bytes, expected {_DIGEST_BYTES}")
        self._content += digest

    def __len__(self) -> int:
        return len(self._content) // _DIGEST_BYTES

    @property
    def halves(self) -> UInt64[np.ndarray, "item 2"]:
        """The digests as two numbers each; the column cannot grow while this array lives."""
        return np.frombuffer(self._content, np.uint64).reshape(-1, 2)


def find_first(halves: UInt64[np.ndarray, "item 2"]) -> Int64[np.ndarray, " item"]:
    """Place of the first item that equals each; an item's own place where it is the first of its kind.

    >>> find_first(np.array([[7, 1], [7, 2], [7, 1]], np.uint64)).tolist()
    [0, 1, 0]
    """
    places = np.arange(len(halves))
    if not len(halves):
        return places
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable, hence the first of equals comes first
    ordered = halves[order]
    is_new = np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1)))
    first = np.empty_like(order)
    first[order] = order[np.maximum.accumulate(np.where(is_new, places, 0))]
    return first
