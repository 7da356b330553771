"""Copies of local folders on a store, and local copies of a store's folders: runs, data, exports, shards of features.

`mirror.json` is written last: a checkpoint that it does not name is half uploaded. No lock keeps others from writing.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping

import msgspec

from stepcot_jax.extras.cloud.stores import Stored, StoreError, StoreFolder
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import LOCK_NAME, digest_file, make_private_folder, make_workdir, read_file, wait_for_lock
from stepcot_jax.host.machine import user_folder
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import shorten

MANIFEST = "mirror.json"
UNFINISHED = "unfinished.json"
CHECKPOINTS = "checkpoints"
_LEASE = "run.lock"  # of earlier versions

_PAID = "judge/"
"""Folder of a run with answers that are paid for: files that only grow, kept when they are ahead of the store."""

_OURS = frozenset({MANIFEST, UNFINISHED, _LEASE})
_LEFT_HERE = frozenset({"features"})
_NOT_READ = frozenset({"tensorboard", "profile", "wandb", "mlartifacts", "report.html", *_LEFT_HERE})
"""Entries of a run that stay on its machine, and those that its readers do not need."""

_MOST_PAID = 2**32
_AT_ONCE = 64
_SPARE_BYTES = 2**28


class Manifest(msgspec.Struct, frozen=True):
    """Content of `mirror.json`."""

    checkpoints: dict[str, tuple[int, str]] = {}  # file of a complete checkpoint -> size and SHA-256
    files: dict[str, tuple[int, int]] = {}  # file -> size and time of modification; of `upload` alone


@dataclasses.dataclass(frozen=True)
class _Source:
    """Objects to download: those of a folder, or the single object `name`."""

    store: StoreFolder
    objects: dict[str, Stored]
    checkpoints: dict[str, tuple[int, str]]
    name: str = ""

    def require_undamaged(self, folder: pathlib.Path) -> None:
        """Compare the checkpoints of a copy with their digests."""
        if damaged := find_damaged(folder, self.checkpoints):
            raise BadInput(
                f"{self.store.address}/{damaged[0]}: is not as it was written, by the digests in {MANIFEST} (a run "
                "that goes on may have removed it: try again)"
            )


def download(address: str, folder: pathlib.Path | None = None) -> pathlib.Path:
    """Download a folder or a file (the hook `scheme`); None as folder: what readers need, to the user's cache."""
    source = _find_source(address, is_all=folder is not None)
    if folder is None:
        return _download_to_cache(address, source) / source.name
    make_workdir(folder)
    for name, stored in source.objects.items():
        if (folder / name).exists() and _size_of(folder / name) != stored.size:
            raise BadInput(
                f"{folder / name}: not the file of {stored.size} bytes that {address} has; nothing is overwritten: "
                "remove it, or choose another folder"
            )
    number = copy_missing(source.store, source.objects, folder)
    source.require_undamaged(folder)
    Terminal().say(f"{folder}: {number} files copied")
    return folder


def _find_source(address: str, *, is_all: bool = False) -> _Source:
    store = StoreFolder(address)
    listing = store.list()
    if not listing:
        parent, _, name = store.address.rpartition("/")
        if parent.count("/") > 2 and (stored := StoreFolder(parent).look_up(name)) is not None:
            return _Source(StoreFolder(parent), {name: stored}, {}, name)
        raise BadInput(f"{store.address}: holds no files; expected a folder or a file on the store")
    checkpoints = _read_manifest(store).checkpoints if MANIFEST in listing else {}
    for name in listing:
        if name == UNFINISHED or (name.endswith(f"/{UNFINISHED}") and not checkpoints):
            raise BadInput(
                f"{store.address}: holds {name}, so its upload is going on or was interrupted (run the command that "
                "uploads it again)"
            )
    skipped = _NOT_READ if checkpoints and not is_all else frozenset()
    objects = {
        name: stored
        for name, stored in listing.items()
        if name not in _OURS
        and (MANIFEST not in listing or not _is_checkpoint(name) or name in checkpoints)
        and name.partition("/")[0] not in skipped
    }
    return _Source(store, objects, checkpoints)


