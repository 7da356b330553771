"""Write a folder's images into ArrayRecord shards: each image decoded once, each shard whole, resumable.

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

from stepcot_jax.data.images import image_shards
from stepcot_jax.data.images.image_decoding import decode_picture
from stepcot_jax.data.images.image_files import folder_files, set_aside_cases
from stepcot_jax.data.images.image_shards import INDEX_NAME, ShardEntry, ShardIndex, shard_name
from stepcot_jax.data.records import records
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.split_resolver import TABLE_SUFFIXES
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, digest_file, make_workdir, read_file, read_json, write_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.threads import map_in_threads

_WRITER_OPTIONS = "group_size:1,uncompressed"  # one image a chunk, for random access; images are compressed already
_MOST_RECORD_BYTES = 2**34
_QUARANTINE_NAME = "quarantine.jsonl"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one shard; `set_aside` as in `ShardIndex`, `entry` is None if every image was set aside."""

    source: str
    entry: ShardEntry | None
    set_aside: tuple[tuple[str, str], ...]

    @property
    def num_covered(self) -> int:
        return len(self.set_aside) + (len(self.entry.paths) if self.entry else 0)


@dataclasses.dataclass(frozen=True)
class _ShardWriter:
    """Writes the image files of a collection to a folder, which must exist; see `make_shards`.

    `source` is the SHA-256 of the records: a folder with shards of other records is refused.
    """

    collection: records.Collection
    folder: Path
    source: str
    on_bad_record: records.OnBadRecord
    max_pixels: int
    shard_bytes: int
    num_threads: int

    def write(self, progress: Callable[[Sequence[Case]], Iterable[Case]]) -> tuple[ShardIndex, int]:
        """Write the remaining shards; until `finish`, readers do not see them. `progress` wraps the remaining cases.

        Returns:
          The index of all shards, and the number of images that an earlier start had written.
        """
        if (self.folder / INDEX_NAME).exists():
            index = image_shards.read_index(self.folder)
            self._check_source(index.source)
            return index, sum(len(entry.paths) for entry in index.shards)
        notes = self._read_notes()
        num_found = sum(len(note.entry.paths) for note in notes if note.entry)
        first = sum(note.num_covered for note in notes)
        left = self.collection.cases[first:]
        items = enumerate(progress(left) if left else (), first)
        contents = map_in_threads(self._read, items, num_threads=self.num_threads)
        with contextlib.closing(contents):  # type: ignore[type-var]
            for item, content in contents:
                notes.append(self._write_shard(len(notes), itertools.chain([(item, content)], contents)))
        set_aside = tuple(aside for note in notes for aside in note.set_aside)
        shards = tuple(note.entry for note in notes if note.entry)
        return ShardIndex(source=self.source, shards=shards, set_aside=set_aside), num_found

    def finish(self, index: ShardIndex) -> None:
        """Write the index, after which readers use the shards, and delete the notes."""
        with _saying_what_fails(self.folder):
            if not (self.folder / INDEX_NAME).exists():
                write_whole(self.folder / INDEX_NAME, msgspec.json.encode(index))
            for path in (*self.folder.glob("images-*.json"), *self.folder.glob(".images-*.partial")):
                path.unlink(missing_ok=True)

    def _read(self, item: tuple[int, Case]) -> bytes | BadInput:
        images = folder_files(self.collection, max_pixels=self.max_pixels)
        try:
            content = images.read(item[0])
            decode_picture(content, name=images.name(item[0]), max_pixels=self.max_pixels)
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
            with _saying_what_fails(path):
                writer: Any = ArrayRecordWriter(str(partial), _WRITER_OPTIONS)
                for (place, case), content in contents:
                    if isinstance(content, BadInput):
                        if self.on_bad_record == "stop":
                            set_aside_cases(self.collection, {place: str(content)}, on_bad_record="stop")  # raises
                        set_aside.append((case.image_path, str(content)))
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
            note = read_json(
                path, _Note, accepted="delete the folder and write the shards anew", max_bytes=MAX_LISTING_BYTES
            )
            self._check_source(note.source)
            covered = self.collection.cases[first : first + note.num_covered]
            paths = [*(note.entry.paths if note.entry else ()), *(place for place, _ in note.set_aside)]
            if sorted(paths) != sorted(case.image_path for case in covered):
                raise BadInput(f"{path}: lists other images than the records; use a new folder")
            if note.entry:
                image_shards.check_entry(note.entry, where=path)
                found = None
                with contextlib.suppress(OSError):
                    found = digest_file(self.folder / note.entry.file)
                if found != (note.entry.num_bytes, note.entry.sha256):
                    break  # this shard and the later ones are written again
            notes.append(note)
            first += note.num_covered
        return notes

    def _check_source(self, source: str) -> None:
        if source != self.source:
            raise BadInput(f"{self.folder}: has shards of other records; use a new folder or the same records")


