"""fsspec's store in memory and a folder that processes share, as if they were stores that a run may use."""

import importlib.metadata
import os
import pathlib
import uuid

import fsspec
from fsspec.implementations.local import LocalFileSystem

from stepcot_jax.extras.cloud import copies
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.host.extras import GROUP, list_extras


def new_address(monkeypatch) -> str:
    register_store(monkeypatch, "memory")
    return f"memory://bucket/{uuid.uuid4().hex}/run"


def register_store(monkeypatch, scheme: str) -> None:
    """Register a scheme as one of those that a run may use."""
    register_extra(monkeypatch, "scheme", scheme, "stepcot_jax.extras.cloud.copies:download")
    register_extra(monkeypatch, "remote", scheme, "stepcot_jax.extras.cloud.copies:Remote")


class SharedFiles(LocalFileSystem):
    """shared://bucket/..., the folder SHARED_STORE."""

    protocol = "shared"

    def __init__(self) -> None:
        super().__init__(auto_mkdir=True)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("shared://", os.environ["SHARED_STORE"] + "/"))


def use_shared_store(monkeypatch) -> None:
    fsspec.register_implementation("shared", SharedFiles, clobber=True)
    register_store(monkeypatch, "shared")


def register_extra(monkeypatch, kind: str, name: str, value: str) -> None:
    """Register an extra as its package's entry point does, installed or not."""
    monkeypatch.setitem(list_extras(kind), name, importlib.metadata.EntryPoint(f"{kind}.{name}", value, GROUP))


def put_workdir(folder: pathlib.Path, monkeypatch) -> str:
    address = new_address(monkeypatch)
    copies.upload(folder, address)
    return address


def put_files(folder: pathlib.Path, monkeypatch) -> str:
    """The address of a copy of any folder, as another program uploads it."""
    store = StoreFolder(new_address(monkeypatch))
    store.upload({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})
    return store.address


def names(folder: pathlib.Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def objects(address: str) -> dict[str, bytes]:
    """Name below the address -> content."""
    files, root = fsspec.filesystem("memory"), address.removeprefix("memory:/")
    return {path.removeprefix(root).lstrip("/"): files.cat_file(path) for path in files.find(root)}


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
    monkeypatch.setattr(
        StoreFolder, "download", lambda store, files, folder: (found.extend(files), download(store, files, folder))
    )
    return found