def _download_to_cache(address: str, source: _Source) -> pathlib.Path:
    """Return the copy in `~/.cache/stepcot_jax/stores`, named by the listing; an interrupted download resumes."""
    store, objects = source.store, source.objects
    cache, title = _cache_folder("stores"), store.address.rpartition("/")[2]
    lines = [store.address, *(f"{name}\0{stored.size}\0{stored.tag}" for name, stored in sorted(objects.items()))]
    entry = cache / _digest("\n".join(lines))
    folder, owner = entry / title, _digest(store.address)[:16]
    if folder.is_dir():
        return folder
    terminal = Terminal()
    with wait_for_lock(
        cache / f".lock-{owner}", say=lambda: terminal.say(f"{store.address}: another process is downloading it")
    ):
        if folder.is_dir():
            return folder
        partial = cache / f".partial-{owner}-{entry.name}"
        for stale in cache.glob(f".partial-{owner}-*"):
            if stale != partial:  # of an earlier listing
                shutil.rmtree(stale)
        (partial / title).mkdir(parents=True, exist_ok=True)
        size = sum(stored.size for stored in objects.values())
        terminal.say(f"{address}: downloading {len(objects)} files, {size / 1e6:.1f} MB, to {folder}")
        copy_missing(store, objects, partial / title)
        try:
            source.require_undamaged(partial / title)
            if not source.checkpoints and _find_source(address).objects != objects:  # a run that goes on changes
                raise BadInput(f"{address}: has changed while it was downloaded; try again")
        except BadInput:
            shutil.rmtree(partial)
            raise
        partial.rename(entry)
    return folder


def copy_missing(store: StoreFolder, objects: Mapping[str, Stored], folder: pathlib.Path) -> int:
    """Copy the objects that a folder does not have with the same size, each atomically; return their number."""
    missing = [name for name in sorted(objects) if _size_of(folder / name) != objects[name].size]
    size, free = sum(objects[name].size for name in missing), shutil.disk_usage(folder).free
    if missing and size + _SPARE_BYTES > free:
        raise BadInput(f"{store.address}: the files to copy take {size} bytes; {folder} has {free} free")
    terminal = Terminal()
    with terminal.bar(f"download, {size / 1e6:.1f} MB", total=len(missing)):
        for start in range(0, len(missing), _AT_ONCE):
            names = missing[start : start + _AT_ONCE]
            partials = {name: (folder / name).with_name(f".{pathlib.PurePath(name).name}.partial") for name in names}
            store.download(partials)
            for name, path in partials.items():
                if path.stat().st_size != objects[name].size:
                    raise StoreError(
                        f"{store.address}/{name}: {path.stat().st_size} bytes came, {objects[name].size} were listed; "
                        "it has changed or was cut off: try again"
                    )
                path.replace(folder / name)
            terminal.update(start + len(names))
    return len(missing)


def upload(folder: pathlib.Path, address: str) -> tuple[int, int]:
    """Upload a folder; return the number of files that were uploaded and of those with the size and time of before."""
    store, files = StoreFolder(address), list_files(folder)
    if not files:
        raise BadInput(f"{folder}: holds no files to upload")
    listing = store.list()
    before = _read_manifest(store) if MANIFEST in listing else Manifest()
    marks = {name: mark_file(path) for name, path in files.items()}
    same = {
        name
        for name, mark in marks.items()
        if before.files.get(name) == mark and name in listing and listing[name].size == mark[0]
    }
    changed = files.keys() - same
    if changed or UNFINISHED in listing or MANIFEST not in listing:
        store.write(UNFINISHED, b"{}")
        _upload_in_order(store, {name: files[name] for name in changed})
        _write_manifest(store, {name: digest_once(files[name]) for name in files if _is_checkpoint(name)}, marks)
        store.remove([UNFINISHED])
    return len(changed), len(same)


