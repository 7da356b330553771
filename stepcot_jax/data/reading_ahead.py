"""Items of a Grain data set in order, read ahead in threads or in worker processes; the position can be saved.

The position is the number of the next item, whatever reads ahead: a run may go on with another number of workers.
"""

import contextlib
import functools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
from absl import flags

from stepcot_jax.data.roll_call import LOOK_SECONDS, RollCall, hold_signals, report
from stepcot_jax.host.errors import RunStopped

Finish = Callable[[Any], Any]

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 5.0
_BUFFER = 2
_INLINE_BYTES = 2048  # smaller arrays travel in the message; the others in shared memory
_GRAIN_SAYS = "terminated unexpectedly"


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
        self._roll = RollCall()
        options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
        read = grain.experimental.WithOptionsIterDataset(
            items.to_iter_dataset(options), grain.experimental.DatasetOptions(min_shm_size=_INLINE_BYTES)
        ).mp_prefetch(
            grain.multiprocessing.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=_BUFFER),
            worker_init_fn=functools.partial(_start_worker, self._roll.waiting),
        )
        self._finished: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_BUFFER)
        stop = threading.Event()
        thread = threading.Thread(
            target=_feed, args=(iter(read), finish, self._finished, stop), name="stepcot-finish", daemon=True
        )
        # Also at the exit of the interpreter, before the modules that the workers' ends need are gone.
        self._close = weakref.finalize(self, _shut_down, self._roll, self._finished, stop, thread)
        thread.start()

    def next(self) -> Any:
        ended_at: float | None = None
        while True:
            all_known = len(self._roll.processes) == self._num_workers
            if not all_known:
                self._roll.look()
            try:
                item, error = self._finished.get(timeout=_POLL_SECONDS if all_known else LOOK_SECONDS)
            except queue.Empty:
                # Grain notices most ends of workers itself; one that ends while it writes leaves it waiting.
                if ended_at is None and self._roll.describe_ended():
                    ended_at = time.monotonic()
                if ended_at is not None and time.monotonic() - ended_at > _GRACE_SECONDS:
                    raise self._stopped("") from None
                continue
            if error is None:
                return item
            if type(error) is RuntimeError and _GRAIN_SAYS in str(error):
                raise self._stopped(str(error).partition(". ")[0]) from None
            raise error

    def close(self) -> None:
        self._close()

    def _stopped(self, otherwise: str) -> RunStopped:
        which = self._roll.describe_ended() or otherwise
        return RunStopped(
            f"one of the {self._num_workers} worker processes that read images is gone: {which}; SIGKILL is most often "
            "too little memory, SIGBUS too little /dev/shm; config.data.num_workers may be lower, or 0 to read without"
        )


def _feed(iterator: Any, finish: Finish, finished: queue.Queue, stop: threading.Event) -> None:
    """Put every finished item, and at last what ended them, into the queue, until told to stop; then end the workers.

    Nobody else touches the iterator: closed under the hands of who waits for it, it might never come back.
    """
    hold_signals()
    error: BaseException | None = None
    while not stop.is_set() and error is None:
        item = None
        try:
            item = finish(next(iterator))
        except BaseException as raised:  # all of it goes to the thread that asks for items
            error = raised
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                finished.put((item, error), timeout=_POLL_SECONDS)
                break
    iterator.close()


def _shut_down(roll: RollCall, finished: queue.Queue, stop: threading.Event, thread: threading.Thread) -> None:
    """End the thread, and with it the workers: those that do not end by themselves, and at once where one is gone."""
    stop.set()
    try:
        roll.look()
    finally:
        roll.close()
    if threading.current_thread() is thread:  # garbage is collected anywhere
        return
    ended = not roll.describe_ended() and _await(thread, finished)
    roll.kill()
    if not ended:
        # A thread that waits for the rest of a message of one that was killed never ends; it has nothing and does
        # nothing, and is left alone.
        _await(thread, finished)


def _await(thread: threading.Thread, finished: queue.Queue) -> bool:
    """Whether the thread ends within the time of grace; what it has finished is dropped."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            finished.get_nowait()
        thread.join(timeout=LOOK_SECONDS)
    return not thread.is_alive()


def _start_worker(waiting: Path, number: int, num_workers: int) -> None:  # noqa: ARG001 (Grain gives both)
    """What Grain has a worker do before it reads."""
    report(waiting)
