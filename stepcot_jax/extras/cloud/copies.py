"""Copies of local folders on a store, and local copies of a store's folders: runs, data, exports, shards of features.

`mirror.json` is written last: a checkpoint that it does not name is half uploaded. No lock keeps others from writing.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from stepcot_jax.extras.cloud.stores import Stored, StoreError, StoreFolder
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import LOCK_NAME, make_private_folder, make_workdir, read_file, wait_for_lock
from stepcot_jax.host.machine import user_folder
from stepcot_jax.host.terminal import Terminal

MANIFEST = "mirror.json"

_PAID = "judge/"
"""Folder of a run with answers that are paid for: files that only grow, kept when they are ahead of the store."""

_MOST_PAID = 2**32
_LEFT_HERE = "features/"
_NOT_READ = ("tensorboard/", "profile/", "wandb/", "mlartifacts/", "report.html", _LEFT_HERE)
"""Entries of a run that stay on its machine, and those that its readers do not need."""

Mark: TypeAlias = tuple[int, int]
"""Size of a file and its time of modification in nanoseconds."""


class Manifest(msgspec.Struct, frozen=True):
    """Content of `mirror.json`: the files of a folder, and whether all of them are on the store."""

    files: dict[str, Mark] = {}
    is_complete: bool = True


class _Source(NamedTuple):
    """Objects to download: those of a folder, or the single object `name`."""

    store: StoreFolder
    objects: dict[str, Stored]
    name: str = ""


def download(address: str) -> pathlib.Path:
    """Download a folder or a file to the user's cache (the hook `scheme`); of a run what its readers need."""
    source = _find_source(address)
    return _download_to_cache(address, source) / source.name


def _find_source(address: str) -> _Source:
    store = StoreFolder(address)
    listing = store.list()
    if not listing:
        parent, _, name = store.address.rpartition("/")
        if parent.count("/") > 2 and (stored := StoreFolder(parent).look_up(name)) is not None:
            return _Source(StoreFolder(parent), {name: stored}, name)
        raise BadInput(f"{store.address}: holds no files; expected a folder or a file on the store")
    manifest = _read_complete(store)
    skipped = _NOT_READ if any(map(_is_checkpoint, manifest.files)) else ()
    wanted = _leave_half(listing, manifest) if MANIFEST in listing else listing
    return _Source(store, {name: stored for name, stored in wanted.items() if not name.startswith(skipped)})


def _leave_half(listing: Mapping[str, Stored], manifest: Manifest) -> dict[str, Stored]:
    """Return the objects of a copied folder without its manifest and checkpoints that are half uploaded."""
    return {
        name: stored
        for name, stored in listing.items()
        if name != MANIFEST and (name in manifest.files or not _is_checkpoint(name))
    }


def _download_to_cache(address: str, source: _Source) -> pathlib.Path:
    """Return the copy in `~/.cache/stepcot_jax/stores`, named by the listing; an interrupted download resumes."""
    store, objects = source.store, source.objects
    cache, title = _cache_folder("stores"), store.address.rpartition("/")[2]
    lines = [store.address, *(f"{name}\0{stored.size}\0{stored.tag}" for name, stored in sorted(objects.items()))]
    entry = cache / _digest("\n".join(lines))
    folder, done, terminal = entry / title, entry / ".complete", Terminal()
    if done.exists():
        return folder
    with wait_for_lock(
        cache / f".lock-{_digest(store.address)[:16]}",
        say=lambda: terminal.say(f"{store.address}: another process is downloading it"),
    ):
        if done.exists():
            return folder
        make_workdir(folder)
        terminal.say(f"{address}: downloading {len(objects)} files to {folder}")
        _copy_missing(store, objects, folder)
        # A run that goes on changes its other files; its checkpoints have digests of their own.
        if not any(map(_is_checkpoint, objects)) and _find_source(address).objects != objects:
            shutil.rmtree(entry)
            raise BadInput(f"{address}: has changed while it was downloaded; try again")
        done.touch()
    return folder


def _copy_missing(store: StoreFolder, objects: Mapping[str, Stored], folder: pathlib.Path) -> None:
    """Copy the objects that a folder does not have with the same size, each atomically."""
    missing = {name: stored for name, stored in sorted(objects.items()) if _size_of(folder / name) != stored.size}
    if missing:
        store.download(missing, folder)


def upload(folder: pathlib.Path, address: str) -> tuple[int, int]:
    """Upload a folder; return the number of files that were uploaded and of those with the size and time of before."""
    store, files = StoreFolder(address), _list_files(folder)
    if not files:
        raise BadInput(f"{folder}: holds no files to upload")
    listing, before = store.list(), _read_manifest(store)
    marks = {name: _mark(path) for name, path in files.items()}
    there = {name for name in listing if name in marks and listing[name].size == marks[name][0]}
    changed = {name for name, mark in marks.items() if before.files.get(name) != mark or name not in there}
    if changed or not before.is_complete or MANIFEST not in listing:
        _write_manifest(store, Manifest(before.files, is_complete=False))
        _upload_in_order(store, {name: files[name] for name in changed})
        _write_manifest(store, Manifest(marks))
    return len(changed), len(files) - len(changed)