class Remote:
    """A local folder that becomes a copy of one on a store, but for paid answers; `only_adds` removes nothing."""

    def __init__(self, address: str, *, say: Callable[[str], None], part: str = "", only_adds: bool = False) -> None:
        self._store, self._say, self._only_adds = StoreFolder(address), say, only_adds
        self.address, self.is_behind = self._store.address, False
        kind = "features" if only_adds else "runs"
        self.folder = _cache_folder(kind) / _digest(f"{self.address} {part}".rstrip())
        make_private_folder(self.folder)
        self._pushed: dict[str, tuple[int, int]] = {}
        self._checkpoints: dict[str, tuple[int, str]] = {}

    def start(self) -> None:
        """Download the store's files."""
        listing = self._store.list()
        if self._only_adds:
            shards = {name: stored for name, stored in listing.items() if "/" not in name and _is_shard_file(name)}
            copy_missing(self._store, shards, self.folder)
            self._pushed = {name: mark_file(self.folder / name) for name in shards}
            return
        if MANIFEST not in listing:
            others = [name for name in listing if name not in _OURS and name.partition("/")[0] not in _LEFT_HERE]
            if others:
                raise BadInput(
                    f"{self.address}: holds {min(others)} and no {MANIFEST}; expected an empty folder, or one of a run"
                )
            _write_manifest(self._store, {}, {})  # so that a store without write access fails before the work
        self._bring(listing, _read_manifest(self._store).checkpoints)

    def _bring(self, listing: Mapping[str, Stored], complete: dict[str, tuple[int, str]]) -> None:
        here = self._list_files()
        kept = {
            name
            for name, path in here.items()
            if (_is_as(path, complete[name]) if name in complete else self._continues(name, path))
        }
        for name in here.keys() - kept:
            here[name].unlink()
        wanted = {
            name: stored
            for name, stored in listing.items()
            if (name in complete if _is_checkpoint(name) else name not in _OURS)
            and name.partition("/")[0] not in _LEFT_HERE
        }
        copy_missing(self._store, {name: stored for name, stored in wanted.items() if name not in kept}, self.folder)
        damaged = find_damaged(self.folder, complete)
        if damaged and len(damaged) == len({_checkpoint_of(name) for name in complete}):
            raise StoreError(
                f"{self.address}: no checkpoint is as it was written ({MANIFEST} has their digests); nothing was "
                "changed there; a new workdir starts over"
            )
        for checkpoint in damaged:
            shutil.rmtree(self.folder / checkpoint, ignore_errors=True)
            self._say(f"warning: {self.address}/{checkpoint}: not as it was written, by its digests; left out")
        for path in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
            if not any(path.iterdir()):  # an empty checkpoint would count as one
                path.rmdir()
        self._checkpoints = {name: entry for name, entry in complete.items() if _checkpoint_of(name) not in damaged}
        there = (name for name in wanted if _size_of(self.folder / name) == wanted[name].size)
        self._pushed = {name: mark_file(self.folder / name) for name in there}

    def _continues(self, name: str, path: pathlib.Path) -> bool:
        """Return whether a file has answers that are paid for and begins with the store's object of its name."""
        if not name.startswith(_PAID):
            return False
        stored = self._store.read(name) or b""
        return read_file(path, max_bytes=_MOST_PAID, accepted="answers of a model").startswith(stored)

    def saved(self) -> None:
        """Upload changed files; if the store fails, a run tries again at its next checkpoint."""
        try:
            self._push()
        except StoreError as error:
            if self._only_adds:
                raise StoreError(f"{error}; the features are kept in {self.folder}") from error
            self.is_behind = True
            self._say(
                f"warning: {error}; this checkpoint is not on the store: it is copied with the next one, or when the "
                "run stops; the next start drops what the store does not have"
            )

    def finish(self) -> None:
        """Upload changed files; if the store fails, stop the run."""
        try:
            self._push()
        except StoreError as error:
            raise RunStopped(
                f"{error}; the results are in {self.folder} until the next start, and the same command resumes from "
                "the latest checkpoint on the store"
            ) from error

    def _push(self) -> None:
        here, marks = self._list_files(), {}
        for name, path in here.items():
            with contextlib.suppress(FileNotFoundError):  # of a logger's background process
                marks[name] = mark_file(path)
        changed = {name: here[name] for name in marks if self._pushed.get(name) != marks[name]}
        _upload_in_order(self._store, changed)
        if not self._only_adds:
            digests = {name: entry for name, entry in self._checkpoints.items() if name in marks}
            digests |= {name: digest_once(path) for name, path in changed.items() if _is_checkpoint(name)}
            _write_manifest(self._store, digests, {})
            gone = {name for name in self._pushed if name not in marks and not (self.folder / name).exists()}
            # No manifest names the files that a killed run left of a checkpoint.
            gone |= {name for name in self._store.list() if name == UNFINISHED or _is_checkpoint(name)} - marks.keys()
            self._store.remove(gone)
            self._checkpoints = digests
        self._pushed, self.is_behind = marks, False

    def _list_files(self) -> dict[str, pathlib.Path]:
        files = list_files(self.folder).items()
        if self._only_adds:
            return {name: path for name, path in files if _is_shard_file(name)}
        return {name: path for name, path in files if name.partition("/")[0] not in _LEFT_HERE}


