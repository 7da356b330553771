"""Write the images of a collection into ArrayRecord shards: each image decoded once, each shard whole, resumable.

Shards are written one after the other. After each shard comes a note that lists its content: a restart continues
behind the last noted shard, and rewrites a shard without a note. The index replaces the notes at the end.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.images.image_check import numbers_by_path
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture
from stepcot_jax.data.images.image_files import ImageFiles
from stepcot_jax.data.images.image_shards import INDEX_NAME, ShardEntry, ShardIndex, check_entry, read_index, shard_name
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_json, write_whole
from stepcot_jax.host.threads import map_in_threads

Progress = Callable[[Sequence[Case]], Iterable[Case]]

_WRITER_OPTIONS = "group_size:1,uncompressed"  # one image a chunk, for random access; images are compressed already
_LOCK_NAME = ".lock"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one shard; `set_aside` as in `ShardIndex`, `entry` is None if every image was set aside."""

    source: str
    entry: ShardEntry | None
    set_aside: tuple[tuple[str, str], ...]

    @property
    def num_covered(self) -> int:
        return len(self.set_aside) + (len(self.entry.paths) if self.entry else 0)


@dataclasses.dataclass(frozen=True)
class ShardWriter:
    """Writes the images of a collection to a folder.

    Attributes:
      collection: the cases.
      images: their images.
      folder: for the shards; it must exist.
      source: SHA-256 of the records; a folder with shards of other records is refused.
      on_bad_record: "stop" at the first image that cannot be decoded, or "skip" it.
      max_pixels: largest accepted width times height of an image.
      shard_bytes: a shard ends with the image that reaches this size.
      num_threads: images decoded at the same time.
    """

    collection: Collection
    images: ImageFiles
    folder: Path
    source: str
    on_bad_record: OnBadRecord = "stop"
    max_pixels: int = MAX_PIXELS
    shard_bytes: int = 256 * 2**20
    num_threads: int = 2

    def write(self, progress: Progress | None = None) -> tuple[ShardIndex, int]:
        """Write the remaining shards; until `finish`, readers do not see them.

        Args:
          progress: wraps the remaining cases, as progress bars do.

        Returns:
          The index of all shards, and the number of images that an earlier start had written.

        Raises:
          BadInput: an image cannot be decoded, or none can; the folder is not writable or has other shards.
        """
        if (self.folder / INDEX_NAME).exists():
            index = read_index(self.folder)
            self._check_source(index.source)
            return index, sum(len(entry.paths) for entry in index.shards)
        notes = self._read_notes()
        num_found = sum(len(note.entry.paths) for note in notes if note.entry)
        first = sum(note.num_covered for note in notes)
        left = self.collection.cases[first:]
        watched: Iterable[Case] = left if progress is None or not left else progress(left)
        contents = map_in_threads(self._read, enumerate(watched, first), num_threads=self.num_threads)
        with contextlib.closing(contents):  # type: ignore[type-var]
            for item, content in contents:
                notes.append(self._write_shard(len(notes), itertools.chain([(item, content)], contents)))
        set_aside = tuple(aside for note in notes for aside in note.set_aside)
        shards = tuple(note.entry for note in notes if note.entry)
        if not shards:
            raise self._refusal(*set_aside[0], num_good=0)
        return ShardIndex(source=self.source, shards=shards, set_aside=set_aside), num_found

    def finish(self, index: ShardIndex) -> None:
        """Write the index, after which readers use the shards, and delete the notes."""
        with saying_what_fails(self.folder):
            if not (self.folder / INDEX_NAME).exists():
                write_whole(self.folder / INDEX_NAME, msgspec.json.encode(index))
            for path in (*self.folder.glob("images-*.json"), *self.folder.glob(".images-*.partial")):
                path.unlink(missing_ok=True)

    def _read(self, item: tuple[int, Case]) -> bytes | BadInput:
        try:
            content = self.images.read(item[0])
            decode_picture(content, name=self.images.name(item[0]), max_pixels=self.max_pixels)
        except BadInput as error:
            return error
        return content

    def _write_shard(self, number: int, contents: Iterator[tuple[tuple[int, Case], bytes | BadInput]]) -> _Note:
        """Write one shard from the next images, and its note."""
        from array_record.python.array_record_module import ArrayRecordWriter  # only shards need it

        path = self.folder / shard_name(number)
        partial = path.with_name(f".{path.name}.partial")
        rows: list[tuple[str, int, str]] = []
        set_aside: list[tuple[str, str]] = []
        num_bytes = 0
        try:
            with saying_what_fails(path):
                writer: Any = ArrayRecordWriter(str(partial), _WRITER_OPTIONS)
                for (_, case), content in contents:
                    if isinstance(content, BadInput):
                        set_aside.append((case.image_path, str(content)))
                        if self.on_bad_record == "stop":
                            raise self._refusal(*set_aside[0], num_good=len(self.collection.cases) - 1)
                        continue
                    writer.write(content)
                    rows.append((case.image_path, len(content), hashlib.sha256(content).hexdigest()))
                    num_bytes += len(content)
                    if num_bytes >= self.shard_bytes:
                        break
                writer.close()
                entry = _publish_shard(partial, path, rows) if rows else None
                note = _Note(source=self.source, entry=entry, set_aside=tuple(set_aside))
                write_whole(path.with_suffix(".json"), msgspec.json.encode(note))
        finally:
            partial.unlink(missing_ok=True)
        return note

    def _read_notes(self) -> list[_Note]:
        """Read the notes of the finished shards and verify the shards."""
        notes: list[_Note] = []
        first = 0
        while (path := (self.folder / shard_name(len(notes))).with_suffix(".json")).exists():
            note = read_json(path, _Note, accepted="delete the folder and write the shards anew")
            self._check_source(note.source)
            covered = self.collection.cases[first : first + note.num_covered]
            paths = [*(note.entry.paths if note.entry else ()), *(place for place, _ in note.set_aside)]
            if sorted(paths) != sorted(case.image_path for case in covered):
                raise BadInput(f"{path}: lists other images than the records; use a new folder")
            if note.entry and not _is_whole(self.folder, note.entry, path):
                break  # this shard and the later ones are written again
            notes.append(note)
            first += note.num_covered
        return notes

    def _check_source(self, source: str) -> None:
        if source != self.source:
            raise BadInput(f"{self.folder}: has shards of other records; use a new folder or the same records")

    def _refusal(self, image_path: str, reason: str, *, num_good: int) -> BadInput:
        aside = SetAside(numbers_by_path(self.collection)[image_path], image_path, reason)
        path = self.collection.root / self.collection.file
        return BadInput(describe_bad_records(path, [aside], num_good=num_good))


