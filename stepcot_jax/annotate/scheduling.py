"""Run reports through an annotator concurrently, and yield the outcomes in the order of the reports."""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from stepcot_jax.annotate.annotation import NO_ANSWER, Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import RequestFailed, RequestRefused
from stepcot_jax.host.errors import BadInput, RunStopped

Provenance = tuple[tuple[str, str], ...]
Process = Callable[[Report], Awaitable[tuple[Annotation, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Consecutive requests given up after which the run blames the endpoint; refused requests do not count."""

_WINDOW = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a report.

    Attributes:
      report: the report.
      annotation: its chain; None if set aside.
      reason: one of `annotation.REASONS` if set aside, else "".
      detail: details of the reason, without text of the report.
      provenance: how the chain was made.
      has_failed: whether a request was given up, so that another run may succeed.
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
    """Yield the outcome of each report, in order, holding only a few reports at a time.

    Args:
      reports: the reports.
      process: returns a report's chain, or raises `CannotAnnotate` or `RequestFailed`.
      budget: stopped when the run has to stop, so that requests in flight finish and no new one starts.
      concurrency: number of reports in flight.

    Raises:
      RunStopped: spending cap, full disk or unreachable endpoint.
      BadInput: no request can succeed with this key, address or model.
    """
    slots = asyncio.Semaphore(concurrency)
    streak = _Streak()
    pending: collections.deque[asyncio.Task[Outcome]] = collections.deque()
    try:
        for report in reports:
            pending.append(asyncio.create_task(_process_one(report, process, slots, streak, budget)))
            while len(pending) >= _WINDOW * concurrency or (pending and pending[0].done()):
                yield await _first(pending)
            await asyncio.sleep(0)
        while pending:
            yield await _first(pending)
    except (RunStopped, BadInput) as error:
        await budget.stop(error)
        # Requests in flight are paid for: wait, so that the ledger keeps their answers for the next run.
        await asyncio.gather(*pending, return_exceptions=True)
        raise
    finally:
        for task in pending:
            task.cancel()


class _Streak:
    """Counts consecutive requests that were given up; an answer resets `length`."""

    length = 0

    def grow(self, error: RequestFailed) -> RunStopped | None:
        """Count one more; return the error that stops the run if there are too many."""
        self.length += 1
        if self.length < MOST_FAILURES_IN_A_ROW:
            return None
        return RunStopped(
            f"{self.length} requests in a row were given up, the last with: {error}; "
            "every answer is in the ledger, rerun the command to resume"
        )


async def _first(pending: collections.deque[asyncio.Task[Outcome]]) -> Outcome:
    """Return the first task's outcome; raise at once what stops any other task."""
    while not pending[0].done():
        await asyncio.wait([task for task in pending if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            if task.done():
                task.result()
    return pending.popleft().result()


async def _process_one(
    report: Report, process: Process, slots: asyncio.Semaphore, streak: _Streak, budget: Budget
) -> Outcome:
    async with slots:
        try:
            annotation, provenance = await process(report)
        except CannotAnnotate as error:
            streak.length = 0
            return Outcome(report, None, error.reason, error.detail)
        except RequestFailed as error:
            stop = None if isinstance(error, RequestRefused) else streak.grow(error)
            if stop is None:
                return Outcome(report, None, NO_ANSWER, str(error), has_failed=True)
            await budget.stop(stop)
            raise stop from None
        except (RunStopped, BadInput) as error:
            # Before the slot is released to the next report, whose request would fail too.
            await budget.stop(error)
            raise
        streak.length = 0
        return Outcome(report, annotation, provenance=provenance)
