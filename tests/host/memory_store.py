"""fsspec's store in memory, as if it were one of the stores that a run may use."""

import pathlib
import subprocess
import uuid

import fsspec
import msgspec

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
