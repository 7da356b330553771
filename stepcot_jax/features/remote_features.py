"""A feature store's folder on an object store: its shards are copied here, and new ones there as they are written.

Shards never change and are named by their content. So any number of machines may add some at once, without a lease, and
a machine that is killed leaves the shards that it has finished.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from stepcot_jax.features.store import BAD_SUFFIX, DESCRIPTION_FILE, SUFFIX, FeatureStore, StoreSpec
from stepcot_jax.host.locks import wait_for_lock
from stepcot_jax.host.store_cache import naming, staging_folder
from stepcot_jax.host.store_copies import copy_missing
from stepcot_jax.host.stores import StoreFolder
from stepcot_jax.host.terminal import Terminal

_KEY = "config.features.folder"


class RemoteFeatures:
    """The folder of one feature store on an object store, and its copy on this machine.

    Attributes:
      folder: the copy; processes of this machine share it.
    """

    def __init__(self, address: str, name: str, *, terminal: Terminal) -> None:
        self.address = address
        with naming(_KEY):
            self._store = StoreFolder(f"{address.rstrip('/')}/{name}")
            self.folder = staging_folder("features", self._store.address)
        self._terminal = terminal

    def fetch(self, *, anew: bool = False) -> None:
        """Copy the shards that are not here.

        Args:
          anew: also those that were found to be bad here, as others may have written them again.
        """
        waits = f"{self._store.address}: another process is downloading it"
        with naming(_KEY), wait_for_lock(self.folder / ".lock", say=lambda: self._terminal.say(waits)):
            found = {name: entry for name, entry in self._store.list().items() if _is_kept(name)}
            bad = set() if anew else {path.name.removesuffix(BAD_SUFFIX) for path in self.folder.glob(f"*{BAD_SUFFIX}")}
            wanted = {name: entry for name, entry in found.items() if name not in bad}
            copy_missing(self._store, wanted, self.folder, terminal=self._terminal)

    def push(self) -> None:
        """Copy what is here alone to the store, such as shards of a process that could not reach it."""
        here = {path.name: path for path in self.folder.iterdir() if _is_kept(path.name)}
        with naming(_KEY):
            new = here.keys() - self._store.list().keys()
            self._store.upload({name: here[name] for name in new & {DESCRIPTION_FILE}})  # shards alone are no store
            self._store.upload({name: here[name] for name in new - {DESCRIPTION_FILE}})

    def upload(self, shard: Path) -> None:
        """Copy one new shard to the store."""
        with naming(_KEY):
            self._store.upload({shard.name: shard})

    @contextlib.contextmanager
    def uploading(self, store: FeatureStore) -> Iterator[None]:
        """Copy every shard that is written within the context, after those that an earlier start has left here."""
        self.push()
        store.saved = self.upload
        try:
            yield
        finally:
            store.saved = None  # readers in other processes get a copy of the store


def _is_kept(name: str) -> bool:
    """Return whether a name is of a complete file of a store."""
    is_file = name == DESCRIPTION_FILE or (name.endswith(SUFFIX) and not name.startswith("."))
    return is_file and "/" not in name


def open_for_worker(address: str, spec: StoreSpec) -> FeatureStore:
    """Open a store that copies each shard to an object store as it is written, and reads none."""
    remote = RemoteFeatures(address, spec.folder_name, terminal=Terminal())
    store = FeatureStore(remote.folder, spec, indexed=False)
    store.saved = remote.upload
    return store