def _publish_shard(partial: Path, path: Path, rows: Sequence[tuple[str, int, str]]) -> ShardEntry:
    """Move a written shard to its final name once it is on the disk."""
    num_bytes, sha256 = digest_file(partial, sync=True)
    partial.replace(path)
    paths, sizes, digests = zip(*rows, strict=True)
    return ShardEntry(file=path.name, num_bytes=num_bytes, sha256=sha256, paths=paths, sizes=sizes, digests=digests)


@contextlib.contextmanager
def _saying_what_fails(path: Path) -> Iterator[None]:
    """Turn write errors, such as a full disk or missing permission, into `BadInput`."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # ArrayRecord raises RuntimeError
        reason = getattr(error, "strerror", None) or str(error)[:200]
        raise BadInput(
            f"{path}: cannot be written ({reason}); a writable folder with enough space is required; "
            "the same command resumes behind the finished shards"
        ) from None


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder against a second writing process, which gets `BadInput`; the lock ends with the process."""
    with _saying_what_fails(folder), (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{folder}: another process is writing shards there; wait for it to end") from None
        yield


def make_shards(
    root: Path,
    out: Path,
    *,
    reading: dict[str, Any],
    max_pixels: int,
    shard_bytes: int,
    num_threads: int,
    terminal: Terminal,
) -> list[str]:
    """Write a folder's images into shards, and its records and split tables next to them: a data root for fast starts.

    Args:
      root: folder or file in any layout, with image files.
      out: a new folder, or one in which this was interrupted.
      reading: keyword arguments of `layouts.read_source`; "on_bad_record" is also for images that cannot be decoded.
      max_pixels: largest accepted width times height of an image.
      shard_bytes: a shard ends with the image that reaches this size.
      num_threads: images decoded at the same time.
      terminal: shows progress.

    Returns:
      What was written, in lines.

    Raises:
      BadInput: the records are invalid, `root` has shards already, or `out` cannot be used.
    """
    if image_shards.has_shards(root):
        raise BadInput(f"{root} has shards already ({INDEX_NAME}); a folder with image files is required")
    if out.resolve() == root.resolve():
        raise BadInput(f"--out: {out} is the folder that is read; another one is required")
    collection = read_source(root, **reading)
    make_workdir(out)
    with only_writer(out):
        published, chain, cases = collection.layout == "published", collection.chain, collection.cases
        content = (
            read_file(collection.path, max_bytes=_MOST_RECORD_BYTES)
            if published
            else records.encode_records(chain, cases)
        )
        source = hashlib.sha256(content).hexdigest()
        writer = _ShardWriter(collection, out, source, reading["on_bad_record"], max_pixels, shard_bytes, num_threads)
        index, num_found = writer.write(lambda left: terminal.watch(left, "writing shards"))
        missing = image_shards.find_missing(index, cases.image_paths)
        set_aside = set_aside_cases(collection, missing, on_bad_record="skip").set_aside
        with _saying_what_fails(out):
            write_whole(out / FILE_NAME, content)
            for name in (name + suffix for name in SPLIT_NAMES for suffix in TABLE_SUFFIXES):
                if (collection.root / name).is_file():
                    write_whole(out / name, read_file(collection.root / name, max_bytes=_MOST_RECORD_BYTES))
            if set_aside:
                records.write_quarantine(out / _QUARANTINE_NAME, set_aside)
        writer.finish(index)
    return _describe(
        index, num_found, out, names=tuple(step.name for step in chain.steps), num_set_aside=len(set_aside)
    )


def _describe(index: ShardIndex, num_found: int, out: Path, *, names: tuple[str, ...], num_set_aside: int) -> list[str]:
    """Return what was written, in lines."""
    num_images = sum(len(entry.paths) for entry in index.shards)
    said = [f"{num_images} images in {len(index.shards)} shards in {out}, {num_found} of them from an earlier start"]
    if names != records.PUBLISHED_STEP_NAMES:
        said.append(f"data.json has no step names: read it with config.data.step_names={names}")
    if num_set_aside:
        said.append(f"{num_set_aside} records are set aside, each with its reason in {out / _QUARANTINE_NAME}")
    return said
