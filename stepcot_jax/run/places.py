"""Where a run's files lie: a folder of this machine, or one on a store that is copied to and from a folder here."""

import contextlib
import pathlib
import zlib
from collections.abc import Callable, Iterator

import jax

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.leases import Lease
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.mirrors import Mirror
from stepcot_jax.host.store_cache import staging_folder
from stepcot_jax.host.store_uploads import drop_unfinished
from stepcot_jax.host.stores import StoreError, StoreFolder, is_store_address
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.training.processes import all_agree, check_shared, is_first, wait_for_all


class Place:
    """A workdir on this machine.

    Attributes:
      folder: where the run reads and writes.
      name: what the user calls it.
      title: the last part of it, as the run's name in loggers.
      saved: to be called when a checkpoint is on the disk; None if nothing is to be done.
    """

    saved: Callable[[], None] | None = None

    def __init__(self, folder: pathlib.Path) -> None:
        make_workdir(folder)
        self.folder, self.name, self.title = folder, str(folder), folder.resolve().name

    def check(self) -> None:
        """Refuse a folder that is not the same in all processes; collective."""
        check_shared(self.folder)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other runs out of it; of several processes of this one the first does it for all."""
        with lock_folder(self.folder) if is_first() else contextlib.nullcontext():
            yield

    def share(self) -> None:
        """Give every process the checkpoints that the first has written; collective."""

    def finish(self) -> None:
        """Put the results where they belong."""

    def bring(self) -> None:
        """Bring the files of a run that is only read."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file beside those of the run."""
        write_whole(self.folder / name, content)


class StorePlace(Place):
    """A workdir on a store, with a folder of this machine in which the run works.

    Every file is written here. After a checkpoint, and at the end, the folder is copied to the store; at the start the
    store is copied here, since it alone counts. Of several processes each has a folder of its own; the first alone
    copies to the store.
    """

    def __init__(self, address: str, *, say: Callable[[str], None]) -> None:
        self._store, self._say = StoreFolder(address), say
        super().__init__(_find_staging(self._store.address))
        self.name, self.title = self._store.address, self._store.address.rpartition("/")[2]
        self._mirror, self._lease = Mirror(self.folder, self._store), Lease(self._store, say=say)
        self.saved = self._copy
        self._is_behind = False

    def check(self) -> None:
        """Refuse other addresses in other processes; collective."""
        if not all_agree(zlib.crc32(self.name.encode()) >> 1):
            raise BadInput(f"{self.name}: other processes of this run have another --workdir")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other runs out of the store's folder, and copy it here; collective."""
        with lock_folder(self.folder), self._lease.hold() if is_first() else contextlib.nullcontext():
            if is_first():
                drop_unfinished(self._store, is_all=True)  # of `features`, which writes to workdirs too
                self._mirror.prepare()
            wait_for_all("lease")
            self.bring()
            wait_for_all("copy")  # before the first changes the store
            try:
                yield
            finally:
                if self._is_behind:
                    self._copy()

    def share(self) -> None:
        """Copy the checkpoints of the first process to the others; collective."""
        if jax.process_count() == 1:
            return
        self.finish()
        wait_for_all("shared")
        if not is_first():
            self._mirror.fetch()

    def finish(self) -> None:
        """Copy the results to the store; the first process does."""
        if not is_first():
            return
        try:
            self._lease.check()
            self._mirror.push()
        except StoreError as error:
            raise RunStopped(
                f"{error}; the results are in {self.folder} until the next start, and the same command resumes from "
                "the latest checkpoint on the store"
            ) from error

    def bring(self) -> None:
        """Make the folder here equal to the store."""
        for warning in self._mirror.fetch():
            self._say(warning)

    def write(self, name: str, content: bytes) -> None:
        """Write a file here and on the store."""
        super().write(name, content)
        self._store.write(name, content)

    def _copy(self) -> None:
        """Copy a checkpoint and the log; a store that fails is tried again at the next checkpoint."""
        if not is_first():
            return
        try:
            self._lease.check()
            self._mirror.push()
        except StoreError as error:
            self._is_behind = True
            self._say(
                f"warning: {error}; this checkpoint is not on the store: it is copied with the next one, or when the "
                "run stops; the next start drops what the store does not have"
            )
        else:
            self._is_behind = False


def make_place(workdir: str | pathlib.Path, *, say: Callable[[str], None]) -> Place:
    """Return the place that a user names: a folder of this machine, or an address on a store."""
    if is_store_address(workdir):
        return StorePlace(str(workdir), say=say)
    return Place(pathlib.Path(workdir))


def check_judge(settings: Settings, place: Place) -> None:
    """Refuse a judge of several processes without a shared folder: only the first process's ledger would be kept."""
    judged = settings.trains_policy and settings.rewards.open_answer == "judge"
    if judged and jax.process_count() > 1 and isinstance(place, StorePlace):
        raise BadInput(
            f"config.rewards.open_answer: 'judge' with {jax.process_count()} processes needs a workdir on a file "
            f"system that they share; got {place.name} (paid ratings are kept there)"
        )


def _find_staging(address: str) -> pathlib.Path:
    """Return the folder of this machine for an address: the same at each start, so that features are not made again."""
    if jax.process_count() > 1:
        address += f" {jax.process_index()} of {jax.process_count()}"
    return staging_folder("runs", address)
