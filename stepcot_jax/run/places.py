"""The storage of a run's files: a folder of this machine, which an extra synchronises with an address, if any."""

import contextlib
import pathlib
import zlib
from collections.abc import Callable, Iterator

import jax

from stepcot_jax.host.download import is_address, open_remote
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import lock_folder, make_workdir, write_whole
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.run.settings import Settings
from stepcot_jax.training.processes import all_agree, check_shared, is_first, wait_for_all


class Place:
    """A workdir, as the user names it: a folder, or an address such as gs://BUCKET/FOLDER.

    With an address, every file is written to a folder of this machine. At the start the folder becomes a copy of the
    address; after each checkpoint and at the end, the first process uploads the changes of its folder.
    """

    def __init__(self, workdir: str | pathlib.Path, *, say: Callable[[str], None]) -> None:
        self._remote = None
        self.is_remote = is_address(workdir)
        if self.is_remote:
            number = jax.process_count()
            part = f"{jax.process_index()} of {number}" if number > 1 else ""
            self._remote = open_remote(str(workdir), say=say, part=part)
            self.folder, self.name = self._remote.folder, str(workdir).rstrip("/")
            self.title = self.name.rpartition("/")[2]  # the run's name in loggers
        else:
            self.folder, self.name = pathlib.Path(workdir), str(pathlib.Path(workdir))
            self.title = resolve(self.folder).name
        make_workdir(self.folder)

    @property
    def saved(self) -> Callable[[], None] | None:
        """A function to call after each checkpoint is written, which uploads it from the first process; None without.

        All processes have one at an address: there each has a folder of its own, and they write no checkpoint together.
        """
        if self._remote is None:
            return None
        return self._remote.saved if is_first() else lambda: None

    def check(self) -> None:
        """Refuse a workdir that is not the same in all processes; collective."""
        if self._remote is None:
            check_shared(self.folder)
        elif not all_agree(zlib.crc32(self.name.encode()) >> 1):
            raise BadInput(f"{self.name}: other processes of this run have another --workdir")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the folder against other runs of this machine, and download the files at the address; collective."""
        locks = is_first() or self._remote is not None  # the first process locks a shared folder for all
        with lock_folder(self.folder) if locks else contextlib.nullcontext():
            if self._remote is None:
                yield
                return
            self.bring()
            wait_for_all("copy")  # before the first process changes the address
            try:
                yield
            finally:
                if self._remote.is_behind:
                    self._remote.saved()

    def bring(self) -> None:
        """Download the files at the address."""
        if self._remote is not None:
            self._remote.start()

    def share(self) -> None:
        """Copy the checkpoints of the first process to all; collective."""
        if self._remote is not None and jax.process_count() > 1:
            self.finish()
            wait_for_all("shared")
            if not is_first():
                self._remote.start()

    def finish(self) -> None:
        """Upload the results to the address, from the first process."""
        if self._remote is not None and is_first():
            self._remote.finish()

    def write(self, name: str, content: bytes) -> None:
        """Write a file next to those of the run, also at the address."""
        write_whole(self.folder / name, content)
        self.finish()


def check_judge(settings: Settings, place: Place) -> None:
    """Refuse a judge of several processes without a shared folder: only the first process's ledger would be kept."""
    judged = settings.trains_policy and settings.rewards.open_answer == "judge"
    if judged and jax.process_count() > 1 and place.is_remote:
        raise BadInput(
            f"config.rewards.open_answer: 'judge' with {jax.process_count()} processes needs a workdir on a file "
            f"system that they share; got {place.name} (paid ratings are kept there)"
        )
