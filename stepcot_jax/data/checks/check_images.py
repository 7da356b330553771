"""Decode the images of `data check` once, as a run does, and find those with equal pixels."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from stepcot_jax.data.columns import DigestColumn, TextColumn, find_first
from stepcot_jax.data.images.image_files import FolderFiles, ImageFiles, most_bytes
from stepcot_jax.data.images.image_shards import ShardFiles, has_shards, read_index
from stepcot_jax.data.images.preprocessing import decode_image_bytes
from stepcot_jax.data.records.record_scan import Scan
from stepcot_jax.data.splits.splits import Assignment
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.threads import map_in_threads

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Results of decoding the images of the good records.

    Attributes:
      num_unreadable: images that cannot be decoded; their records are set aside in the scan.
      original: for each record the first one whose image has the same pixels, often itself.
    """

    num_unreadable: int
    original: Int64[np.ndarray, " record"]

    def repeated(self, good: Bool[np.ndarray, " record"]) -> Int64[np.ndarray, " place"]:
        """Return the good records whose pixels an earlier record has."""
        return np.flatnonzero(good & (self.original != np.arange(len(self.original))))

    def find_leaks(self, good: Bool[np.ndarray, " record"], assignment: Assignment | None) -> list[list[int]]:
        """Return the groups of records with equal pixels that are not all in the same split."""
        groups: dict[int, list[int]] = {}
        for place in self.repeated(good).tolist() if assignment else ():
            first = int(self.original[place])
            groups.setdefault(first, [first]).append(place)
        return [
            group
            for group in groups.values()
            if assignment and len({name for place in group for name in assignment.names_of(place)}) > 1
        ]


class _Paths(Sequence[str]):
    """Image paths of some records, decoded on access."""

    def __init__(self, column: TextColumn, places: Int64[np.ndarray, " item"]) -> None:
        self._column, self._places = column, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self._column[int(self._places[index])]


def decode_pictures(scan: Scan, root: Path, *, max_pixels: int, num_threads: int, progress: Progress) -> Pictures:
    """Decode the image of every good record; set records aside whose image cannot be decoded.

    Args:
      scan: the records.
      root: the data root, which may have shards of the images.
      max_pixels: largest accepted width times height.
      num_threads: images decoded at a time.
      progress: wraps an iterable with a description, as progress bars do.
    """
    places = np.flatnonzero(scan.good)
    paths = _Paths(scan.table.image_paths, places)
    files: ImageFiles
    if has_shards(root):
        files = ShardFiles(scan.root, read_index(root), paths, max_bytes=most_bytes(max_pixels))
    else:
        files = FolderFiles(scan.root, paths, most_bytes(max_pixels))

    def digest(index: int) -> bytes | BadInput:
        try:
            pixels = decode_image_bytes(files.read(index), name=files.name(index), max_pixels=max_pixels)
        except BadInput as error:
            return error
        content = hashlib.blake2b(str(pixels.shape).encode(), digest_size=16)
        content.update(np.ascontiguousarray(pixels).data)
        return content.digest()

    column = DigestColumn()
    readable: list[int] = []
    watched = progress(range(len(places)), "reading the images")
    for index, found in map_in_threads(digest, watched, num_threads=num_threads):
        place = int(places[index])
        if isinstance(found, BadInput):
            scan.drop(place, str(found))
            continue
        readable.append(place)
        column.append_digest(found)
    original = np.arange(len(scan.table))
    known = np.array(readable, np.int64)
    original[known] = known[find_first(column.halves)]
    return Pictures(len(places) - len(readable), original)
