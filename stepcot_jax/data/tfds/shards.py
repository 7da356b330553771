"""Images in the ArrayRecord shards of a prepared dataset, each verified against its SHA-256 when it is read."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepcot_jax.host.errors import BadInput

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 32_768
_MOST_OPEN = 128
_CHANGED = "the shard has changed since it was written: copy it again or prepare the dataset anew"


class Location(NamedTuple):
    """Where an image is, and what it must be."""

    path: str  # of the image file that it was
    shard: str
    record: int
    size: int
    sha256: str


def check_size(path: Path, num_bytes: int) -> None:
    """Raise `BadInput` for a shard that is missing or whose size has changed since it was written."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected a shard of {num_bytes} bytes") from None
    if size != num_bytes:
        raise BadInput(f"{path}: {size} bytes instead of {num_bytes}; {_CHANGED}")


class ShardFiles:
    """Images in shards, see `ImageFiles`; picklable. `unpack` returns the image of a shard's record."""

    def __init__(
        self, root: Path, locations: Sequence[Location], *, max_bytes: int, unpack: Callable[[bytes], bytes]
    ) -> None:
        self._root, self._locations, self._max_bytes, self._unpack = root, locations, max_bytes, unpack
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._readers: dict[str, Any] = {}
        self._lock = threading.Lock()

    def name(self, index: int) -> str:
        """Return the image's path and its shard."""
        return f"{self._locations[index].path} in {self._root / self._locations[index].shard}"

    def digest(self, index: int) -> str:
        """Return the SHA-256 that the image's content must have, in hex."""
        return self._locations[index].sha256

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it is too large, or the shard unreadable or changed."""
        location = self._locations[index]
        if location.size > self._max_bytes:
            raise BadInput(f"{self.name(index)}: {location.size} bytes, more than {self._max_bytes}")
        try:
            content = self._unpack(self._reader(location.shard).read([location.record])[0])
        # ArrayRecord and tensorflow_datasets raise a dozen types on a damaged file.
        except Exception as error:
            raise BadInput(f"{self.name(index)}: cannot be read ({str(error)[:200]}); {_CHANGED}") from None
        if hashlib.sha256(content).hexdigest() != location.sha256:
            raise BadInput(f"{self.name(index)}: the image does not have its SHA-256; {_CHANGED}")
        return content

    def _reader(self, shard: str) -> Any:
        with self._lock:
            reader = self._readers.pop(shard, None)
            if reader is None:
                from array_record.python.array_record_module import ArrayRecordReader  # of the extra tfds

                reader = ArrayRecordReader(
                    str(self._root / shard), options=_READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER_BYTES
                )
            self._readers[shard] = reader  # the least recently used comes first
            if len(self._readers) > _MOST_OPEN:
                # Not closed here: another thread may be reading from it. Dropping the last reference closes it.
                del self._readers[next(iter(self._readers))]
        return reader
