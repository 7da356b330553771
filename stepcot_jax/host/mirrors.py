"""A local folder and its copy on a store: the files of a run, brought here at its start and copied back at checkpoints.

`mirror.json` is written last and names the files of all complete checkpoints, with sizes and SHA-256. A checkpoint that
it does not name is half written, and is not brought here. Other files are brought as they are: a run writes its log,
facts and results anew, and cuts a log that is ahead of the checkpoint.
"""

import pathlib
import shutil
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_file
from stepcot_jax.host.leases import LEASE_FILE
from stepcot_jax.host.locks import LOCK_NAME
from stepcot_jax.host.store_uploads import UNFINISHED
from stepcot_jax.host.stores import StoreError, StoreFolder
from stepcot_jax.host.text import shorten

MANIFEST = "mirror.json"
CHECKPOINTS = "checkpoints"

_PAID = ("judge/",)
"""Folders of a run with files that only grow, and are paid for: what the machine has beyond the store is kept."""

_MOST_PAID = 2**32

Names: TypeAlias = frozenset[str]

_LEFT_HERE = frozenset({"features", LOCK_NAME})
"""Names of a workdir that stay on the machine: a cache that may be large, and the lock."""


class _Manifest(msgspec.Struct, frozen=True):
    """Content of `mirror.json`: name -> [size, SHA-256]."""

    checkpoints: dict[str, tuple[int, str]]


class Mirror:
    """A folder of this machine and its copy on a store.

    Args:
      paid: folders of files that only grow, such as answers of models; what is here beyond the store is kept.
      is_run: whether the folder is a run's alone; what a killed run left of a checkpoint is then removed.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        store: StoreFolder,
        *,
        paid: tuple[str, ...] = _PAID,
        left: Names = _LEFT_HERE,
        is_run: bool = True,
    ) -> None:
        self.folder, self.store, self._paid, self._left, self._is_run = folder, store, paid, left, is_run
        self._pushed: dict[str, tuple[int, ...]] = {}
        self._digests: dict[str, tuple[int, str]] = {}

    def prepare(self) -> None:
        """Make the copy if the store's folder is empty."""
        found = self.store.list()
        if MANIFEST not in found:
            others = sorted(found.keys() - {LEASE_FILE})
            if others:
                raise BadInput(
                    f"{self.store.address}: holds {others[0]} and no {MANIFEST}; expected an empty folder, or one that "
                    "a run wrote"
                )
            self._write_manifest({})

    def fetch(self) -> list[str]:
        """Make the folder equal to the copy; checkpoints that it has already are not read again.

        Ratings of a judge that are not on the store yet stay.

        Returns:
          A warning for each checkpoint that is left out, since it is not as it was written.
        """
        found = self.store.list()
        complete = read_complete(self.store) or {}
        wanted = {name: self.folder / name for name in found if is_copied(name, complete, self._left)}
        here = list_files(self.folder, self._left)
        known = {name for name in wanted.keys() & here.keys() & complete.keys() if _is_as(here[name], complete[name])}
        ahead = {name for name in here if name.startswith(self._paid) and self._goes_on(name, here[name])}
        for name in here.keys() - wanted.keys() - ahead:
            here[name].unlink()
        missing = {name: path for name, path in wanted.items() if name not in known | ahead}
        for path in missing.values():
            path.unlink(missing_ok=True)  # a download writes into the file, which may be a hard link to a user's
            _DIGESTS.pop(path, None)
        self.store.download(missing)
        damaged = find_damaged(self.folder, complete)
        if damaged and len(damaged) == len({_step_of(name) for name in complete}):
            raise StoreError(
                f"{self.store.address}: no checkpoint is as it was written ({MANIFEST} has their digests); nothing was "
                "changed there; a new workdir starts over"
            )
        for step in damaged:
            shutil.rmtree(self.folder / step, ignore_errors=True)
        _remove_empty(self.folder)
        self._digests = {name: entry for name, entry in complete.items() if _step_of(name) not in damaged}
        self._pushed = {name: mark_file(path) for name, path in wanted.items() if name not in ahead and path.exists()}
        return [
            f"warning: {self.store.address}/{step} is not as it was written, by the digests in {MANIFEST}; left out"
            for step in damaged
        ]

    def _goes_on(self, name: str, path: pathlib.Path) -> bool:
        """Return whether a file begins with the store's object of its name, if there is one."""
        stored = self.store.read(name) or b""
        return read_file(path, max_bytes=_MOST_PAID, accepted="answers of a model").startswith(stored)

    def push(self) -> None:
        """Make the copy equal to the folder, whose checkpoints are complete: first the log, the manifest last."""
        here, marks = list_files(self.folder, self._left), {}
        for name, path in list(here.items()):
            try:
                marks[name] = mark_file(path)
            except FileNotFoundError:  # of a logger's background process
                del here[name]
        changed = [name for name in sorted(here) if self._pushed.get(name) != marks[name]]
        checkpoints = [name for name in changed if _is_checkpoint(name)]
        self.store.upload({name: here[name] for name in changed if not _is_checkpoint(name)})
        self.store.upload({name: here[name] for name in checkpoints})
        digests = {name: entry for name, entry in self._digests.items() if name in here}
        digests |= {name: _digest_once(here[name]) for name in checkpoints}
        if digests != self._digests:
            self._write_manifest(digests)
        gone = {name for name in self._pushed if name not in here and not (self.folder / name).exists()}
        if self._is_run:  # what a killed one left of a checkpoint is named by no manifest
            gone |= {name for name in self.store.list() if _is_checkpoint(name) and name not in here}
        self.store.remove(gone)
        self._pushed, self._digests = marks, digests

    def push_paid(self) -> None:
        """Copy the files that are paid for and have grown; another thread may be writing them."""
        for name, path in list_files(self.folder, self._left).items():
            mark = mark_file(path)
            if name.startswith(self._paid) and self._pushed.get(name) != mark:
                self.store.write(name, read_file(path, max_bytes=_MOST_PAID, accepted="answers of a model"))
                self._pushed[name] = mark

    def _write_manifest(self, digests: Mapping[str, tuple[int, str]]) -> None:
        content = msgspec.json.encode(_Manifest(dict(sorted(digests.items()))))
        self.store.write(MANIFEST, msgspec.json.format(content, indent=1))


