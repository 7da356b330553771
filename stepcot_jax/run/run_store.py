"""The feature store of a run: below its workdir, in a folder that runs share, or at an address."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

from stepcot_jax.features.sharing import ALONE, Processes
from stepcot_jax.features.store import FeatureStore, StoreSpec
from stepcot_jax.host.download import is_address, open_remote
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.locks import wait_for_lock
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.settings import Settings


@contextlib.contextmanager
def open_run_store(
    settings: Settings, workdir: pathlib.Path, spec: StoreSpec, terminal: Terminal, processes: Processes = ALONE
) -> Iterator[tuple[FeatureStore, Processes]]:
    """Open the feature store of a run for writing within the context, with the processes that share it.

    Shards at an address are downloaded to a folder of this machine, those of other processes after each barrier; new
    ones are uploaded when they are written. Shards never change and are named by their content, so that any number of
    processes can add some.
    """
    folder = settings.features.folder
    if not is_address(folder):
        yield (
            FeatureStore((pathlib.Path(folder) if folder else workdir / "features") / spec.folder_name, spec),
            processes,
        )
        return
    remote = open_remote(f"{folder.rstrip('/')}/{spec.folder_name}", say=terminal.say, only_adds=True)

    def download() -> None:
        def say() -> None:
            terminal.say(f"{folder}: another process is downloading it")

        with naming(), wait_for_lock(remote.folder / ".lock", say=say):
            remote.start()

    def wait(name: str) -> None:
        processes.wait(name)
        download()

    def send() -> None:
        with naming():
            remote.saved()

    download()
    store = FeatureStore(remote.folder, spec)
    send()  # shards that an earlier start did not upload
    store.saved = send
    try:
        yield store, dataclasses.replace(processes, wait=wait)
    finally:
        store.saved = None  # readers in other processes get a copy of the store


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Add the name of the setting to errors about the address."""
    try:
        yield
    except BadInput as error:
        raise type(error)(f"config.features.folder: {error}") from error