def _publish_shard(partial: Path, path: Path, rows: Sequence[tuple[str, int, str]]) -> ShardEntry:
    """Move a written shard to its final name once it is on the disk."""
    num_bytes, sha256 = digest_file(partial, sync=True)
    partial.replace(path)
    paths, sizes, digests = zip(*rows, strict=True)
    return ShardEntry(file=path.name, num_bytes=num_bytes, sha256=sha256, paths=paths, sizes=sizes, digests=digests)


def _is_whole(folder: Path, entry: ShardEntry, note: Path) -> bool:
    check_entry(entry, where=note)
    try:
        return digest_file(folder / entry.file) == (entry.num_bytes, entry.sha256)
    except OSError:
        return False


@contextlib.contextmanager
def saying_what_fails(path: Path) -> Iterator[None]:
    """Turn write errors, such as a full disk or missing permission, into `BadInput`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError as error:  # ArrayRecord raises nothing else
        reason = str(error)[:200]
    else:
        return
    raise BadInput(
        f"{path}: cannot be written ({reason}); a writable folder with enough space is required; "
        "the same command resumes behind the finished shards"
    )


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder against a second writing process; the lock ends with the process.

    Raises:
      BadInput: another process holds the lock.
    """
    with saying_what_fails(folder), (folder / _LOCK_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: another process is writing shards there; wait for it to end") from None
        yield
