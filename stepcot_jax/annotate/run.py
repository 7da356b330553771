"""Reports through an annotator, its checks and its quality assurance: several at a time, out in the order they came."""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from stepcot_jax.annotate.annotation import NO_ANSWER, Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.budget import Budget
from stepcot_jax.annotate.client import RequestFailed, RequestRefused
from stepcot_jax.host.errors import BadInput, RunStopped

Provenance = tuple[tuple[str, str], ...]
Process = Callable[[Report], Awaitable[tuple[Annotation, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Requests given up, with none answered between them, after which it is the endpoint and not the report.

A refusal of the very request is none of them: it is about the report, however many such reports are neighbours."""

_WINDOW = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a report.

    Attributes:
      report: the report.
      annotation: its chain; None where it is set aside.
      reason: one of `annotation.REASONS` where it is set aside, else "".
      detail: what was found, without any text of the report.
      provenance: how the chain came about.
      has_failed: whether it is set aside because a request was given up, which another run may mend.
    """

    report: Report
    annotation: Annotation | None
    reason: str = ""
    detail: str = ""
    provenance: Provenance = ()
    has_failed: bool = False


async def process_reports(
    reports: Iterable[Report], process: Process, *, budget: Budget, concurrency: int = 1
) -> AsyncIterator[Outcome]:
    """What becomes of each report, in their order; only a few are held at a time.

    Args:
      reports: the reports.
      process: gives a report's chain, or raises `CannotAnnotate` or `RequestFailed`.
      budget: is stopped where the run has to stop, so that requests under way can end and no new one begins.
      concurrency: reports under way at once.

    Raises:
      RunStopped: the spending cap, a full disk, or an endpoint that is gone.
      BadInput: no request can succeed with this key, address or model.
    """
    slots = asyncio.Semaphore(concurrency)
    streak = _Streak()
    under_way: collections.deque[asyncio.Task[Outcome]] = collections.deque()
    try:
        for report in reports:
            under_way.append(asyncio.create_task(_process_one(report, process, slots, streak, budget)))
            while len(under_way) >= _WINDOW * concurrency or (under_way and under_way[0].done()):
                yield await _first(under_way)
            await asyncio.sleep(0)
        while under_way:
            yield await _first(under_way)
    except (RunStopped, BadInput) as error:
        await budget.stop(error)
        # Requests under way are paid for: they end, and their answers are kept for the next run.
        await asyncio.gather(*under_way, return_exceptions=True)
        raise
    finally:
        for task in under_way:
            task.cancel()


class _Streak:
    """Counts requests that were given up with none answered between them."""

    def __init__(self) -> None:
        self._length = 0

    def end(self) -> None:
        """A request was answered."""
        self._length = 0

    def grow(self, error: RequestFailed) -> RunStopped | None:
        """Count one more; what to stop the run with, if it is one too many."""
        self._length += 1
        if self._length < MOST_FAILURES_IN_A_ROW:
            return None
        return RunStopped(
            f"{self._length} requests in a row were given up, the last with: {error}; "
            "every answer is in the ledger, the same command goes on from there"
        )


async def _first(under_way: collections.deque[asyncio.Task[Outcome]]) -> Outcome:
    """The first task's outcome; what stops another task is raised at once, and not when its turn has come."""
    while not under_way[0].done():
        await asyncio.wait([task for task in under_way if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in under_way:
            if task.done():
                task.result()
    return under_way.popleft().result()


async def _process_one(
    report: Report, process: Process, slots: asyncio.Semaphore, streak: _Streak, budget: Budget
) -> Outcome:
    async with slots:
        try:
            annotation, provenance = await process(report)
        except CannotAnnotate as error:
            streak.end()
            return Outcome(report, None, error.reason, error.detail)
        except RequestFailed as error:
            stop = None if isinstance(error, RequestRefused) else streak.grow(error)
            if stop is None:
                return Outcome(report, None, NO_ANSWER, str(error), has_failed=True)
            await budget.stop(stop)
            raise stop from None
        except (RunStopped, BadInput) as error:
            # Before the slot is free for the next report, which would send its request in vain.
            await budget.stop(error)
            raise
        streak.end()
        return Outcome(report, annotation, provenance=provenance)
