"""A run of an annotator: settings, interviewers, items in flight, and what stops it.

Items are annotated concurrently; their outcomes come in the order of the items.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, ItemT, Made, Outcome, Provenance, Reason
from stepcot_jax.annotate.llm.answers import SUFFIX, count_spent
from stepcot_jax.annotate.llm.client import AwaitsReply, Budget, RequestFailed, RequestRefused
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.interviews import Connect, Interviewer, connect_live
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.annotate.llm.request_files import BatchLimits, Outbox
from stepcot_jax.annotate.output import LEDGER_FOLDER, Result
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.terminal import Terminal

Process: TypeAlias = Callable[[ItemT], Awaitable[tuple[Made, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Consecutive requests given up after which the run blames the endpoint; refused requests do not count."""

_WINDOW = 4
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Attributes:
      annotator: the model that annotates; None for the offline version.
      voters: further models that vote on each answer.
      asks_trust: whether to ask the annotator if it trusts its own answer.
      cap: most tokens of all ledgers in the folder; None for no cap.
      concurrency: number of items in flight.
      num_repairs: how often an unreadable answer is asked for again.
      on_failure: "stop" ends a run with failed requests with an error; "set-aside" sets their items aside.
      images: "link" links the records' images into the folder, "none" leaves them.
      overwrite: whether to replace an earlier result in the folder.
      batch: writes requests to files instead of sending them; None to send them.
      map_blocks: annotates by rules in the processes of an engine; None to annotate in this process.
    """

    annotator: Endpoint | None
    voters: tuple[Endpoint, ...]
    asks_trust: bool
    cap: int | None
    concurrency: int
    num_repairs: int
    on_failure: Literal["stop", "set-aside"]
    images: Literal["link", "none"]
    overwrite: bool
    batch: BatchLimits | None = None
    map_blocks: MapBlocks | None = None

    def __post_init__(self) -> None:
        for flag, found, least in (
            ("--concurrency", self.concurrency, 1),
            ("--repairs", self.num_repairs, 0),
            ("--max-tokens", self.cap, 1),
        ):
            if found is not None and found < least:
                raise BadInput(f"{flag}: {found} must be at least {least}")
        if self.asks_trust and self.annotator is None:
            raise BadInput("--trust requires --annotator=llm")
        if self.map_blocks is not None and (self.annotator is not None or self.voters):
            raise BadInput("--engine=ray is for --annotator=rules without --voter; see `requests` for language models")
        models = [voter.model for voter in self.voters]
        again = [model for model in models if models.count(model) > 1]
        if again:
            raise BadInput(f"--voter: {again[0]!r} appears twice; name each model once")


class Crew:
    """The interviewers of a run, with one budget; a context that closes them."""

    def __init__(self, folder: Path, *, cap: int | None, num_repairs: int, connect: Connect = connect_live) -> None:
        self.budget, self._num_repairs, self._connect = Budget(cap), num_repairs, connect
        self._ledgers, self._open = folder, list[Interviewer]()

    def interview(self, endpoint: Endpoint, prompt: Prompt) -> Interviewer:
        """Return an interviewer that asks a model this prompt; the same for the same model and prompt."""
        for each in self._open:
            if (each.endpoint, each.prompt.digest) == (endpoint, prompt.digest):
                return each
        made = Interviewer(
            endpoint,
            prompt,
            folder=self._ledgers,
            budget=self.budget,
            num_repairs=self._num_repairs,
            connect=self._connect,
        )
        self._open.append(made)
        return made

    def charge_other_ledgers(self) -> None:
        """Charge the budget with the ledgers of other models, prompts and settings in the folder, if it has a cap."""
        if self.budget.cap is not None:
            in_use = {each.ledger.path for each in self._open}
            self.budget.num_spent += sum(map(count_spent, set(self._ledgers.glob(f"*{SUFFIX}")) - in_use))

    async def close(self) -> None:
        """Close all interviewers."""
        for each in self._open:
            await each.close()


class Prepare(Protocol):
    """Opens the interviewers of a task and returns the function that annotates one item."""

    def __call__(self, crew: Crew, /) -> Process[Any, Any]:
        """Return the function; may raise `BadInput`."""


def run_items(
    items: Iterable[ItemT],
    prepare: Prepare,
    *,
    folder: Path,
    plan: Plan,
    total: int,
    result: Result,
    terminal: Terminal,
) -> None:
    """Annotate items into a result, with their ledgers below `folder`."""
    collect = functools.partial(_collect, items, prepare, plan=plan, total=total, result=result, terminal=terminal)
    try:
        if plan.batch is None:
            asyncio.run(collect(Crew(folder / LEDGER_FOLDER, cap=plan.cap, num_repairs=plan.num_repairs)))
        else:
            _write_round(folder, plan, collect, result)
    except (KeyboardInterrupt, RunStopped) as error:
        why = str(error) if isinstance(error, RunStopped) else "interrupted; rerun the command to resume"
        num_done = result.num_collected - len(result.failed)
        raise RunStopped(f"{num_done} of {total} {result.units} are done; {why}") from None
    if result.failed and plan.on_failure == "stop":
        first = f"{result.failed[0].id[:80]!r}: {result.failed[0].detail}"
        raise RunStopped(
            f"requests for {len(result.failed)} of {total} {result.units} were given up (first: {first}); all other "
            "answers are in the ledger, rerun the command to ask again or pass --on-failure=set-aside"
        )


class RoundWritten(Exception):
    """Some items wait for replies to requests in batch files; the message names the files."""


def _write_round(
    folder: Path, plan: Plan, collect: Callable[[Crew], Coroutine[Any, Any, None]], result: Result
) -> None:
    """Annotate the items that the ledgers have all answers for, and write the requests of the others to files."""
    with Outbox(folder, plan.batch or BatchLimits()) as outbox:
        crew = Crew(folder / LEDGER_FOLDER, cap=plan.cap, num_repairs=plan.num_repairs, connect=outbox.connect)
        asyncio.run(collect(crew))
    if not result.num_waiting:
        return
    waiting, unaffordable = len(outbox.outstanding), outbox.num_unaffordable
    if unaffordable and not outbox.files and not waiting:
        raise RunStopped(
            f"--max-tokens: {crew.budget.num_spent} of {plan.cap} tokens are spent and up to {outbox.num_reserved} may "
            "be charged for requests without a reply, which is too much for the next request; every answer is in the "
            "ledger, rerun with a larger --max-tokens to go on"
        )
    lines = [f"{path}: {number} requests for {model}" for path, (number, model) in outbox.files.items()]
    lines += [f"{waiting} requests of earlier rounds have no reply yet; --again writes them anew"] if waiting else []
    lines += [f"{unaffordable} requests have to wait for tokens under --max-tokens"] if unaffordable else []
    lines += [f"{result.num_waiting} of {result.num_waiting + result.num_collected} {result.units} wait for replies"]
    raise RoundWritten("\n".join(lines))


async def _collect(
    items: Iterable[ItemT],
    prepare: Prepare,
    crew: Crew,
    *,
    plan: Plan,
    total: int,
    result: Result,
    terminal: Terminal,
) -> None:
    asks_models = plan.annotator is not None or bool(plan.voters)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(crew.close)
        process = prepare(crew)
        crew.charge_other_ledgers()
        with terminal.bar("annotating", total=total):
            concurrency = plan.concurrency if asks_models else 1
            async for outcome in process_items(items, process, budget=crew.budget, concurrency=concurrency):
                result.take(outcome)
                note = f"kept {result.num_kept}" + (f", {crew.budget.num_spent} tokens" if asks_models else "")
                terminal.update(result.num_collected, note)


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
    """Yield the outcome of each item, in order, holding only a few items at a time.

    `process` returns what is made of an item, or raises `CannotAnnotate` or `RequestFailed`. The budget is stopped
    when the run has to stop, so that requests in flight finish and no new one starts. Failures in a row count on from
    `streak`; None starts at 0.
    """
    slots, streak = asyncio.Semaphore(concurrency), streak or Streak()
    pending: collections.deque[asyncio.Task[Outcome[ItemT, Made]]] = collections.deque()

    async def process_one(item: ItemT) -> Outcome[ItemT, Made]:
        async with slots:
            try:
                made, provenance = await process(item)
            except AwaitsReply:
                return Outcome(item, is_waiting=True)
            except CannotAnnotate as error:
                streak.number = 0
                return Outcome(item, aside=Aside(item.id, error.reason, error.detail))
            except RequestFailed as error:
                streak.number += not isinstance(error, RequestRefused)
                if isinstance(error, RequestRefused) or streak.number < MOST_FAILURES_IN_A_ROW:
                    aside = Aside(item.id, Reason.NO_ANSWER, str(error))
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
        await asyncio.gather(*pending, return_exceptions=True)
        raise
    finally:
        for task in pending:
            task.cancel()


async def _first(pending: collections.deque[asyncio.Task[_Result]]) -> _Result:
    """Return the first task's outcome; raise at once what stops any other task."""
    while not pending[0].done():
        await asyncio.wait([task for task in pending if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            if task.done():
                task.result()
    return pending.popleft().result()
