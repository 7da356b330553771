"""Work in threads: results in order, with a bound on how far the threads run ahead."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, num_threads: int, num_ahead: int | None = None
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order; a slow consumer holds the threads back."""
    limit = num_threads if num_ahead is None else num_ahead
    pending: collections.deque[tuple[Item, concurrent.futures.Future[Result]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for item in items:
            pending.append((item, pool.submit(work, item)))
            if len(pending) > limit:
                earliest, future = pending.popleft()
                yield earliest, future.result()
        while pending:
            earliest, future = pending.popleft()
            yield earliest, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
