"""Which worker processes are whose: each reports to the process that started it, and waits until it is known.

Python forgets a process that ended before anybody asked for it. A worker that is not known until it reads cannot end
unnoticed: before, it has written nothing, and Grain sees that it is gone; after, its exit code is kept.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from stepcot_jax.errors import BadInput

LOOK_SECONDS = 0.02
"""How often a worker that waits, and who waits for workers, look again."""

_KILL_SECONDS = 5.0


class RollCall:
    """The workers of one iterator.

    Attributes:
      waiting: folder in which workers report; what `report` is called with.
      processes: those that have reported, by process number.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="stepcot-workers-", ignore_cleanup_errors=True)
        except FileNotFoundError as error:
            raise BadInput(f"{error.strerror}, accepted is one that can be written to, by TMPDIR") from None
        self.waiting = Path(self._folder.name, "waiting")
        self.waiting.mkdir()
        self.processes: dict[int, BaseProcess] = {}

    def look(self) -> None:
        """Take in who has reported, and let them go on."""
        reported = [int(path.name) for path in self.waiting.iterdir()] if self.waiting.exists() else []
        if reported:
            children = {process.pid: process for process in multiprocessing.active_children()}
            self.processes |= {number: children[number] for number in reported if number in children}
        for number in reported:
            (self.waiting / str(number)).unlink(missing_ok=True)

    def describe_ended(self) -> str:
        """Which workers ended otherwise than well, and how; "" if none did."""
        ended = {number: process.exitcode for number, process in self.processes.items() if process.exitcode}
        return ", ".join(f"process {number} {_describe_exit(code)}" for number, code in ended.items())

    def kill(self) -> None:
        """End all that have reported, whatever they are doing."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(_KILL_SECONDS)

    def close(self) -> None:
        """Let everybody go on, also those that have not reported yet."""
        with contextlib.suppress(FileNotFoundError):  # at once: who looks for a file in it finds none from now on
            self.waiting.rename(self.waiting.with_name("over"))
        self._folder.cleanup()


def report(waiting: Path) -> None:
    """In a worker: say who one is, wait to be known, and from now on end with the parent.

    Ctrl-C is left to the parent, which closes its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # type: ignore[union-attr]
        shutil.rmtree(waiting.parent, ignore_errors=True)  # which the parent had no time for
        os._exit(1)

    threading.Thread(target=watch, name="stepcot-watch-parent", daemon=True).start()
    own = waiting / str(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        own.touch()
    while own.exists():
        time.sleep(LOOK_SECONDS)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
