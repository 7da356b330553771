"""Images in ArrayRecord shards: their index, and a reader that verifies each image against its SHA-256.

`image_shards.json`, written last, indexes them; `data.tfds` writes other shards, which `ShardFiles` reads as well.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.images.image_files import folder_files, set_aside_cases
from stepcot_jax.data.reasons import Reasons, note_oddities
from stepcot_jax.data.records import records
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.data.splits.split_resolver import TABLE_SUFFIXES
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, digest_file, make_workdir, read_file, read_json, write_whole
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.record import Record, SetAside

INDEX_NAME = "image_shards.json"
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 32_768
_MOST_OPEN = 128
_CHANGED = "the shard has changed since it was written: copy it again or write the shards anew"


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard; `paths`, `sizes` and `digests` have an item for each record, in order."""

    file: Annotated[str, msgspec.Meta(pattern=r"^images-[0-9]{5}\.array_record$")]
    num_bytes: int
    sha256: Digest
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    digests: tuple[Digest, ...]

    def __post_init__(self) -> None:
        if not len(self.paths) == len(self.sizes) == len(self.digests):
            raise BadInput(f"the entry of {self.file} is incomplete or damaged")


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a folder."""

    version: Literal[1] = 1
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
    expected = "expected the index that `stepcot data shards` writes"
    index = read_json(path, ShardIndex, accepted=expected, max_bytes=MAX_LISTING_BYTES)
    paths = [image for entry in index.shards for image in entry.paths]
    if len(set(paths)) != len(paths):
        raise BadInput(f"{path}: an image is listed twice; {expected}")
    for entry in index.shards:
        check_size(Path(root) / entry.file, entry.num_bytes)
    return index


def check_size(path: Path, num_bytes: int) -> None:
    """Raise `BadInput` for a shard that is missing or whose size has changed since it was written."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected a shard of {num_bytes} bytes") from None
    if size != num_bytes:
        raise BadInput(f"{path}: {size} bytes instead of {num_bytes}; {_CHANGED}")


def find_missing(index: ShardIndex, paths: Iterable[str]) -> dict[int, str]:
    """Return the positions of the image paths that are not in the shards, each with its reason."""
    reasons = dict(index.set_aside)
    sharded = {path for entry in index.shards for path in entry.paths}
    absent = f"the image is not in the shards ({INDEX_NAME})"
    return {position: reasons.get(path, absent) for position, path in enumerate(paths) if path not in sharded}


def open_sharded(
    collection: Collection, *, on_bad_record: OnBadRecord, max_pixels: int
) -> tuple[Collection, "ShardFiles"]:
    """Open the shards next to a collection's records; records without an image there are set aside."""
    index = read_index(collection.root)
    missing = find_missing(index, collection.cases.image_paths)
    collection = set_aside_cases(collection, missing, on_bad_record=on_bad_record)
    paths = tuple(collection.cases.image_paths)
    return collection, ShardFiles(collection.root, index, paths, max_bytes=most_bytes(max_pixels))


