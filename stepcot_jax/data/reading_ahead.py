"""Items of a Grain data set in order, read ahead in threads or in worker processes; the position can be saved.

The position is the number of the next item, whatever reads ahead: a run may go on with another number of workers.
"""

import contextlib
import functools
import multiprocessing
import os
import queue
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
from absl import flags

from stepcot_jax.errors import RunStopped

Finish = Callable[[Any], Any]

_WORKER_NAME = "grain-process-prefetch"
_POLL_SECONDS = 1.0
_LOOK_SECONDS = 0.02
_GRACE_SECONDS = 5.0
_BUFFER = 2
_INLINE_BYTES = 2048  # smaller arrays travel in the message; the others in shared memory
_GRAIN_SAYS = "terminated unexpectedly"
_ABANDONED: list[Any] = []


class ReadAhead(Iterator[Any]):
    """Iterates over `items`, each of which then goes through `finish` in this process.

    Reading starts with the first item that is asked for. Close it when it is not needed any more: workers end then, and
    at the latest with this process.

    Args:
      items: what is read; with workers, it is pickled.
      finish: applied in this process, in another thread than the caller's.
      num_threads: threads that read, in this process or in each worker.
      num_workers: processes that read; 0 for none.
    """

    def __init__(self, items: grain.MapDataset, finish: Finish, *, num_threads: int, num_workers: int = 0) -> None:
        self._items, self._finish = items, finish
        self._num_threads, self._num_workers = num_threads, num_workers
        self._next_index = 0
        self._started: _Threads | _Workers | None = None

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
                self._started = _Threads(left, self._finish, num_threads=self._num_threads)
        try:
            item = self._started.next()
        except BaseException:
            self.close()
            raise
        self._next_index += 1
        return item

    def get_state(self) -> dict[str, int]:
        """The position, for `set_state`."""
        return {"next_index": self._next_index}

    def set_state(self, state: dict[str, int]) -> None:
        """Go to a position; what was read ahead is dropped."""
        self.close()
        self._next_index = int(state["next_index"])

    def close(self) -> None:
        """End threads and workers; the next item that is asked for starts them anew."""
        if self._started is not None:
            self._started.close()
            self._started = None


class _Threads:
    """Reads and finishes in threads of this process."""

    def __init__(self, items: grain.MapDataset, finish: Finish, *, num_threads: int) -> None:
        options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
        self._iterator = iter(items.map(finish).to_iter_dataset(options))

    def next(self) -> Any:
        return next(self._iterator)

    def close(self) -> None:
        self._iterator.close()


class _Workers:
    """Reads in processes, through Grain, and finishes in one thread of this process."""

    def __init__(self, items: grain.MapDataset, finish: Finish, *, num_threads: int, num_workers: int) -> None:
        if not flags.FLAGS.is_parsed():
            # Grain asks its flags, which nobody can have given where no absl program runs (a notebook, a test): they
            # have their defaults then, which is all that this says.
            flags.FLAGS.mark_as_parsed()
        self._num_workers = num_workers
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._processes: dict[int | None, Any] = {}
        # Python forgets a process that ended before anybody asked for it, and nobody would notice. So each worker waits
        # here for a file with its process number before it reads, or until the folder is gone.
        self._known = tempfile.TemporaryDirectory(prefix="stepcot-workers-", ignore_cleanup_errors=True)
        options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
        read = grain.experimental.WithOptionsIterDataset(
            items.to_iter_dataset(options), grain.experimental.DatasetOptions(min_shm_size=_INLINE_BYTES)
        ).mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=_BUFFER),
            worker_init_fn=functools.partial(_start_worker, Path(self._known.name)),
        )
        iterator = iter(read)
        self._finished: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_BUFFER)
        stop = threading.Event()
        thread = threading.Thread(
            target=_feed, args=(iterator, finish, self._finished, stop), name="stepcot-finish", daemon=True
        )
        # Also at the exit of the interpreter, before the modules that the workers' ends need are gone.
        self._close = weakref.finalize(
            self, _shut_down, self._known, self._processes, iterator, self._finished, stop, thread
        )
        thread.start()

    def next(self) -> Any:
        ended_at: float | None = None
        while True:
            all_known = len(self._processes) == self._num_workers
            try:
                item, error = self._finished.get(timeout=_POLL_SECONDS if all_known else _LOOK_SECONDS)
            except queue.Empty:
                # Grain notices most ends of workers itself; one that ends while it writes leaves it waiting.
                if ended_at is None and self._describe_ended():
                    ended_at = time.monotonic()
                if ended_at is not None and time.monotonic() - ended_at > _GRACE_SECONDS:
                    raise self._stopped("") from None
                continue
            if error is None:
                self._find_processes()
                return item
            if type(error) is RuntimeError and _GRAIN_SAYS in str(error):
                raise self._stopped(str(error).partition(". ")[0]) from None
            raise error

    def close(self) -> None:
        self._close()

    def _find_processes(self) -> None:
        if len(self._processes) == self._num_workers:
            return
        for process in multiprocessing.active_children():
            if process.name.startswith(_WORKER_NAME) and process.pid not in self._others | self._processes.keys():
                self._processes[process.pid] = process
                with contextlib.suppress(FileNotFoundError):  # the folder may be gone, which tells them as much
                    Path(self._known.name, str(process.pid)).touch()
        if len(self._processes) == self._num_workers:
            self._known.cleanup()

    def _describe_ended(self) -> str:
        self._find_processes()
        ended = {pid: process.exitcode for pid, process in self._processes.items() if process.exitcode}
        return ", ".join(f"process {pid} {_describe_exit(code)}" for pid, code in ended.items())

    def _stopped(self, otherwise: str) -> RunStopped:
        which = self._describe_ended() or otherwise
        return RunStopped(
            f"one of the {self._num_workers} worker processes that read images is gone: {which}; SIGKILL is most often "
            "too little memory, SIGBUS too little /dev/shm; config.data.num_workers may be lower, or 0 to read without"
        )


def _feed(iterator: Any, finish: Finish, finished: queue.Queue, stop: threading.Event) -> None:
    """Put every finished item, and at last what ended them, into the queue, until told to stop."""
    error: BaseException | None = None
    while not stop.is_set():
        item = None
        try:
            item = finish(next(iterator))
        except BaseException as raised:  # all of it goes to the thread that asks for items
            error = raised
        while not stop.is_set():
            try:
                finished.put((item, error), timeout=_POLL_SECONDS)
                break
            except queue.Full:
                continue
        if error is not None:
            return


def _shut_down(
    known: tempfile.TemporaryDirectory,
    processes: dict[int | None, Any],
    iterator: Any,
    finished: queue.Queue,
    stop: threading.Event,
    thread: threading.Thread,
) -> None:
    known.cleanup()
    stop.set()
    # The thread first: closed under its hands, Grain's iterator might never come back to it.
    deadline = time.monotonic() + _GRACE_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            finished.get_nowait()
        thread.join(timeout=0.02)
    if thread.is_alive():  # Grain waits for a worker that may never answer; collecting its iterator would wait as well
        _ABANDONED.append(iterator)
        for process in processes.values():
            process.kill()
    else:
        iterator.close()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _start_worker(known: Path, number: int, num_workers: int) -> None:  # noqa: ARG001 (Grain gives both)
    """Leave Ctrl-C to the parent, which closes its workers, end with it even where it had no time to; wait for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=watch, name="stepcot-watch-parent", daemon=True).start()
    while known.exists() and not (known / str(os.getpid())).exists():
        time.sleep(_LOOK_SECONDS)
