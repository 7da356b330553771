"""Iterate over a Grain dataset in order, reading ahead in threads or worker processes.

The saved position is the number of the next item, so that a run may resume with another number of workers.
"""

import contextlib
import functools
import multiprocessing
import os
import queue
import shutil
import signal
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import queues, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import grain
from absl import flags

from stepcot_jax.host.errors import BadInput, RunStopped

# Python drops the exit code of a child that ended unnoticed. Until a worker is registered it has written nothing and
# Grain notices its death; afterwards the run keeps its exit code.

LOOK_SECONDS = 0.02  # polling interval of waiting workers and of the run waiting for them
_KILL_SECONDS = 5.0
_OF_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class RollCall:
    """The workers of one iterator."""

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
    """Block the parent's signals in workers that this thread or its threads start."""
    resource_tracker.ensure_running()  # started later, it would unblock them
    signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_PARENT)


def report(waiting: Path, *_: int) -> None:
    """Report this worker to the run, wait until the run has registered it, and from then on end with the run.

    Grain calls it in each worker, with two further numbers. Ctrl-C and SIGTERM may reach all of the process group; only
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
    marker = waiting / str(os.getpid())
    with contextlib.suppress(FileNotFoundError):
        marker.touch()
    while marker.exists():
        time.sleep(LOOK_SECONDS)
    if not waiting.exists():  # closed before anything was read
        os._exit(1)


def _end_with(error: BaseException, _: object) -> None:
    traceback.print_exception(error)
    os._exit(1)


Finish = Callable[[Any], Any]
_POLL_SECONDS = 1.0
_GRACE_SECONDS = 5.0
_BUFFER = 2
_INLINE_BYTES = 2048  # smaller arrays are sent in the message, larger ones in shared memory
_GRAIN_MESSAGE = "terminated unexpectedly"


class ReadAhead(Iterator[Any]):
    """Iterates over `items` and applies `finish` to each in this process.

    Reading starts with the first item. Close it after use to end its workers; they end with this process at the latest.
    """

    def __init__(self, items: grain.MapDataset, finish: Finish, *, num_threads: int, num_workers: int = 0) -> None:
        self._items, self._finish = items, finish
        self._num_threads, self._num_workers = num_threads, num_workers
        self._next_index = 0
        self._started: Any = None

    def __next__(self) -> Any:
        if self._next_index >= len(self._items):
            self.close()
            raise StopIteration
        if self._started is None:
            left = self._items.slice(slice(self._next_index, None))
            num_workers = min(self._num_workers, len(left))
            if num_workers:
                self._started = _Workers(left, self._finish, num_threads=self._num_threads, num_workers=num_workers)
            else:
                self._started = iter(left.map(self._finish).to_iter_dataset(_read_options(self._num_threads)))
        try:
            item = next(self._started)
        except BaseException:
            self.close()
            raise
        self._next_index += 1
        return item

    def get_state(self) -> dict[str, int]:
        """Return the position, for `set_state`."""
        return {"next_index": self._next_index}

    def set_state(self, state: dict[str, int]) -> None:
        """Move to a position and drop what was read ahead."""
        self.close()
        self._next_index = int(state["next_index"])

    def close(self) -> None:
        """End threads and workers; the next item starts new ones."""
        if self._started is not None:
            self._started.close()
            self._started = None


def _read_options(num_threads: int) -> grain.ReadOptions:
    return grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)


class _Workers:
    """Reads in Grain's worker processes and finishes in one thread of this process."""

    def __init__(self, items: grain.MapDataset, finish: Finish, *, num_threads: int, num_workers: int) -> None:
        if not flags.FLAGS.is_parsed():
            # Grain reads absl flags; outside an absl program (a notebook, a test) they keep their defaults.
            flags.FLAGS.mark_as_parsed()
        self._num_workers = num_workers
        self._roll = RollCall()
        in_message = grain.experimental.DatasetOptions(min_shm_size=_INLINE_BYTES)
        read = grain.experimental.WithOptionsIterDataset(
            items.to_iter_dataset(_read_options(num_threads)), in_message
        ).mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=_BUFFER),
            worker_init_fn=functools.partial(report, self._roll.waiting),
        )
        self._finished: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_BUFFER)
        stop = threading.Event()
        thread = threading.Thread(
            target=_feed, args=(iter(read), finish, self._finished, stop), name="stepcot-finish", daemon=True
        )
        # Also runs at interpreter exit, while the modules that it needs still exist.
        self.close = weakref.finalize(self, _shut_down, self._roll, self._finished, stop, thread)
        thread.start()

    def __next__(self) -> Any:
        ended_at: float | None = None
        while True:
            all_known = len(self._roll.processes) == self._num_workers
            if not all_known:
                self._roll.look()
            try:
                item, error = self._finished.get(timeout=_POLL_SECONDS if all_known else LOOK_SECONDS)
            except queue.Empty:
                # Grain notices most worker deaths, but not one in the middle of a message.
                if ended_at is None and self._roll.describe_ended():
                    ended_at = time.monotonic()
                if ended_at is not None and time.monotonic() - ended_at > _GRACE_SECONDS:
                    raise self._stopped("") from None
                continue
            if error is None:
                return item
            if type(error) is RuntimeError and _GRAIN_MESSAGE in str(error):
                raise self._stopped(str(error).partition(". ")[0]) from None
            raise error

    def _stopped(self, otherwise: str) -> RunStopped:
        which = self._roll.describe_ended() or otherwise
        return RunStopped(
            f"one of the {self._num_workers} worker processes that read images died: {which}; SIGKILL usually means "
            "too little memory, SIGBUS too little /dev/shm; lower config.data.num_workers, or set it to 0"
        )


def _feed(iterator: Any, finish: Finish, finished: queue.Queue, stop: threading.Event) -> None:
    """Put every finished item, then the error that ended the iteration, into the queue; at last end the workers.

    Only this thread uses the iterator: closing it while another thread waits on it may block forever.
    """
    hold_signals()
    error: BaseException | None = None
    while not stop.is_set() and error is None:
        item = None
        try:
            item = finish(next(iterator))
        except BaseException as raised:  # passed to the consuming thread
            error = raised
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                finished.put((item, error), timeout=_POLL_SECONDS)
                break
    iterator.close()


def _shut_down(roll: RollCall, finished: queue.Queue, stop: threading.Event, thread: threading.Thread) -> None:
    """End the thread and its workers; kill workers that do not end, at once if one has died."""
    stop.set()
    try:
        roll.look()
    finally:
        roll.close()
    if threading.current_thread() is thread:  # the garbage collector may run here
        return
    ended = not roll.describe_ended() and _await(thread, finished)
    roll.kill()
    if not ended:
        # A thread waiting for the rest of a killed worker's message never ends; it is harmless and left alone.
        _await(thread, finished)


def _await(thread: threading.Thread, finished: queue.Queue) -> bool:
    """Return whether the thread ends within the grace period; drop its finished items."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            finished.get_nowait()
        thread.join(timeout=LOOK_SECONDS)
    return not thread.is_alive()
