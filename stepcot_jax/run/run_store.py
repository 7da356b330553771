"""The feature store of a run: below its workdir, in a folder that runs share, or on an object store."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator

from stepcot_jax.features.remote_features import RemoteFeatures
from stepcot_jax.features.sharing import ALONE, Processes
from stepcot_jax.features.store import FeatureStore, StoreSpec
from stepcot_jax.host.stores import is_store_address
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings


@contextlib.contextmanager
def open_run_store(
    settings: Settings, workdir: pathlib.Path, spec: StoreSpec, terminal: Terminal, processes: Processes = ALONE
) -> Iterator[tuple[FeatureStore, Processes, RemoteFeatures | None]]:
    """Open a feature store of a run to write to it within the context, with the processes that share it.

    In a folder on an object store the shards that are there are copied here, and those of others after each barrier.
    """
    if not is_store_address(settings.features.folder):
        folder = pathlib.Path(settings.features.folder) if settings.features.folder else workdir / "features"
        yield FeatureStore(folder / spec.folder_name, spec), processes, None
        return
    remote = RemoteFeatures(settings.features.folder, spec.folder_name, terminal=terminal)

    def wait(name: str) -> None:
        processes.wait(name)
        remote.fetch()

    remote.fetch()
    store = FeatureStore(remote.folder, spec)
    with remote.uploading(store):
        yield store, dataclasses.replace(processes, wait=wait), remote
