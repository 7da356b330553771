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
import traceback
from multiprocessing import queues, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from stepcot_jax.host.errors import BadInput

LOOK_SECONDS = 0.02
"""How often a worker that waits, and who waits for workers, look again."""

_KILL_SECONDS = 5.0
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


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
        for number in self.processes.keys() & reported:  # one that Python does not know of yet has to wait
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
        """Send those home that wait, or have not reported yet."""
        with contextlib.suppress(FileNotFoundError):  # at once, whatever is written to it in the meantime
            self.waiting.rename(self.waiting.with_name("over"))
        self._folder.cleanup()


def hold_signals() -> None:
    """Keep the signals that are the parent's alone from workers that this thread, or one of its threads, starts.

    They are blocked from a worker's first moment, and ignored once it reports.
    """
    resource_tracker.ensure_running()  # which would let them through again, were it started later
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)


def report(waiting: Path) -> None:
    """In a worker: say who one is, wait to be known, and from now on end with the parent.

    Ctrl-C and SIGTERM may reach a whole group of processes; they are left to the parent, which closes its workers.
    """
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    # A message that cannot be pickled would be dropped, and waited for.
    queues.Queue._on_queue_feeder_error = staticmethod(_end_with)  # type: ignore[attr-defined]
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
    if not waiting.exists():  # closed before anything was read
        os._exit(1)


def _end_with(error: BaseException, _: object) -> None:
    traceback.print_exception(error)
    os._exit(1)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
