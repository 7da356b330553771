"""fsspec's store in memory, as if it were one of the stores that a run may use."""

import pathlib
import subprocess
import uuid

import fsspec
import msgspec
import pytest

from stepcot_jax.host import leases, stores
from stepcot_jax.host.mirrors import Mirror
from stepcot_jax.host.stores import StoreFolder


def new_address(monkeypatch) -> str:
    """An address in memory that no other test has."""
    monkeypatch.setitem(stores.EXTRAS, "memory", "none")
    return f"memory://bucket/{uuid.uuid4().hex}/run"


def put_workdir(folder: pathlib.Path, monkeypatch) -> str:
    """The address of a copy of a run's folder."""
    store = StoreFolder(new_address(monkeypatch))
    mirror = Mirror(folder, store)
    mirror.prepare()
    mirror.push()
    return store.address


def put_files(folder: pathlib.Path, monkeypatch) -> str:
    """The address of a copy of any folder."""
    store = StoreFolder(new_address(monkeypatch))
    store.upload({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})
    return store.address


def objects(address: str) -> dict[str, bytes]:
    """Name below the address -> content."""
    files, root = fsspec.filesystem("memory"), address.removeprefix("memory:/")
    return {path.removeprefix(root).lstrip("/"): files.cat_file(path) for path in files.find(root)}


def ended_process() -> bytes:
    """The lease of a process of this machine that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    machine = leases._describe_machine()
    return msgspec.json.encode({"host": "here", "machine": machine, "process": child.pid, "token": "t"})


class Killed(BaseException):
    """In the place of a kill."""


def kill_uploads(patch) -> None:
    """Let every upload do half of its work, and end as if its process were killed."""
    real = StoreFolder.upload

    def upload(store, files):
        real(store, dict(list(files.items())[: (len(files) + 1) // 2 if len(files) > 1 else 0]))
        raise Killed

    patch.setattr(StoreFolder, "upload", upload)


def files_of(place: pathlib.Path) -> dict[str, bytes]:
    """Name -> content of a folder's files, or of one file, without locks."""
    if place.is_file():
        return {place.name: place.read_bytes()}
    paths = [path for path in place.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}


def check_killed(write, place: str, monkeypatch) -> None:
    """Kill `write(place)` while it uploads."""
    with monkeypatch.context() as patch:
        kill_uploads(patch)
        with pytest.raises(Killed):
            write(place)


def check_same_on_store(write, here: pathlib.Path, monkeypatch) -> str:
    """Let `write(place)` write to a path and to an address; return the address.

    Both have the same files, and a kill while they are uploaded leaves none.
    """
    write(str(here))
    address = new_address(monkeypatch)
    place = f"{address}/{here.name}"
    root = address if here.is_file() else place
    check_killed(write, place, monkeypatch)
    assert objects(root) == {}
    write(place)
    assert objects(root) == files_of(here)
    return place
