"""Images in ArrayRecord shards: their index, and a reader that verifies each image against its SHA-256.

`data shards` writes shards whose record k is the content of an image file, indexed by `image_shards.json`, which is
written last: without it a folder has no shards. `data.tfds` writes shards of tensorflow_datasets examples. `ShardFiles`
reads both.
"""

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.data.images.image_files import ImageFiles, folder_files, set_aside_cases
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, read_json

INDEX_NAME = "image_shards.json"

_VERSION = 1
_SHARD_NAME = re.compile(r"images-[0-9]{5}\.array_record")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 32_768
_MOST_OPEN = 128
_CHANGED = "the shard has changed since it was written: copy it again or write the shards anew"


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard; `paths`, `sizes` and `digests` have an item for each record, in order."""

    file: str
    num_bytes: int
    sha256: str
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    digests: tuple[str, ...]


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a folder.

    `source` is the SHA-256 of the records that the shards were written for. `set_aside` lists the image paths of the
    records whose images could not be decoded, each with its reason.
    """

    version: int = _VERSION
    source: str
    shards: tuple[ShardEntry, ...]
    set_aside: tuple[tuple[str, str], ...] = ()


def shard_name(number: int) -> str:
    """Return the file name of a shard, such as "images-00003.array_record"."""
    return f"images-{number:05d}.array_record"


def has_shards(root: Path) -> bool:
    """Whether a data root keeps its images in shards."""
    return (Path(root) / INDEX_NAME).is_file()


def read_index(root: Path) -> ShardIndex:
    """Read the index of a folder of shards and check the size of each shard."""
    path = Path(root) / INDEX_NAME
    expected = "expected the index that `python -m stepcot_jax.data shards` writes"
    index = read_json(path, ShardIndex, accepted=expected, max_bytes=MAX_LISTING_BYTES)
    if index.version != _VERSION:
        raise BadInput(f"{path}: version {index.version} is not {_VERSION}; write the shards anew")
    for entry in index.shards:
        check_entry(entry, where=path)
    paths = [image for entry in index.shards for image in entry.paths]
    if len(set(paths)) != len(paths):
        raise BadInput(f"{path}: an image is listed twice; {expected}")
    for entry in index.shards:
        check_size(Path(root) / entry.file, entry.num_bytes)
    return index


def check_entry(entry: ShardEntry, *, where: Path) -> None:
    """Refuse an entry with a foreign file name, bad digests or lists of different lengths; names `where`."""
    if not _SHARD_NAME.fullmatch(entry.file):
        raise BadInput(f"{where}: {entry.file[:80]!r} is not a shard name such as {shard_name(0)}")
    lengths = {len(entry.paths), len(entry.sizes), len(entry.digests)}
    if len(lengths) != 1 or not all(_DIGEST.fullmatch(digest) for digest in (entry.sha256, *entry.digests)):
        raise BadInput(f"{where}: the entry of {entry.file} is incomplete or damaged")


def check_size(path: Path, num_bytes: int) -> None:
    """Refuse a shard that is missing or not of the size it was written with; the message names it."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected a shard of {num_bytes} bytes") from None
    if found != num_bytes:
        raise BadInput(f"{path}: {found} bytes instead of {num_bytes}; {_CHANGED}")


def find_missing(index: ShardIndex, paths: Iterable[str]) -> dict[int, str]:
    """Return the places of the image paths that are not in the shards, each with its reason."""
    reasons = dict(index.set_aside)
    sharded = {path for entry in index.shards for path in entry.paths}
    absent = f"the image is not in the shards ({INDEX_NAME})"
    return {place: reasons.get(path, absent) for place, path in enumerate(paths) if path not in sharded}


def open_images(
    collection: Collection, *, sharded: bool, on_bad_record: OnBadRecord, max_pixels: int
) -> tuple[Collection, ImageFiles]:
    """Open a collection's image files or, if `sharded`, the shards beside its records.

    Records whose images are not in the shards are set aside. Files too large for `max_pixels` are not read.
    """
    if not sharded:
        return collection, folder_files(collection, max_pixels=max_pixels)
    index = read_index(collection.root)
    missing = find_missing(index, collection.cases.image_paths)
    collection = set_aside_cases(collection, missing, on_bad_record=on_bad_record)
    paths = tuple(collection.cases.image_paths)
    return collection, ShardFiles(collection.root, index, paths, max_bytes=most_bytes(max_pixels))


class ShardFiles:
    """Images in shards, each verified against its SHA-256 when it is read; picklable.

    Args:
      unpack: a picklable function from a record to the content of the image file; None where they are the same.
    """

    def __init__(
        self,
        root: Path,
        index: ShardIndex,
        paths: Sequence[str],
        *,
        max_bytes: int,
        unpack: Callable[[bytes], bytes] | None = None,
    ) -> None:
        places = {
            path: (entry.file, record, size, digest)
            for entry in index.shards
            for record, (path, size, digest) in enumerate(zip(entry.paths, entry.sizes, entry.digests, strict=True))
        }
        for path in paths:
            if path not in places:
                raise BadInput(f"{root / INDEX_NAME}: no image {path[:80]!r}")
        self._root, self._max_bytes, self._unpack, self._paths = root, max_bytes, unpack, tuple(paths)
        self._places = tuple(places[path] for path in paths)
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._readers: dict[str, Any] = {}
        self._lock = threading.Lock()

    def name(self, index: int) -> str:
        """Return the image's path and its shard."""
        return f"{self._paths[index]} in {self._root / self._places[index][0]}"

    def digest(self, index: int) -> str:
        """Return the SHA-256 of the image's content in hex, from the index."""
        return self._places[index][3]

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it is too large, or the shard unreadable or changed."""
        file, record, size, digest = self._places[index]
        if size > self._max_bytes:
            raise BadInput(f"{self.name(index)}: {size} bytes, more than {self._max_bytes}")
        try:
            content = self._reader(file).read([record])[0]
            if self._unpack is not None:
                content = self._unpack(content)
        # ArrayRecord and tensorflow_datasets raise a dozen types on a damaged file.
        except Exception as error:
            raise BadInput(f"{self.name(index)}: cannot be read ({str(error)[:200]}); {_CHANGED}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadInput(f"{self.name(index)}: the image does not have its SHA-256; {_CHANGED}")
        return content

    def _reader(self, file: str) -> Any:
        with self._lock:
            reader = self._readers.pop(file, None)
            if reader is None:
                from array_record.python.array_record_module import ArrayRecordReader  # only shards need it

                reader = ArrayRecordReader(
                    str(self._root / file), options=_READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER_BYTES
                )
            self._readers[file] = reader  # the least recently used comes first
            if len(self._readers) > _MOST_OPEN:
                # Not closed here: another thread may be reading from it. Dropping the last reference closes it.
                del self._readers[next(iter(self._readers))]
        return reader
