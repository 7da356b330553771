"""Files and folders that a command writes, on this machine or on a store.

For an address a command writes to a folder of this machine; what it wrote is uploaded when it has ended without an
error. A file is replaced in one step. A folder is uploaded as in `store_uploads`, by one command at a time.
"""

import contextlib
import os
import pathlib
import shutil
import threading
from collections.abc import Iterator, Sequence

from stepcot_jax.host.addresses import is_address
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.leases import LEASE_FILE, Lease
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.mirrors import Mirror, mark_file
from stepcot_jax.host.staged_outputs import (
    NOT_UPLOADED,
    NotUploaded,
    Output,
    keeping_output,
    mark_files,
    naming_errors,
    temporary_output,
)
from stepcot_jax.host.store_cache import naming, staging_folder
from stepcot_jax.host.store_uploads import UNFINISHED, drop_unfinished, uploading
from stepcot_jax.host.stores import StoreFolder, check_store_address
from stepcot_jax.host.terminal import Terminal

COPY_SECONDS = 60.0
"""Time between two copies of answers that are paid for."""

_FILE_FORM = "gs://BUCKET/FOLDER/FILE or s3://BUCKET/FOLDER/FILE"


@contextlib.contextmanager
def writing_file(place: str | os.PathLike[str], flag: str = "--out") -> Iterator[Output]:
    """Give the path of a file to write; for an address it is uploaded when the context ends without an error.

    A file of this name on the store is brought first, so that a command refuses or replaces it as on this machine.
    """
    if not _is_on_store(place, flag):
        yield _local(place)
        return
    address, _, name = str(place).rpartition("/")
    if address.count("/") < 3 or not name:
        raise BadInput(f"{flag}: {place}: not the address of a file on a store; expected {_FILE_FORM}")
    with naming(flag):
        store = StoreFolder(address)
        exists = store.look_up(name) is not None
    with temporary_output(str(place)) as out, naming_errors(out):
        if exists:
            store.download({name: out.path})
        before = mark_file(out.path) if exists else None
        yield out
        if out.path.is_file() and mark_file(out.path) != before:
            with keeping_output(out, flag):
                store.upload({name: out.path})


@contextlib.contextmanager
def writing_folder(
    place: str | os.PathLike[str],
    flag: str = "--out",
    *,
    is_new: bool = False,
    is_workdir: bool = False,
    needs: Sequence[str] = (),
) -> Iterator[Output]:
    """Give a folder to write to; for an address its files are uploaded when the context ends without an error.

    The folder is empty then: of what is on the store it has the files in `needs` alone. Other objects stay.

    Args:
      is_new: refuse a store's folder that is not empty; on this machine the command does.
    """
    if not _is_on_store(place, flag):
        yield _local(place)
        return
    with holding_folder(str(place), flag) as (store, lease), temporary_output(store.address) as out, naming_errors(out):
        found = store.list().keys() - {LEASE_FILE, UNFINISHED}
        if is_new and found:
            raise BadInput(f"{flag}: {store.address} is not empty; a new or empty folder is required")
        out.path.mkdir()
        if is_workdir:
            Mirror(out.path, store).prepare()
        store.download({name: out.path / name for name in found & set(needs)})
        before = mark_files(out.path)
        yield out
        with keeping_output(out, flag):
            now = mark_files(out.path)
            files = {name: out.path / name for name, mark in now.items() if before.get(name) != mark}
            gone = before.keys() - now.keys()
            if files or gone:
                lease.check()
                with uploading(store, {*files, *gone}, is_all=is_new):
                    store.upload(files)
                    store.remove(gone)


@contextlib.contextmanager
def resuming_folder(
    place: str | os.PathLike[str], flag: str = "--out", *, paid: tuple[str, ...] = ()
) -> Iterator[Output]:
    """Give a folder to go on writing to; for an address it is a copy of the store's, and is copied back.

    Files below `paid` are copied every minute, and the whole folder also if the context fails; without `paid` only if
    it does not.
    """
    if not _is_on_store(place, flag):
        yield _local(place)
        return
    address = str(place).rstrip("/")
    with contextlib.ExitStack() as stack:
        with naming(flag):
            staging = staging_folder("outputs", " ".join((address, *paid)))  # elsewhere nothing keeps what is paid for
            stack.enter_context(lock_folder(staging))
        store, lease = stack.enter_context(holding_folder(address, flag))
        out = Output(staging / address.rpartition("/")[2], address)
        out.path.mkdir(exist_ok=True)
        mirror = Mirror(out.path, store, paid=paid, left=NOT_UPLOADED, is_run=False)
        mirror.fetch()
        before = mark_files(out.path)

        def copy() -> None:
            with keeping_output(out, flag, is_moved=not paid):
                now = mark_files(out.path)
                changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
                lease.check()
                with uploading(store, [name for name in changed if not name.startswith(paid)], is_all=True):
                    mirror.push()

        with naming_errors(out):
            try:
                with _copying(mirror, lease) if paid else contextlib.nullcontext():
                    yield out
            except (Exception, KeyboardInterrupt) as error:
                # What is paid for is copied in any case; all of it if another output alone could not be uploaded.
                if paid or isinstance(error.__cause__, NotUploaded):
                    try:
                        copy()
                    except NotUploaded as missed:
                        raise NotUploaded(f"{out.show(error) or 'interrupted'}; {missed}") from error
                raise
        copy()
        shutil.rmtree(out.path, ignore_errors=True)


def _local(place: str | os.PathLike[str]) -> Output:
    path = pathlib.Path(place)
    return Output(path, str(path))


def _is_on_store(place: str | os.PathLike[str], flag: str) -> bool:
    """Return whether a place is on a store and not on this machine."""
    if is_address(place):
        with naming(flag):
            check_store_address(str(place))
    return is_address(place)


@contextlib.contextmanager
def holding_folder(address: str, flag: str) -> Iterator[tuple[StoreFolder, Lease]]:
    """Keep other commands from writing to a folder on a store within the context."""
    with contextlib.ExitStack() as stack:
        with naming(flag):
            store = StoreFolder(address)
            lease = Lease(store, say=Terminal().say)
            stack.enter_context(lease.hold())
            drop_unfinished(store)
        yield store, lease


@contextlib.contextmanager
def _copying(mirror: Mirror, lease: Lease) -> Iterator[None]:
    """Copy what is paid for to the store every minute within the context."""
    ended = threading.Event()

    def copy() -> None:
        while not ended.wait(COPY_SECONDS):
            try:
                lease.check()
                mirror.push_paid()
            except (BadInput, OSError) as error:  # the store, or a file that another program removes
                Terminal().say(f"warning: {error}; answers are copied again in {COPY_SECONDS:.0f} s")
            except RunStopped:
                return  # the copy at the end says why

    thread = threading.Thread(target=copy, daemon=True, name="copies")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