class ShardFiles:
    """Images in shards, each verified against its SHA-256 when it is read; picklable."""

    def __init__(
        self,
        root: Path,
        index: ShardIndex,
        paths: Sequence[str],
        *,
        max_bytes: int,
        unpack: Callable[[bytes], bytes] | None = None,
    ) -> None:
        locations = {
            path: (entry.file, record, size, digest)
            for entry in index.shards
            for record, (path, size, digest) in enumerate(zip(entry.paths, entry.sizes, entry.digests, strict=True))
        }
        for path in paths:
            if path not in locations:
                raise BadInput(f"{root / INDEX_NAME}: no image {path[:80]!r}")
        self._root, self._max_bytes, self._unpack, self._paths = root, max_bytes, unpack, tuple(paths)
        self._locations = tuple(locations[path] for path in paths)
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._readers: dict[str, Any] = {}
        self._lock = threading.Lock()

    def name(self, index: int) -> str:
        """Return the image's path and its shard."""
        return f"{self._paths[index]} in {self._root / self._locations[index][0]}"

    def digest(self, index: int) -> str:
        """Return the SHA-256 of the image's content in hex, from the index."""
        return self._locations[index][3]

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it is too large, or the shard unreadable or changed."""
        file, record, size, digest = self._locations[index]
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


# Shards are written one after the other. After each shard a note lists its content: a restart continues after the last
# noted shard, and rewrites a shard without a note. The index replaces the notes at the end.

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
    """Writes the image files of a collection to a folder, which must exist; see `make_shards`."""

    collection: records.Collection
    folder: Path
    source: str
    on_bad_record: records.OnBadRecord
    max_pixels: int
    shard_bytes: int
    num_threads: int
    notes: list[tuple[int, str]] = dataclasses.field(default_factory=list)  # DICOM notes of cases, by their index

    def write(self, progress: Callable[[Sequence[Record]], Iterable[Record]]) -> tuple[ShardIndex, int]:
        """Write the remaining shards; until `finish`, readers do not see them. `progress` wraps the remaining cases."""
        if (self.folder / INDEX_NAME).exists():
            index = read_index(self.folder)
            self._check_source(index.source)
            return index, sum(len(entry.paths) for entry in index.shards)
        notes = self._read_notes()
        num_earlier = sum(len(note.entry.paths) for note in notes if note.entry)
        first = sum(note.num_covered for note in notes)
        left = self.collection.cases[first:]
        items = enumerate(progress(left) if left else (), first)
        contents = map_in_threads(self._read, items, num_threads=self.num_threads)
        with contextlib.closing(contents):  # type: ignore[type-var]
            for item, content in contents:
                notes.append(self._write_shard(len(notes), itertools.chain([(item, content)], contents)))
        set_aside = tuple(aside for note in notes for aside in note.set_aside)
        shards = tuple(note.entry for note in notes if note.entry)
        return ShardIndex(source=self.source, shards=shards, set_aside=set_aside), num_earlier

    def finish(self, index: ShardIndex) -> None:
        """Write the index, after which readers use the shards, and delete the notes."""
        with _as_bad_input(self.folder):
            if not (self.folder / INDEX_NAME).exists():
                write_whole(self.folder / INDEX_NAME, msgspec.json.encode(index))
            for path in (*self.folder.glob("images-*.json"), *self.folder.glob(".images-*.partial")):
                path.unlink(missing_ok=True)

    def _read(self, item: tuple[int, Record]) -> bytes | BadInput:
        images = folder_files(self.collection, max_pixels=self.max_pixels)
        try:
            content = images.read(item[0])
            found = list[str]()
            decode_picture(content, name=images.name(item[0]), max_pixels=self.max_pixels, note=found.append)
            self.notes.extend((item[0], note) for note in found)
        except BadInput as error:
            return error
        return content

    def _write_shard(self, number: int, contents: Iterator[tuple[tuple[int, Record], bytes | BadInput]]) -> _Note:
        from array_record.python.array_record_module import ArrayRecordWriter  # only shards need it

        path = self.folder / shard_name(number)
        partial = path.with_name(f".{path.name}.partial")
        rows: list[tuple[str, int, str]] = []
        set_aside: list[tuple[str, str]] = []
        num_bytes = 0
        try:
            with _as_bad_input(path):
                writer: Any = ArrayRecordWriter(str(partial), _WRITER_OPTIONS)
                for (index, case), content in contents:
                    if isinstance(content, BadInput):
                        if self.on_bad_record == "stop":
                            set_aside_cases(self.collection, {index: str(content)}, on_bad_record="stop")  # raises
                        set_aside.append((case.image, str(content)))
                        continue
                    writer.write(content)
                    rows.append((case.image, len(content), hashlib.sha256(content).hexdigest()))
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
        notes: list[_Note] = []
        first = 0
        while (path := (self.folder / shard_name(len(notes))).with_suffix(".json")).exists():
            note = read_json(
                path, _Note, accepted="delete the folder and write the shards anew", max_bytes=MAX_LISTING_BYTES
            )
            self._check_source(note.source)
            covered = self.collection.cases[first : first + note.num_covered]
            paths = [*(note.entry.paths if note.entry else ()), *(image for image, _ in note.set_aside)]
            if sorted(paths) != sorted(case.image for case in covered):
                raise BadInput(f"{path}: lists other images than the records; use a new folder")
            if note.entry:
                actual = None
                with contextlib.suppress(OSError):
                    actual = digest_file(self.folder / note.entry.file)
                if actual != (note.entry.num_bytes, note.entry.sha256):
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
def _as_bad_input(path: Path) -> Iterator[None]:
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
    with _as_bad_input(folder), (folder / ".lock").open("w") as file:
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
    """Write a folder's images into shards, with records and split tables; return lines that describe them."""
    from stepcot_jax.data.sources.loading import read_source  # for writing alone

    if has_shards(root):
        raise BadInput(f"{root} has shards already ({INDEX_NAME}); a folder with image files is required")
    if resolve(out) == resolve(root):
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
        index, num_earlier = writer.write(lambda left: terminal.watch(left, "writing shards"))
        oddities = Reasons()
        for case, note in sorted(writer.notes):
            oddities.append(SetAside(collection.record_numbers[case], cases.image_paths[case], note))
        missing = find_missing(index, cases.image_paths)
        set_aside = set_aside_cases(collection, missing, on_bad_record="skip").set_aside
        with _as_bad_input(out):
            write_whole(out / FILE_NAME, content)
            for name in (name + suffix for name in SPLIT_NAMES for suffix in TABLE_SUFFIXES):
                if (collection.root / name).is_file():
                    write_whole(out / name, read_file(collection.root / name, max_bytes=_MOST_RECORD_BYTES))
            if set_aside:
                records.write_quarantine(out / _QUARANTINE_NAME, set_aside)
        writer.finish(index)
    names = tuple(step.name for step in chain.steps)
    return _describe(index, num_earlier, out, names=names, num_set_aside=len(set_aside)) + note_oddities(oddities)


def _describe(
    index: ShardIndex, num_earlier: int, out: Path, *, names: tuple[str, ...], num_set_aside: int
) -> list[str]:
    num_images = sum(len(entry.paths) for entry in index.shards)
    lines = [f"{num_images} images in {len(index.shards)} shards in {out}, {num_earlier} of them from an earlier start"]
    if names != records.PUBLISHED_STEP_NAMES:
        lines.append(f"data.json has no step names: read it with config.data.step_names={names}")
    if num_set_aside:
        lines.append(f"{num_set_aside} records are set aside, each with its reason in {out / _QUARANTINE_NAME}")
    return lines