def read_complete(store: StoreFolder) -> dict[str, tuple[int, str]] | None:
    """Return the files of complete checkpoints, name -> (size, SHA-256); None if there is no manifest."""
    content = store.read(MANIFEST)
    if content is None:
        return None
    try:
        complete = msgspec.json.decode(content, type=_Manifest).checkpoints
    except msgspec.DecodeError:
        raise StoreError(f"{store.address}/{MANIFEST}: damaged; expected the file that a run wrote") from None
    for name in complete:
        parts = name.split("/")
        if parts[0] != CHECKPOINTS or len(parts) < 3 or "\\" in name or {"", ".", ".."} & set(parts):
            raise StoreError(f"{store.address}/{MANIFEST}: {shorten(name)!r} is not the name of a checkpoint's file")
    return complete


def find_damaged(folder: pathlib.Path, complete: Mapping[str, tuple[int, str]]) -> list[str]:
    """Return the checkpoints, such as "checkpoints/40", of which a file is missing or has another digest."""
    return sorted({_step_of(name) for name, entry in complete.items() if not _is_as(folder / name, entry)})


def _is_as(path: pathlib.Path, entry: tuple[int, str]) -> bool:
    """Return whether a file has a size and digest."""
    return path.is_file() and path.stat().st_size == entry[0] and _digest_once(path) == entry


_DIGESTS: dict[pathlib.Path, tuple[tuple[int, ...], tuple[int, str]]] = {}
"""Path -> mark of a file, and its size and SHA-256: a start compares each checkpoint several times."""


def _digest_once(path: pathlib.Path) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file, which is read again when it has changed."""
    mark = mark_file(path)
    kept = _DIGESTS.get(path)
    if kept is None or kept[0] != mark:
        kept = _DIGESTS[path] = mark, digest_file(path)
    return kept[1]


def _step_of(name: str) -> str:
    """Return the checkpoint of a file, such as "checkpoints/40"."""
    return "/".join(name.split("/")[:2])


def _is_checkpoint(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/")


def is_copied(name: str, complete: Mapping[str, object], left: Names = _LEFT_HERE) -> bool:
    """Return whether an object of a run's folder is a file of the run: of checkpoints, only of complete ones."""
    if _is_checkpoint(name):
        return name in complete
    return name not in (MANIFEST, LEASE_FILE, UNFINISHED) and name.partition("/")[0] not in left


def list_files(folder: pathlib.Path, left: Names) -> dict[str, pathlib.Path]:
    """Return the files that belong to the copy, by name: none that is half written, and no links."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        is_partial = name.endswith(".partial") or "orbax-checkpoint-tmp" in name
        if path.is_file() and not path.is_symlink() and not is_partial and name.partition("/")[0] not in left:
            found[name] = path
    return found


def mark_file(path: pathlib.Path) -> tuple[int, ...]:
    """Return what changes when a file is written or replaced."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _remove_empty(folder: pathlib.Path) -> None:
    """Remove empty folders below a folder: an empty checkpoint would count as one."""
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()
