"""fsspec's store in memory, as if it were one of the stores that a run may use."""

import importlib.metadata
import pathlib
import uuid

import fsspec

from stepcot_jax.extras.cloud import copies, stores
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.host.extras import GROUP, list_extras


def new_address(monkeypatch) -> str:
    """An address in memory that no other test has."""
    monkeypatch.setitem(stores.EXTRAS, "memory", "none")
    register_extra(monkeypatch, "scheme", "memory", "stepcot_jax.extras.cloud.copies:download")
    register_extra(monkeypatch, "remote", "memory", "stepcot_jax.extras.cloud.copies:Remote")
    return f"memory://bucket/{uuid.uuid4().hex}/run"


def register_extra(monkeypatch, kind: str, name: str, value: str) -> None:
    """Register an extra as its package's entry point does, installed or not."""
    monkeypatch.setitem(list_extras(kind), name, importlib.metadata.EntryPoint(f"{kind}.{name}", value, GROUP))


def put_workdir(folder: pathlib.Path, monkeypatch) -> str:
    """The address of a copy of a run's folder."""
    address = new_address(monkeypatch)
    copies.upload(folder, address)
    return address


def put_files(folder: pathlib.Path, monkeypatch) -> str:
    """The address of a copy of any folder, as another program uploads it."""
    store = StoreFolder(new_address(monkeypatch))
    store.upload({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})
    return store.address


def names(folder: pathlib.Path) -> set[str]:
    """Files of a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def objects(address: str) -> dict[str, bytes]:
    """Name below the address -> content."""
    files, root = fsspec.filesystem("memory"), address.removeprefix("memory:/")
    return {path.removeprefix(root).lstrip("/"): files.cat_file(path) for path in files.find(root)}


def check_objects(store, folder: pathlib.Path) -> None:
    """Objects of a store, of whatever kind, are written whole, listed as they are now, and removed."""
    assert (store.list(), store.read("a"), store.look_up("a")) == ({}, None, None)
    store.write("a", b"1")
    assert store.read("a") == b"1"
    (folder / "x").write_bytes(bytes(2**20))
    store.upload({f"deep/er/{number}": folder / "x" for number in range(20)})
    before = store.list()
    sizes = {"a": 1, **{f"deep/er/{number}": 2**20 for number in range(20)}}
    assert {name: entry.size for name, entry in before.items()} == sizes
    store.write("a", b"3")
    assert store.list()["a"] != before["a"]
    assert store.look_up("a").size == 1
    store.download({"deep/er/3": folder / "new" / "y"})
    assert (folder / "new" / "y").read_bytes() == bytes(2**20)
    store.remove([*(name for name in before if name != "a"), "never"])
    assert set(store.list()) == {"a"}


class Killed(BaseException):
    """In the place of a kill."""


def disturb(patch, method: str, number: int, error: BaseException) -> None:
    """Let the number-th call of a method of stores do half of its work, and raise an error."""
    real, seen = getattr(StoreFolder, method), []

    def call(store, given, *content):
        seen.append(method)
        if len(seen) != number:
            return real(store, given, *content)
        if method == "upload":
            real(store, dict(list(given.items())[: len(given) // 2]))
        raise error

    patch.setattr(StoreFolder, method, call)


def count_downloads(monkeypatch) -> list[str]:
    """Names of the objects that are downloaded from now on."""
    found, download = [], StoreFolder.download
    monkeypatch.setattr(StoreFolder, "download", lambda store, files: (found.extend(files), download(store, files)))
    return found
