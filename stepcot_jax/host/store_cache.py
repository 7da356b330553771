"""Read a folder of a store: download it once into the user's cache, and again when an object has changed."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping

from stepcot_jax.host.addresses import refuse_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_private_folder
from stepcot_jax.host.locks import wait_for_lock
from stepcot_jax.host.machine import user_folder
from stepcot_jax.host.mirrors import find_damaged, is_copied, read_complete
from stepcot_jax.host.store_copies import copy_missing
from stepcot_jax.host.store_uploads import list_whole
from stepcot_jax.host.stores import Stored, StoreFolder, is_store_address
from stepcot_jax.host.terminal import Terminal

_NOT_READ = frozenset({"tensorboard", "profile", "wandb", "mlartifacts", "report.html"})


def fetch_run(address: str, *, terminal: Terminal) -> pathlib.Path:
    """Download a run's folder, or an export, and return its copy in `~/.cache/stepcot_jax/stores`.

    The complete checkpoints are taken and compared with their digests; logs of other programs stay.
    """
    store = StoreFolder(address)
    complete = read_complete(store)
    found = {
        name: entry
        for name, entry in list_whole(store, is_run=True).items()
        if (complete is None or is_copied(name, complete)) and name.partition("/")[0] not in _NOT_READ
    }

    def check(folder: pathlib.Path) -> None:
        if damaged := find_damaged(folder, complete or {}):
            raise BadInput(
                f"{store.address}/{damaged[0]}: is not as it was written, by the digests in mirror.json (a run that "
                "goes on may have removed it: try again)"
            )

    return _fetch(store, found, holds="the workdir of a run, or an export", check=check, terminal=terminal)


def fetch_files(address: str, *, holds: str, terminal: Terminal) -> pathlib.Path:
    """Download a folder of cases or weights, and return its copy in `~/.cache/stepcot_jax/stores`."""
    store = StoreFolder(address)
    found = list_whole(store)

    def check(folder: pathlib.Path) -> None:  # noqa: ARG001
        if list_whole(store) != found:
            raise BadInput(f"{store.address}: an object changed while the folder was downloaded; try again")

    return _fetch(store, found, holds=holds, check=check, terminal=terminal)


def fetch_file(address: str, *, holds: str, terminal: Terminal) -> pathlib.Path:
    """Download one file, or a folder as `fetch_files` does, and return its copy."""
    parent, _, name = address.rpartition("/")
    store = StoreFolder(parent) if name and parent.count("/") > 2 else None
    found = None if store is None else store.look_up(name)
    if store is None or found is None:
        return fetch_files(address, holds=holds, terminal=terminal)

    def check(folder: pathlib.Path) -> None:  # noqa: ARG001
        if store.look_up(name) != found:
            raise BadInput(f"{address}: the file changed while it was downloaded; try again")

    return _fetch(store, {name: found}, holds=holds, check=check, terminal=terminal) / name


def find_workdir(source: str | os.PathLike[str], flag: str = "") -> pathlib.Path:
    """Return the folder of a run or an export; one on a store is downloaded first."""
    if not is_store_address(source):
        refuse_address(source, flag)
        return pathlib.Path(source)
    with naming(flag):
        return fetch_run(str(source), terminal=Terminal())


def find_files(source: str, key: str = "", *, holds: str, may_be_file: bool = False) -> pathlib.Path:
    """Return the folder or file of cases, weights or images that is named; one on a store is downloaded first."""
    if not is_store_address(source):
        refuse_address(source, key)
        return pathlib.Path(source)
    with naming(key):
        return (fetch_file if may_be_file else fetch_files)(source, holds=holds, terminal=Terminal())


def _fetch(
    store: StoreFolder,
    found: Mapping[str, Stored],
    *,
    holds: str,
    check: Callable[[pathlib.Path], None],
    terminal: Terminal,
) -> pathlib.Path:
    """Return the copy of some objects, named by their listing; an interrupted download goes on."""
    if not found:
        raise BadInput(f"{store.address}: holds no files; expected {holds}")
    cache, name = _make_cache(), store.address.rpartition("/")[2]
    entry = cache / digest_listing(store.address, found)[:32]
    if (entry / name).is_dir():
        return entry / name
    whose = hashlib.sha256(store.address.encode()).hexdigest()[:16]
    with wait_for_lock(
        cache / f".lock-{whose}", say=lambda: terminal.say(f"{store.address}: another process is downloading it")
    ):
        if (entry / name).is_dir():
            return entry / name
        partial = cache / f".partial-{whose}-{entry.name}"
        for left in cache.glob(f".partial-{whose}-*"):
            if left != partial:  # of an earlier listing
                shutil.rmtree(left)
        (partial / name).mkdir(parents=True, exist_ok=True)
        size = sum(each.size for each in found.values())
        terminal.say(f"{store.address}: downloading {len(found)} files, {size / 1e6:.1f} MB, to {entry / name}")
        copy_missing(store, found, partial / name, terminal=terminal)
        try:
            check(partial / name)
        except BadInput:
            shutil.rmtree(partial)
            raise
        partial.rename(entry)
    return entry / name


def digest_listing(address: str, found: Mapping[str, Stored]) -> str:
    """Return a digest of an address and its objects, which changes when one of them does."""
    parts = [address, *(f"{name}\0{entry.size}\0{entry.tag}" for name, entry in sorted(found.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Name the flag or setting in a `BadInput` about an address."""
    try:
        yield
    except BadInput as error:
        raise type(error)(f"{key}: {error}" if key else str(error)) from error


def staging_folder(kind: str, address: str) -> pathlib.Path:
    """Return a folder of this machine for what belongs to an address, the same at each start; closed to other users."""
    folder = _find_base() / kind / hashlib.sha256(address.encode()).hexdigest()[:32]
    make_private_folder(folder.parent)
    make_private_folder(folder)
    return folder


def _make_cache() -> pathlib.Path:
    cache = _find_base() / "stores"
    make_private_folder(cache)
    return cache


def _find_base() -> pathlib.Path:
    """Return the user's cache, else a folder of this user alone in the folder of temporary files."""
    base = user_folder()
    if base is None:
        base = pathlib.Path(tempfile.gettempdir()) / f"stepcot_jax-{os.getuid()}"
        make_private_folder(base)
    return base
