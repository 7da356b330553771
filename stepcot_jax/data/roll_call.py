"""Handshake between the run and its worker processes: a worker reports and waits until the run knows it.

Python drops the exit code of a child that ended unnoticed. Until a worker is known it has written nothing and Grain
notices its death; afterwards the run keeps its exit code.
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

LOOK_SECONDS = 0.02  # polling interval of waiting workers and of the run waiting for them

_KILL_SECONDS = 5.0
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class RollCall:
    """The workers of one iterator.

    Attributes:
      waiting: folder in which workers report, the argument of `report`.
      processes: workers that have reported, by process ID.
    """

    def __init__(self) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="stepcot-workers-", ignore_cleanup_errors=True)
        except FileNotFoundError as error:
            raise BadInput(f"{error.strerror}; set TMPDIR to a writable folder") from None
        self.waiting = Path(self._folder.name, "waiting")
        self.waiting.mkdir()
        self.processes: dict[int, BaseProcess] = {}

    def look(self) -> None:
        """Register the workers that have reported, and let them continue."""
        reported = [int(path.name) for path in self.waiting.iterdir()] if self.waiting.exists() else []
        if reported:
            children = {process.pid: process for process in multiprocessing.active_children()}
            self.processes |= {number: children[number] for number in reported if number in children}
        for number in self.processes.keys() & reported:  # others wait until Python knows them
            (self.waiting / str(number)).unlink(missing_ok=True)

    def describe_ended(self) -> str:
        """Return which workers failed and how; "" if none did."""
        names = {-number.value: f"was ended by {number.name}" for number in signal.Signals}
        ended = {number: process.exitcode for number, process in self.processes.items() if process.exitcode}
        return ", ".join(
            f"process {number} {names.get(code, f'ended with exit code {code}')}" for number, code in ended.items()
        )

    def kill(self) -> None:
        """Kill all workers that have reported."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(_KILL_SECONDS)

    def close(self) -> None:
        """End the workers that wait or have not reported yet."""
        with contextlib.suppress(FileNotFoundError):  # atomic, even while workers write to it
            self.waiting.rename(self.waiting.with_name("over"))
        self._folder.cleanup()


def hold_signals() -> None:
    """Block the parent's signals in workers that this thread or its threads start.

    They are blocked from a worker's first moment, and ignored once it reports.
    """
    resource_tracker.ensure_running()  # started later, it would unblock them
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)


def report(waiting: Path, *_: int) -> None:
    """Report this worker to the run, wait until it is known, and from then on end with the run.

    Grain calls it in each worker, with two numbers more. Ctrl-C and SIGTERM may reach the whole process group; only
    the run handles them and closes its workers.
    """
    for number in _OF_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_PARENT)
    # A message that cannot be pickled would be dropped silently, and the run would wait for it.
    queues.Queue._on_queue_feeder_error = staticmethod(_end_with)  # type: ignore[attr-defined]
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # type: ignore[union-attr]
        shutil.rmtree(waiting.parent, ignore_errors=True)  # the killed parent could not
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
