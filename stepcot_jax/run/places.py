"""Where a run's files lie: a folder of this machine, which an extra keeps like one at an address if that is named."""

import contextlib
import pathlib
import zlib
from collections.abc import Callable, Iterator

import jax

from stepcot_jax.host.download import is_address, open_remote
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.run.settings import Settings
from stepcot_jax.training.processes import all_agree, check_shared, is_first, wait_for_all


class Place:
    """A workdir, as the user names it: a folder, or an address such as s3://BUCKET/FOLDER.

    At an address every file is written to a folder of this machine. After a checkpoint, and at the end, what has
    changed is sent; at the start the folder becomes what is there. Of several processes each has a folder of its own,
    and the first alone sends.

    Attributes:
      folder: where the run reads and writes.
      name: what the user calls it.
      title: the last part of it, as the run's name in loggers.
    """

    def __init__(self, workdir: str | pathlib.Path, *, say: Callable[[str], None]) -> None:
        self._remote = None
        if is_address(workdir):
            number = jax.process_count()
            part = f"{jax.process_index()} of {number}" if number > 1 else ""
            self._remote = open_remote(str(workdir), say=say, part=part)
            self.folder, self.name = self._remote.folder, str(workdir).rstrip("/")
        else:
            self.folder = pathlib.Path(workdir)
            self.name = str(self.folder)
        make_workdir(self.folder)
        self.title = self.name.rpartition("/")[2] if self._remote else self.folder.resolve().name

    @property
    def is_remote(self) -> bool:
        """Whether it is at an address."""
        return self._remote is not None

    @property
    def saved(self) -> Callable[[], None] | None:
        """What to call when a checkpoint is on the disk; None if nothing is to be done."""
        return self._remote.saved if self._remote is not None and is_first() else None

    def check(self) -> None:
        """Refuse a workdir that is not the same in all processes; collective."""
        if self._remote is None:
            check_shared(self.folder)
        elif not all_agree(zlib.crc32(self.name.encode()) >> 1):
            raise BadInput(f"{self.name}: other processes of this run have another --workdir")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other runs of this machine out of the folder, and bring what is at the address; collective."""
        locks = is_first() or self._remote is not None  # of a shared folder the first process locks it for all
        with lock_folder(self.folder) if locks else contextlib.nullcontext():
            if self._remote is None:
                yield
                return
            self.bring()
            wait_for_all("copy")  # before the first changes what is at the address
            try:
                yield
            finally:
                if self._remote.is_behind:
                    self._remote.saved()

    def bring(self) -> None:
        """Bring what is at the address."""
        if self._remote is not None:
            self._remote.start()

    def share(self) -> None:
        """Give every process the checkpoints that the first has written; collective."""
        if self._remote is not None and jax.process_count() > 1:
            self.finish()
            wait_for_all("shared")
            if not is_first():
                self._remote.start()

    def finish(self) -> None:
        """Send the results to the address; the first process does."""
        if self._remote is not None and is_first():
            self._remote.finish()

    def write(self, name: str, content: bytes) -> None:
        """Write a file beside those of the run, also at the address."""
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
