"""Images in ArrayRecord shards beside a `data.json`: their index, and reading them without trusting the files.

A shard is an ArrayRecord file whose record k is the content of an image file, byte for byte. `image_shards.json` says
which image is where, with the digests of every image and every shard. It is written last: without it there are no
shards, and what does not agree with it is refused by name.
"""

import dataclasses
import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.images.image_check import record_numbers
from stepcot_jax.data.records.cases import Case, CaseTable
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

INDEX_NAME = "image_shards.json"

_VERSION = 1
_SHARD_NAME = re.compile(r"images-[0-9]{5}\.array_record")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 32_768
_MOST_OPEN = 128


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

    `source` is the SHA-256 of the records that they were made for, `set_aside` the image paths of those whose images
    could not be decoded, each with its reason.
    """

    version: int = _VERSION
    source: str
    shards: tuple[ShardEntry, ...]
    set_aside: tuple[tuple[str, str], ...] = ()


def shard_name(number: int) -> str:
    """File name of a shard.

    >>> shard_name(3)
    'images-00003.array_record'
    """
    return f"images-{number:05d}.array_record"


def has_shards(root: Path) -> bool:
    """Whether a data root keeps its images in shards."""
    return (Path(root) / INDEX_NAME).is_file()


def read_index(root: Path) -> ShardIndex:
    """The index of a folder of shards, each of which is there at its size.

    Raises:
      BadInput: the index cannot be read or makes no sense, or a shard is missing, truncated or longer than it was.
    """
    path = Path(root) / INDEX_NAME
    accepted = "accepted is an index as `python -m stepcot_jax.data shards` writes it"
    index = read_json(path, ShardIndex, accepted=accepted)
    if index.version != _VERSION:
        raise BadInput(f"{path}: found version {index.version}, accepted is {_VERSION}; make the shards anew")
    seen: set[str] = set()
    for entry in index.shards:
        check_entry(entry, where=path)
        seen.update(entry.paths)
    if len(seen) != sum(len(entry.paths) for entry in index.shards):
        raise BadInput(f"{path}: found an image in two places; {accepted}")
    for entry in index.shards:
        check_size(Path(root), entry)
    return index


def check_entry(entry: ShardEntry, *, where: Path) -> None:
    """Refuse an entry whose lists do not agree or whose file is none of our shards.

    Raises:
      BadInput: names `where`.
    """
    if not _SHARD_NAME.fullmatch(entry.file):
        raise BadInput(f"{where}: found a shard {entry.file[:80]!r}, accepted are names such as {shard_name(0)}")
    lengths = {len(entry.paths), len(entry.sizes), len(entry.digests)}
    if len(lengths) != 1 or not all(_DIGEST.fullmatch(digest) for digest in (entry.sha256, *entry.digests)):
        raise BadInput(f"{where}: found an entry of {entry.file} that is not whole, accepted is one as it was written")


def check_size(root: Path, entry: ShardEntry) -> None:
    """Refuse a shard that is missing or has another size than when it was written.

    Raises:
      BadInput: names the shard.
    """
    path = root / entry.file
    try:
        found = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}), accepted is the shard as written") from None
    if found != entry.num_bytes:
        raise BadInput(
            f"{path}: found {found} bytes, accepted is the shard as it was written, of {entry.num_bytes} bytes; "
            "copy it again or make the shards anew"
        )


def keep_sharded(collection: Collection, index: ShardIndex, *, on_bad_record: OnBadRecord) -> Collection:
    """The collection without the records whose images are not in the shards, each set aside with its reason.

    Args:
      collection: the records beside the shards.
      index: of the shards.
      on_bad_record: "stop" raises if there is such a record, "skip" sets it aside.

    Raises:
      BadInput: an image is not in the shards and `on_bad_record` is "stop", or none is.
    """
    reasons = dict(index.set_aside)
    sharded = {path for entry in index.shards for path in entry.paths}
    absent = f"found no such image in the shards ({INDEX_NAME}), accepted are those that were written there"
    cases: list[Case] = []
    missing: list[SetAside] = []
    for number, case in zip(record_numbers(collection), collection.cases, strict=True):
        if case.image_path in sharded:
            cases.append(case)
        else:
            reason = reasons.get(case.image_path, absent)
            missing.append(SetAside(number, case.image_path, reason, case.patient_id))
    if missing and (on_bad_record == "stop" or not cases):
        raise BadInput(describe_bad_records(collection.root / collection.file, missing, num_good=len(cases)))
    set_aside = sorted([*collection.set_aside, *missing], key=lambda aside: aside.record)
    return dataclasses.replace(collection, cases=CaseTable(cases), set_aside=tuple(set_aside))


class ShardFiles:
    """Images in shards; every one is checked against its digest when it is read.

    Args:
      root: folder of the shards.
      index: of the folder.
      paths: image path of each case, all in the index.
      max_bytes: a larger image file is refused before it is read.

    Raises:
      BadInput: a path is not in the index.
    """

    def __init__(self, root: Path, index: ShardIndex, paths: Sequence[str], *, max_bytes: int) -> None:
        places = {
            path: (shard, record) for shard, entry in enumerate(index.shards) for record, path in enumerate(entry.paths)
        }
        for path in paths:
            if path not in places:
                raise BadInput(f"{root / INDEX_NAME}: found no image {path[:80]!r}, accepted are those in its shards")
        self._root, self._max_bytes, self._paths = root, max_bytes, tuple(paths)
        self._places = tuple(places[path] for path in paths)
        self._sizes = tuple(index.shards[shard].sizes[record] for shard, record in self._places)
        self._digests = tuple(index.shards[shard].digests[record] for shard, record in self._places)
        self._files = tuple(entry.file for entry in index.shards)
        self._open()

    def _open(self) -> None:
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def name(self, index: int) -> str:
        """The image's path and the shard that it is in."""
        return f"{self._paths[index]} in {self._root / self._files[self._places[index][0]]}"

    def digest(self, index: int) -> str:
        """SHA-256 of the image's content in hex, as the index has it."""
        return self._digests[index]

    def read(self, index: int) -> bytes:
        """The content of an image file.

        Raises:
          BadInput: the shard cannot be read, or holds something else than when it was written.
        """
        if self._sizes[index] > self._max_bytes:
            raise BadInput(
                f"{self.name(index)}: found a file of {self._sizes[index]} bytes, accepted are at most "
                f"{self._max_bytes}"
            )
        shard, record = self._places[index]
        try:
            content = self._reader(shard).read([record])[0]
        # The library gives every failure of its own as one of these.
        except (RuntimeError, IndexError, ValueError) as error:
            raise BadInput(
                f"{self.name(index)}: cannot be read ({str(error)[:200]}), accepted is the shard as it was written"
            ) from None
        if hashlib.sha256(content).hexdigest() != self._digests[index]:
            raise BadInput(
                f"{self.name(index)}: found other content than when the shard was written, accepted is the same; "
                "copy the shard again or make the shards anew"
            )
        return content

    def _reader(self, shard: int) -> Any:
        with self._lock:
            reader = self._readers.pop(shard, None)
            if reader is None:
                from array_record.python.array_record_module import ArrayRecordReader  # only shards need it

                reader = ArrayRecordReader(
                    str(self._root / self._files[shard]),
                    options=_READER_OPTIONS,
                    file_reader_buffer_size=_READER_BUFFER_BYTES,
                )
            self._readers[shard] = reader  # last in the order of use
            if len(self._readers) > _MOST_OPEN:
                # Not closed here: another thread may be reading from it. It closes when that thread lets go of it.
                del self._readers[next(iter(self._readers))]
        return reader