class Remote:
    """A local folder that becomes a copy of one on a store, but for paid answers; `only_adds` removes nothing."""

    def __init__(self, address: str, *, say: Callable[[str], None], part: str = "", only_adds: bool = False) -> None:
        self._store, self._say, self._only_adds = StoreFolder(address), say, only_adds
        self.address, self.is_behind = self._store.address, False
        kind = "features" if only_adds else "runs"
        self.folder = _cache_folder(kind) / _digest(f"{self.address} {part}".rstrip())
        make_private_folder(self.folder)
        self._sent: dict[str, Mark] = {}  # files here that are on the store

    def start(self) -> None:
        """Make the folder a copy of the store's."""
        listing, manifest = self._store.list(), _read_complete(self._store)
        wanted = {name: stored for name, stored in _leave_half(listing, manifest).items() if self._travels(name)}
        if not self._only_adds:
            if MANIFEST not in listing and wanted:
                raise BadInput(
                    f"{self.address}: holds {min(wanted)} and no {MANIFEST}; expected an empty folder, or one of a run"
                )
            if MANIFEST not in listing:  # so that a store without write access fails before the work
                _write_manifest(self._store, Manifest())
            self._remove_others(wanted, manifest)
        ahead = {name for name in wanted if name.startswith(_PAID) and (self.folder / name).exists()}
        _copy_missing(self._store, {name: wanted[name] for name in wanted.keys() - ahead}, self.folder)
        there = {name for name in wanted if _size_of(self.folder / name) == wanted[name].size}
        for name in there & manifest.files.keys():  # known again at the next start
            os.utime(self.folder / name, ns=(manifest.files[name][1],) * 2)
        self._sent = {name: _mark(self.folder / name) for name in there}

    def _remove_others(self, wanted: Mapping[str, Stored], manifest: Manifest) -> None:
        """Remove the files that are not as on the store, but for answers that are paid for."""
        for name, path in self._list_files().items():
            is_same = name in wanted and manifest.files.get(name) == _mark(path) and wanted[name].size == _size_of(path)
            if not is_same and not self._continues(name, path):
                path.unlink()
        for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):  # an empty checkpoint would count as one
                folder.rmdir()

    def _continues(self, name: str, path: pathlib.Path) -> bool:
        """Return whether a file has answers that are paid for and begins with the store's object of its name."""
        if not name.startswith(_PAID):
            return False
        content = read_file(path, max_bytes=_MOST_PAID, accepted="answers of a model")
        return content.startswith(self._store.read(name))

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
                marks[name] = _mark(path)
        _upload_in_order(self._store, {name: here[name] for name in marks if self._sent.get(name) != marks[name]})
        if not self._only_adds:
            _write_manifest(self._store, Manifest(marks))
            # No manifest names the files that a killed run left of a checkpoint.
            gone = [name for name in self._store.list() if name in self._sent or _is_checkpoint(name)]
            self._store.remove(set(gone) - marks.keys())
        self._sent, self.is_behind = marks, False

    def _travels(self, name: str) -> bool:
        if self._only_adds:
            return "/" not in name and name.endswith((".json", ".safetensors")) and not name.startswith(".")
        return not name.startswith(_LEFT_HERE)

    def _list_files(self) -> dict[str, pathlib.Path]:
        return {name: path for name, path in _list_files(self.folder).items() if self._travels(name)}


def _upload_in_order(store: StoreFolder, files: Mapping[str, pathlib.Path]) -> None:
    """Upload checkpoints after a run's other files, and shards after the description of their store."""
    last = {name for name in files if _is_checkpoint(name) or name.endswith(".safetensors")}
    store.upload({name: files[name] for name in sorted(files.keys() - last)})
    store.upload({name: files[name] for name in sorted(last)})


def _read_manifest(store: StoreFolder) -> Manifest:
    try:
        return msgspec.json.decode(store.read(MANIFEST) or b"{}", type=Manifest)
    except msgspec.DecodeError:
        raise StoreError(f"{store.address}/{MANIFEST}: damaged; expected the file that an upload wrote") from None


def _read_complete(store: StoreFolder) -> Manifest:
    manifest = _read_manifest(store)
    if not manifest.is_complete:
        raise BadInput(f"{store.address}: its upload is going on or was interrupted; stepcot sync again completes it")
    return manifest


def _write_manifest(store: StoreFolder, manifest: Manifest) -> None:
    store.write(MANIFEST, msgspec.json.encode(manifest, order="sorted"))


def _list_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the files below a folder by name, without links, locks and half-written files."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        is_partial = name.endswith(".partial") or "orbax-checkpoint-tmp" in name or path.name == LOCK_NAME
        if path.is_file() and not path.is_symlink() and not is_partial and name != MANIFEST:
            files[name] = path
    return files


def _mark(path: pathlib.Path) -> Mark:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _size_of(path: pathlib.Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/") and name.count("/") > 1


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
