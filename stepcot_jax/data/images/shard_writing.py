"""Images of a collection into ArrayRecord shards: each decoded once, each shard whole or not there, resumable.

Shards are written one after the other. Beside each finished one lies a note of what is in it, written after it: a start
that finds notes goes on behind them, and a shard without a note is written again. The index takes the notes' place at
the end.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.images.decoding import MAX_PIXELS, decode_picture
from stepcot_jax.data.images.image_check import in_threads, numbers_by_path
from stepcot_jax.data.images.image_files import ImageFiles
from stepcot_jax.data.images.image_shards import INDEX_NAME, ShardEntry, ShardIndex, check_entry, read_index, shard_name
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

Progress = Callable[[Sequence[Case]], Iterable[Case]]

_WRITER_OPTIONS = "group_size:1,uncompressed"  # one image a chunk, for random access; images are compressed already
_CHUNK_BYTES = 1 << 20
_LOCK_NAME = ".lock"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the cases that a shard covers: in it, or set aside as in `ShardIndex`; no entry, no shard."""

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
      folder: where the shards go; there already.
      source: SHA-256 of the records; a folder with shards of others is refused.
      on_bad_record: "stop" at the first image that cannot be decoded, or "skip" it.
      max_pixels: largest accepted width times height of an image.
      shard_bytes: a shard ends with the image that reaches so many.
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
        """Write what is left to write; until `finish`, no reader takes the folder for one with shards.

        Args:
          progress: wraps the cases that are left, as progress bars do.

        Returns:
          The index of all shards, and how many of the images an earlier start had written.

        Raises:
          BadInput: an image cannot be decoded, or none can; the folder cannot be written to or has other shards.
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
        contents = in_threads(lambda place, _: self._read(first + place), watched, num_threads=self.num_threads)
        with contextlib.closing(contents):  # type: ignore[type-var]
            for case, content in contents:
                notes.append(self._write_shard(len(notes), itertools.chain([(case, content)], contents)))
        set_aside = tuple(aside for note in notes for aside in note.set_aside)
        index = ShardIndex(
            source=self.source, shards=tuple(note.entry for note in notes if note.entry), set_aside=set_aside
        )
        if not index.shards:
            raise self._refusal(*set_aside[0], num_good=0)
        return index, num_found

    def finish(self, index: ShardIndex) -> None:
        """Put the index in place, after which the shards are read, and clear away the notes."""
        with saying_what_fails(self.folder):
            if not (self.folder / INDEX_NAME).exists():
                write_whole(self.folder / INDEX_NAME, msgspec.json.encode(index))
            for path in (*self.folder.glob("images-*.json"), *self.folder.glob(".images-*.partial")):
                path.unlink(missing_ok=True)

    def _read(self, index: int) -> bytes | BadInput:
        try:
            content = self.images.read(index)
            decode_picture(content, name=self.images.name(index), max_pixels=self.max_pixels)
        except BadInput as error:
            return error
        return content

    def _write_shard(self, number: int, contents: Iterator[tuple[Case, bytes | BadInput]]) -> _Note:
        """One shard from the next of the images, and its note."""
        from array_record.python.array_record_module import ArrayRecordWriter  # only shards need it

        path = self.folder / shard_name(number)
        partial = path.with_name(f".{path.name}.partial")
        rows: list[tuple[str, int, str]] = []
        set_aside: list[tuple[str, str]] = []
        num_bytes = 0
        try:
            with saying_what_fails(path):
                writer: Any = ArrayRecordWriter(str(partial), _WRITER_OPTIONS)
                for case, content in contents:
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
                entry = _name_shard(partial, path, rows) if rows else None
                note = _Note(source=self.source, entry=entry, set_aside=tuple(set_aside))
                write_whole(path.with_suffix(".json"), msgspec.json.encode(note))
        finally:
            partial.unlink(missing_ok=True)
        return note

    def _read_notes(self) -> list[_Note]:
        """The notes of the finished shards, whose content is verified."""
        notes: list[_Note] = []
        first = 0
        while (path := (self.folder / shard_name(len(notes))).with_suffix(".json")).exists():
            note = read_json(path, _Note, accepted="accepted is the note as it was written, or none")
            self._check_source(note.source)
            covered = self.collection.cases[first : first + note.num_covered]
            paths = [*(note.entry.paths if note.entry else ()), *(place for place, _ in note.set_aside)]
            if sorted(paths) != sorted(case.image_path for case in covered):
                raise BadInput(f"{path}: found other images than the records have, accepted is a new folder")
            if note.entry and not _is_whole(self.folder, note.entry, path):
                break  # written again, and what comes after it
            notes.append(note)
            first += note.num_covered
        return notes

    def _check_source(self, source: str) -> None:
        if source != self.source:
            raise BadInput(
                f"{self.folder}: found shards of other records, accepted is a new folder, or the same records"
            )

    def _refusal(self, image_path: str, reason: str, *, num_good: int) -> BadInput:
        aside = SetAside(numbers_by_path(self.collection)[image_path], image_path, reason)
        path = self.collection.root / self.collection.file
        return BadInput(describe_bad_records(path, [aside], num_good=num_good))


def _name_shard(partial: Path, path: Path, rows: Sequence[tuple[str, int, str]]) -> ShardEntry:
    """Give a written shard its name, once it is on the disk."""
    num_bytes, sha256 = _digest_file(partial, sync=True)
    partial.replace(path)
    paths, sizes, digests = zip(*rows, strict=True)
    return ShardEntry(file=path.name, num_bytes=num_bytes, sha256=sha256, paths=paths, sizes=sizes, digests=digests)


def _is_whole(folder: Path, entry: ShardEntry, note: Path) -> bool:
    check_entry(entry, where=note)
    try:
        return _digest_file(folder / entry.file) == (entry.num_bytes, entry.sha256)
    except OSError:
        return False


def _digest_file(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
        return file.tell(), digest.hexdigest()


@contextlib.contextmanager
def saying_what_fails(path: Path) -> Iterator[None]:
    """What cannot be written, and why, as `BadInput`: a full disk, a folder without permission."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError as error:  # as the ArrayRecord library raises everything
        reason = str(error)[:200]
    else:
        return
    raise BadInput(
        f"{path}: cannot be written ({reason}), accepted is a folder that can be written to, with room; "
        "the same command goes on behind the shards that are finished"
    )


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep a second process from writing to the same folder; the lock ends with the process.

    Raises:
      BadInput: another process has it.
    """
    with saying_what_fails(folder), (folder / _LOCK_NAME).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: found another process writing shards there, accepted is one at a time") from None
        yield
