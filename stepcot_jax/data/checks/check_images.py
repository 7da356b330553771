"""The images of a check: each decoded once as a run does, with a digest of its pixels to find equal ones."""

import collections
import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from stepcot_jax.data.checks.check_records import Scan
from stepcot_jax.data.columns import DigestColumn, TextColumn, find_first
from stepcot_jax.data.images.image_files import FolderFiles, ImageFiles, most_bytes
from stepcot_jax.data.images.image_shards import ShardFiles, has_shards, read_index
from stepcot_jax.data.images.preprocessing import decode_image_bytes
from stepcot_jax.host.errors import BadInput

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """What decoding the images of the good records has shown.

    Attributes:
      num_unreadable: images that cannot be decoded; their records are set aside in the scan.
      original: for each readable record the place of the first record whose picture has the same pixels, its own
        place where there is none before it.
    """

    num_unreadable: int
    original: Int64[np.ndarray, " record"]

    def repeated(self, good: Bool[np.ndarray, " record"]) -> Int64[np.ndarray, " place"]:
        """Places of good records whose picture an earlier good record has."""
        return np.flatnonzero(good & (self.original != np.arange(len(self.original))))


class _Paths(Sequence[str]):
    """Image paths of some records, made when they are asked for."""

    def __init__(self, column: TextColumn, places: Int64[np.ndarray, " item"]) -> None:
        self._column, self._places = column, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        return self._column[int(self._places[index])]


def look_at_pictures(scan: Scan, root: Path, *, max_pixels: int, num_threads: int, progress: Progress) -> Pictures:
    """Decodes the image of every good record; sets the records aside whose image cannot be.

    Args:
      scan: the records.
      root: the data root, where shards of the images may be.
      max_pixels: largest accepted width times height.
      num_threads: images decoded at a time.
      progress: wraps the numbers of the images, as progress bars do.

    """
    places = np.flatnonzero(scan.good)
    paths = _Paths(scan.tally.image_paths, places)
    files = _open_files(scan, root, paths, max_pixels=max_pixels)

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
    for place, found in zip(places.tolist(), _in_threads(digest, watched, num_threads=num_threads), strict=True):
        if isinstance(found, BadInput):
            scan.set_aside(place, str(found))
            continue
        readable.append(place)
        column.append_digest(found)
    original = np.arange(len(scan.tally))
    known = np.array(readable, np.int64)
    original[known] = known[find_first(column.halves)]
    return Pictures(len(places) - len(readable), original)


def _open_files(scan: Scan, root: Path, paths: Sequence[str], *, max_pixels: int) -> ImageFiles:
    if has_shards(root):
        return ShardFiles(scan.root, read_index(root), paths, max_bytes=most_bytes(max_pixels))
    return FolderFiles(scan.root, paths, most_bytes(max_pixels))


def _in_threads(
    work: Callable[[int], bytes | BadInput], indices: Iterable[int], *, num_threads: int
) -> Iterator[bytes | BadInput]:
    """What the work makes of each index, in order; no more than a few are ahead."""
    pending: collections.deque[concurrent.futures.Future[bytes | BadInput]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for index in indices:
            pending.append(pool.submit(work, index))
            if len(pending) > num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
