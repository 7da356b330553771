"""Run reports through an annotator concurrently, and yield the outcomes in the order of the reports."""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from stepcot_jax.annotate.annotation import Annotation, Aside, CannotAnnotate, Provenance, Reason, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import RequestFailed, RequestRefused
from stepcot_jax.host.errors import BadInput, RunStopped

Process = Callable[[Report], Awaitable[tuple[Annotation, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Consecutive requests given up after which the run blames the endpoint; refused requests do not count."""

_WINDOW = 4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a report: its chain, or why it is set aside.

    With `has_failed` a request was given up, so that another run may succeed.
    """

    report: Report
    annotation: Annotation | None = None
    provenance: Provenance = ()
    aside: Aside | None = None
    has_failed: bool = False


async def process_reports(
    reports: Iterable[Report], process: Process, *, budget: Budget, concurrency: int = 1
) -> AsyncIterator[Outcome]:
    """Yield the outcome of each report, in order, holding only a few reports at a time.

    `process` returns a report's chain, or raises `CannotAnnotate` or `RequestFailed`. The budget is stopped when the
    run has to stop, so that requests in flight finish and no new one starts.

    Raises:
      RunStopped: spending cap, full disk or unreachable endpoint.
      BadInput: no request can succeed with this key, address or model.
    """
    slots, streak = asyncio.Semaphore(concurrency), 0
    pending: collections.deque[asyncio.Task[Outcome]] = collections.deque()

    async def process_one(report: Report) -> Outcome:
        nonlocal streak
        async with slots:
            try:
                annotation, provenance = await process(report)
            except CannotAnnotate as error:
                streak = 0
                return Outcome(report, aside=Aside(report.id, error.reason, error.detail))
            except RequestFailed as error:
                streak += not isinstance(error, RequestRefused)
                if isinstance(error, RequestRefused) or streak < MOST_FAILURES_IN_A_ROW:
                    aside = Aside(report.id, Reason.NO_ANSWER, str(error))
                    return Outcome(report, aside=aside, has_failed=True)
                why = f"{streak} requests in a row were given up, the last with: {error}"
                stop = RunStopped(f"{why}; every answer is in the ledger, rerun the command to resume")
                await budget.stop(stop)
                raise stop from None
            except (RunStopped, BadInput) as error:
                # Before the slot is released to the next report, whose request would fail too.
                await budget.stop(error)
                raise
            streak = 0
            return Outcome(report, annotation, provenance)

    try:
        for report in reports:
            pending.append(asyncio.create_task(process_one(report)))
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


async def _first(pending: collections.deque[asyncio.Task[Outcome]]) -> Outcome:
    """Return the first task's outcome; raise at once what stops any other task."""
    while not pending[0].done():
        await asyncio.wait([task for task in pending if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            if task.done():
                task.result()
    return pending.popleft().result()
