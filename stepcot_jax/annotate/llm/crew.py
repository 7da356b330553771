"""Items in flight: interviewers with one budget, and concurrent processing with results in the order of the items."""

import asyncio
import collections
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeAlias, TypeVar

from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, ItemT, Made, Outcome, Provenance, Reason
from stepcot_jax.annotate.llm.answers import Answers
from stepcot_jax.annotate.llm.client import Budget, Endpoint, RequestFailed, RequestRefused
from stepcot_jax.annotate.llm.interviews import Interviewer
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.host.errors import BadInput, RunStopped

Process: TypeAlias = Callable[[ItemT], Awaitable[tuple[Made, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Number of consecutive failed requests after which the run stops; refused requests do not count."""

_WINDOW = 4
_Result = TypeVar("_Result")


class Crew:
    """The interviewers of a run, with one budget and the answers of one folder."""

    def __init__(self, folder: Path, *, cap: int | None, num_repairs: int) -> None:
        self.budget, self._folder, self._num_repairs = Budget(cap), folder, num_repairs
        self._answers: Answers | None = None
        self._open = list[Interviewer]()

    def interview(self, endpoint: Endpoint, prompt: Prompt) -> Interviewer:
        """Return an interviewer that asks a model this prompt; the same for the same model and prompt."""
        for interviewer in self._open:
            if (interviewer.endpoint, interviewer.prompt.digest) == (endpoint, prompt.digest):
                return interviewer
        self._answers = self._answers or Answers(self._folder)
        if not self._open:
            self.budget.num_spent += self._answers.num_tokens
        made = Interviewer(endpoint, prompt, answers=self._answers, budget=self.budget, num_repairs=self._num_repairs)
        self._open.append(made)
        return made

    def count_repeats(self) -> collections.Counter[Reason]:
        """Number of answers that were asked for again, by reason, those of earlier runs included."""
        return collections.Counter(reason for one in self._open for reason in one.asked_again.values())

    async def close(self) -> None:
        """Close all interviewers and the answers."""
        for interviewer in self._open:
            await interviewer.close()
        if self._answers is not None:
            self._answers.close()


@dataclasses.dataclass
class Streak:
    """Number of requests given up in a row; calls of `process_items` that share one add up."""

    number: int = 0


async def process_items(
    items: Iterable[ItemT],
    process: Process[ItemT, Made],
    *,
    budget: Budget,
    concurrency: int = 1,
    streak: Streak | None = None,
) -> AsyncIterator[Outcome[ItemT, Made]]:
    """Yield the outcome of each item, in order, holding only a few; a stop of the budget stops new requests."""
    slots, streak = asyncio.Semaphore(concurrency), streak or Streak()
    pending: collections.deque[asyncio.Task[Outcome[ItemT, Made]]] = collections.deque()

    async def process_one(item: ItemT) -> Outcome[ItemT, Made]:
        async with slots:
            try:
                made, provenance = await process(item)
            except CannotAnnotate as error:
                streak.number = 0
                return Outcome(item, aside=Aside(item.id, error.reason, error.detail))
            except RequestFailed as error:
                streak.number += not isinstance(error, RequestRefused)
                is_refused = isinstance(error, RequestRefused)
                if is_refused or streak.number < MOST_FAILURES_IN_A_ROW:
                    aside = Aside(item.id, Reason.REFUSED if is_refused else Reason.NO_ANSWER, str(error))
                    return Outcome(item, aside=aside, has_failed=True)
                why = f"{streak.number} requests in a row were given up, the last with: {error}"
                stop = RunStopped(f"{why}; every answer is in the ledger, rerun the command to resume")
                await budget.stop(stop)
                raise stop from None
            except (RunStopped, BadInput) as error:
                # Before the slot is released to the next item, whose request would fail too.
                await budget.stop(error)
                raise
            streak.number = 0
            return Outcome(item, made, provenance)

    try:
        for item in items:
            pending.append(asyncio.create_task(process_one(item)))
            while len(pending) >= _WINDOW * concurrency or (pending and pending[0].done()):
                yield await _first(pending)
            await asyncio.sleep(0)
        while pending:
            yield await _first(pending)
    except (RunStopped, BadInput) as error:
        await budget.stop(error)
        # Requests in flight are paid for: wait, so that the ledger keeps their answers for the next run.
        await budget.drain()
        raise
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _first(pending: collections.deque[asyncio.Task[_Result]]) -> _Result:
    """Return the first task's outcome; raise at once the exception of any other task."""
    while not pending[0].done():
        await asyncio.wait([task for task in pending if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            if task.done():
                task.result()
    return pending.popleft().result()