def _upload_in_order(store: StoreFolder, files: Mapping[str, pathlib.Path]) -> None:
    """Upload checkpoints after a run's other files, and shards after the description of their store."""
    last = {name for name in files if _is_checkpoint(name) or name.endswith(".safetensors")}
    store.upload({name: files[name] for name in sorted(files.keys() - last)})
    store.upload({name: files[name] for name in sorted(last)})


def _read_manifest(store: StoreFolder) -> Manifest:
    try:
        manifest = msgspec.json.decode(store.read(MANIFEST) or b"{}", type=Manifest)
    except msgspec.DecodeError:
        raise StoreError(f"{store.address}/{MANIFEST}: damaged; expected the file that an upload wrote") from None
    for name in manifest.checkpoints:
        if not _is_checkpoint(name) or "\\" in name or {"", ".", ".."} & set(name.split("/")):
            raise StoreError(f"{store.address}/{MANIFEST}: {shorten(name)!r} is not the name of a checkpoint's file")
    return manifest


def _write_manifest(
    store: StoreFolder, checkpoints: Mapping[str, tuple[int, str]], files: Mapping[str, tuple[int, int]]
) -> None:
    manifest = Manifest(dict(sorted(checkpoints.items())), dict(sorted(files.items())))
    store.write(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def find_damaged(folder: pathlib.Path, complete: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return the checkpoints, such as "checkpoints/40", of which a file is missing or has another digest."""
    return sorted({_checkpoint_of(name) for name, entry in complete.items() if not _is_as(folder / name, entry)})


def _is_as(path: pathlib.Path, entry: tuple[int, str]) -> bool:
    return _size_of(path) == entry[0] and digest_once(path) == entry


_DIGESTS: dict[pathlib.Path, tuple[tuple[int, int, int], tuple[int, str]]] = {}
"""Path -> size, time and inode of a file, and its size and SHA-256: a start compares each checkpoint several times."""


def digest_once(path: pathlib.Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file; the file is read again only if it has changed."""
    mark = (*mark_file(path), path.stat().st_ino)
    if path not in _DIGESTS or _DIGESTS[path][0] != mark:
        _DIGESTS[path] = mark, digest_file(path)
    return _DIGESTS[path][1]


def mark_file(path: pathlib.Path) -> tuple[int, int]:
    """Return a file's size and time of modification in nanoseconds."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def list_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the files below a folder by name, without links, locks and half-written files."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        is_partial = name.endswith(".partial") or "orbax-checkpoint-tmp" in name or path.name == LOCK_NAME
        if path.is_file() and not path.is_symlink() and not is_partial and name not in _OURS:
            files[name] = path
    return files


def _size_of(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _checkpoint_of(name: str) -> str:
    """Return the checkpoint of a file, such as "checkpoints/40"."""
    return "/".join(name.split("/")[:2])


def _is_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/") and name.count("/") > 1


def _is_shard_file(name: str) -> bool:
    return name.endswith((".json", ".safetensors")) and not name.startswith(".")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cache_folder(kind: str) -> pathlib.Path:
    """Return a folder of the user's cache or, without one, of a private folder among the temporary files."""
    base = user_folder()
    if base is None:
        base = pathlib.Path(tempfile.gettempdir()) / f"stepcot_jax-{os.getuid()}"
        make_private_folder(base)
    make_private_folder(base / kind)
    return base / kind
